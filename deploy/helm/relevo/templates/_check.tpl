{{/* What a schema cannot say: values that contradict each other, in one sentence that says what to change. */}}
{{- define "relevo.check" -}}
{{- $v := .Values -}}
{{- if not $v.pools }}
{{- fail "pools is empty, so nothing would compute; give one, for example --set pools.workers.replicas=1" }}
{{- end }}
{{- $engines := list }}
{{- range $name, $_ := $v.pools }}
{{- $engines = append $engines (include "relevo.pool" (dict "root" $ "name" $name) | fromYaml).engine }}
{{- end }}
{{- if gt (len ($engines | uniq)) 1 }}
{{- fail (printf "pools have the engines %s, which cannot hand KV to each other; give all pools of a release the same engine" ($engines | uniq | sortAlpha | join " and ")) }}
{{- end }}
{{- if and (not $v.cluster.secret) (has "own" $engines) }}
{{- fail "cluster.secret is empty, so no pod could join; name the Secret with the authority and the join token (docs/guides/kubernetes.md has the two commands that make it)" }}
{{- end }}
{{- if and (not $v.auth.secret) (not $v.auth.open) }}
{{- fail "auth.secret is empty, so the gateway would serve whatever reaches it; name a Secret with API keys, or set auth.open to true if that is meant" }}
{{- end }}
{{- if and $v.auth.secret $v.auth.open }}
{{- fail (printf "auth.secret is %s and auth.open is true; leave one of them out" $v.auth.secret) }}
{{- end }}
{{- include "relevo.checkModel" $v.model }}
{{- include "relevo.checkGateway" $v.gateway }}
{{- include "relevo.checkGrace" (dict "name" "gateway" "of" $v.gateway) }}
{{- range $name, $_ := $v.pools }}
{{- $pool := include "relevo.pool" (dict "root" $ "name" $name) | fromYaml }}
{{- include "relevo.checkPool" (dict "root" $ "name" $name "pool" $pool) }}
{{- include "relevo.checkGrace" (dict "name" (printf "pools.%s" $name) "of" $pool) }}
{{- end }}
{{- $ports := list (int $v.gateway.port) (int $v.gateway.probePort) (int $v.cluster.port) (int $v.cluster.kvPort) }}
{{- if ne (len ($ports | uniq)) 4 }}
{{- fail (printf "gateway.port %v, gateway.probePort %v, cluster.port %v and cluster.kvPort %v have to differ" $v.gateway.port $v.gateway.probePort $v.cluster.port $v.cluster.kvPort) }}
{{- end }}
{{- if and $v.inferencePool.enabled (not $v.inferencePool.picker.name) }}
{{- fail "inferencePool.enabled is true and inferencePool.picker.name is empty; name the Service of the endpoint picker" }}
{{- end }}
{{- if and $v.route.enabled (not $v.route.parents) }}
{{- fail "route.enabled is true and route.parents is empty; name the Gateway, for example [{name: inference-gateway}]" }}
{{- end }}
{{- if and $v.networkPolicy.egress (not $v.networkPolicy.restrictEgress) }}
{{- fail "networkPolicy.egress has rules and networkPolicy.restrictEgress is false, so they would not bind; set it to true" }}
{{- end }}
{{- end }}

{{- define "relevo.checkModel" -}}
{{- if and (eq .cache.kind "claim") (not .cache.claim) }}
{{- fail "model.cache.kind is claim and model.cache.claim is empty; name the PersistentVolumeClaim" }}
{{- end }}
{{- if and (eq .cache.kind "hostPath") (not .cache.hostPath) }}
{{- fail "model.cache.kind is hostPath and model.cache.hostPath is empty; name the folder of the machines" }}
{{- end }}
{{- end }}

{{- define "relevo.checkGateway" -}}
{{- if and (eq .ledger.kind "claim") (not .ledger.claim) }}
{{- fail "gateway.ledger.kind is claim and gateway.ledger.claim is empty; name the PersistentVolumeClaim" }}
{{- end }}
{{- if and (eq .ledger.kind "claim") (gt (int .replicas) 1) }}
{{- fail (printf "gateway.replicas is %v and gateway.ledger.kind is claim, which one pod at a time can have; use postgres, or one replica" .replicas) }}
{{- end }}
{{- if and (eq .ledger.kind "postgres") (not .ledger.secret) }}
{{- fail "gateway.ledger.kind is postgres and gateway.ledger.secret is empty; name a Secret with its URL" }}
{{- end }}
{{- end }}

