{{/* How the gateway reaches engines of others: each pod by its name. LeaderWorkerSet and StatefulSet name them alike. */}}
{{- define "relevo.engineWorkers" -}}
{{- $full := include "relevo.fullname" . -}}
{{- range $name, $_ := .Values.pools }}
{{- $pool := include "relevo.pool" (dict "root" $ "name" $name) | fromYaml }}
{{- range $number := until (int $pool.replicas) }}
{{- $host := printf "%s-%s-%d.%s-%s.%s.svc" $full $name $number $full $name $.Release.Namespace }}
{{- $parts := list (printf "http://%s:8100" $host) (printf "role=%s" $pool.role) (printf "engine=%s" $pool.engine) (printf "name=%s-%d" $name $number) }}
{{- $parts = concat $parts (list (printf "events=tcp://%s:5557" $host) (printf "replay=tcp://%s:5607" $host)) }}
{{- if eq $pool.engine "vllm" }}
{{- $parts = append $parts (printf "lease_s=%v" $pool.leaseSeconds) }}
{{- if $.Values.engines.keySecret }}
{{- $parts = append $parts "api_key_env=ENGINE_KEY" }}
{{- end }}
{{- else if eq $pool.role "prefill" }}
{{- $parts = append $parts (printf "bootstrap=%s:8998" $host) }}
{{- end }}
- --worker={{ $parts | join "," }}
{{- end }}
{{- end }}
{{- end }}

{{/* A pod of an engine. (root, name, pool, isFollower) */}}
{{- define "relevo.enginePod" -}}
{{- $v := .root.Values -}}
{{- $pool := .pool -}}
metadata:
  labels:
    {{- include "relevo.poolLabels" . | nindent 4 }}
    {{- with $pool.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pool.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $v.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "relevo.grace" $pool }}
  securityContext:
    {{- include "relevo.podSecurity" .root | nindent 4 }}
  {{- with include "relevo.placement" $pool | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: worker
      image: {{ include "relevo.image" (dict "root" .root "of" (merge (deepCopy $pool.image) (dict "tag" "latest"))) }}
      imagePullPolicy: {{ get $pool.image "pullPolicy" | default $v.image.pullPolicy }}
      terminationMessagePolicy: FallbackToLogsOnError
      {{- if eq $pool.engine "vllm" }}
      command: [vllm, serve, {{ $v.model.name | quote }}]
      args:
        {{- if gt (int $pool.hosts) 1 }}
        - --nnodes={{ $pool.hosts }}
        - --node-rank=$(LWS_WORKER_INDEX)
        - --master-addr=$(LWS_LEADER_ADDRESS)
        {{- if .isFollower }}
        - --headless
        {{- end }}
        {{- end }}
        - --port=8100
        - --tokens-only
        - --skip-tokenizer-init
        - --enable-prompt-tokens-details
        - --block-size={{ $v.engines.blockSize }}
        - --shutdown-timeout={{ $pool.drain.seconds }}
        - {{ dict "kv_connector" "NixlConnector" "kv_role" (ternary "kv_producer" "kv_consumer" (eq $pool.role "prefill")) "kv_connector_extra_config" (dict "kv_lease_duration" (int $pool.leaseSeconds)) | toJson | printf "--kv-transfer-config=%s" | quote }}
        - {{ dict "enable_kv_cache_events" true "publisher" "zmq" "endpoint" "tcp://*:5557" "replay_endpoint" "tcp://*:5607" | toJson | printf "--kv-events-config=%s" | quote }}
        {{- with $v.model.maxLength }}
        - --max-model-len={{ . }}
        {{- end }}
      {{- else }}
      command: [python3, -m, sglang.launch_server]
      args:
        - --model-path={{ $v.model.name }}
        - --host={{ ternary "::" "0.0.0.0" (eq $v.ipFamily "IPv6") }}
        - --port=8100
        - --skip-tokenizer-init
        - --page-size={{ $v.engines.blockSize }}
        - --disaggregation-mode={{ $pool.role }}
        - --disaggregation-bootstrap-port=8998
        - {{ dict "publisher" "zmq" "endpoint" "tcp://*:5557" "replay_endpoint" "tcp://*:5607" | toJson | printf "--kv-events-config=%s" | quote }}
      {{- end }}
        {{- range $pool.engineArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- include "relevo.podEnv" .root | nindent 8 }}
        - {name: HOME, value: /var/lib/relevo}
        - {name: HF_HOME, value: /var/cache/relevo/hub}
        - {name: XDG_CACHE_HOME, value: /var/lib/relevo}
        {{- if eq $pool.engine "vllm" }}
        # Where the other engine dials for KV: the pod's own address, which vLLM would have to guess.
        - {name: VLLM_NIXL_SIDE_CHANNEL_HOST, value: $(POD_IP)}
        - {name: VLLM_HOST_IP, value: $(POD_IP)}
        {{- with $v.engines.keySecret }}
        - name: VLLM_API_KEY
          valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $v.engines.key }}}}
        {{- end }}
        {{- else }}
        # Its own waits are minutes long.
        - {name: SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, value: "30"}
        - {name: SGLANG_DISAGGREGATION_WAITING_TIMEOUT, value: "30"}
        {{- end }}
        {{- with $pool.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if not .isFollower }}
      ports:
        - {name: engine, containerPort: 8100}
        - {name: events, containerPort: 5557}
        - {name: replay, containerPort: 5607}
      startupProbe:
        httpGet: {path: /health, port: engine}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div (add $v.model.loadSeconds 60 9) 10 }}
      livenessProbe:
        httpGet: {path: /health, port: engine}
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 8
      readinessProbe:
        httpGet: {path: /health, port: engine}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if gt (int $pool.drain.preStopSeconds) 0 }}
      lifecycle:
        preStop: {sleep: {seconds: {{ $pool.drain.preStopSeconds }}}}
      {{- end }}
      {{- end }}
      securityContext:
        {{- mergeOverwrite (include "relevo.containerSecurity" .root | fromYaml) (deepCopy $pool.securityContext) | toYaml | nindent 8 }}
      {{- with $pool.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: state, mountPath: /var/lib/relevo}
        - {name: models, mountPath: /var/cache/relevo}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    - {name: state, emptyDir: {}}
    {{- include "relevo.modelVolume" .root | nindent 4 }}
    - {name: tmp, emptyDir: {}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemory }}}}
{{- end }}