{{- define "relevo.checkGrace" -}}
{{- $needed := add .of.drain.preStopSeconds .of.drain.seconds 5 -}}
{{- with .of.terminationGracePeriodSeconds }}
{{- if lt (int .) (int $needed) }}
{{- fail (printf "%s.terminationGracePeriodSeconds is %v, and preStop (%v s) and drain (%v s) and 5 s to end need %v; raise it, or leave it out" $.name . $.of.drain.preStopSeconds $.of.drain.seconds $needed) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "relevo.checkPool" -}}
{{- $pool := .pool -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,13}[a-z0-9])?$" .name) }}
{{- fail (printf "pools.%s: the name of a pool has at most 15 small letters, digits and dashes, and begins with a letter; rename it" .name) }}
{{- end }}
{{- $hosts := int $pool.hosts -}}
{{- if and (gt $hosts 1) (ne $pool.engine "vllm") }}
{{- fail (printf "pools.%s.hosts is %d and its engine is %s, of which a worker lives on one machine; raise replicas instead, or use engine vllm" .name $hosts $pool.engine) }}
{{- end }}
{{- if and (eq $pool.engine "own") $pool.engineArgs }}
{{- fail (printf "pools.%s.engineArgs are flags of vllm or sglang, and its engine is own; give flags of `relevo join` as args" .name) }}
{{- end }}
{{- if and (ne $pool.engine "own") $pool.args }}
{{- fail (printf "pools.%s.args are flags of `relevo join`, and its engine is %s; give its flags as engineArgs" .name $pool.engine) }}
{{- end }}
{{- if and (ne $pool.engine "own") (not (get ($pool.image | default dict) "repository")) }}
{{- fail (printf "pools.%s.engine is %s and its image is not named; give pools.%s.image, for example {repository: vllm/vllm-openai, tag: v0.33.0}" .name $pool.engine .name) }}
{{- end }}
{{- if and (ne $pool.engine "own") (ne $pool.autoscaling.kind "none") }}
{{- fail (printf "pools.%s.autoscaling.kind is %s, and the gateway knows pods of %s by their names, given at its start; set replicas" .name $pool.autoscaling.kind $pool.engine) }}
{{- end }}
{{- if and (ne $pool.engine "own") (eq $pool.role "any") }}
{{- fail (printf "pools.%s.engine is %s, whose workers have one role for life; set pools.%s.role to prefill or decode" .name $pool.engine .name) }}
{{- end }}
{{- if and (ne $pool.engine "own") (has .root.Values.model.name (list "smollm2" "fake")) }}
{{- fail (printf "model.name is %s, which is Relevo's own, and pools.%s.engine is %s; give a hub id or a folder of the cache" .root.Values.model.name .name $pool.engine) }}
{{- end }}
{{- $scaler := $pool.autoscaling -}}
{{- if gt (int $scaler.minReplicas) (int $scaler.maxReplicas) }}
{{- fail (printf "pools.%s.autoscaling.minReplicas is %v and maxReplicas %v; swap them" .name $scaler.minReplicas $scaler.maxReplicas) }}
{{- end }}
{{- if eq $scaler.metric "wantedWorkers" }}
{{- if or (gt (len .root.Values.pools) 1) (ne $pool.role "any") }}
{{- fail (printf "pools.%s.autoscaling.metric is wantedWorkers, a number of workers of which the planner says who computes prompts; give one pool, with role any" .name) }}
{{- end }}
{{- if gt (int .root.Values.gateway.replicas) 1 }}
{{- fail (printf "pools.%s.autoscaling.metric is wantedWorkers and gateway.replicas is %v, of which each sees a part of what comes in; use one replica (gateway.processes may be more)" .name .root.Values.gateway.replicas) }}
{{- end }}
{{- if $scaler.target }}
{{- fail (printf "pools.%s.autoscaling.target is %v, and wantedWorkers is a number of workers; leave the target out" .name $scaler.target) }}
{{- end }}
{{- end }}
{{- if and (eq $scaler.kind "keda") (not .root.Values.autoscaling.prometheus) }}
{{- fail (printf "pools.%s.autoscaling.kind is keda and autoscaling.prometheus is empty; give the address of Prometheus" .name) }}
{{- end }}
{{- end }}
