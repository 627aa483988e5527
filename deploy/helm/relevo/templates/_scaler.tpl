{{/* What a pool is scaled by: query, target, type (of one replica, or of all). Empty answers stay empty: no data is not
zero, so a query has no `or vector(0)`. Workers are told by every gateway, hence `max by`. (root, name, pool) */}}
{{- define "relevo.scaler" -}}
{{- $role := get (dict "any" "unified") .pool.role | default .pool.role -}}
{{- $from := .root.Values.autoscaling.selector | default (printf "namespace=%q,service=%q" .root.Release.Namespace (include "relevo.fullname" .root)) -}}
{{- $metric := .pool.autoscaling.metric | default (ternary "kvCacheUsage" "requestsInLine" (eq .pool.role "decode")) -}}
{{- $target := .pool.autoscaling.target -}}
metric: {{ $metric }}
{{- if eq $metric "requestsInLine" }}
query: {{ printf "sum(relevo:requests_in_line{%s})" $from | quote }}
target: {{ $target | default 4 }}
type: AverageValue
{{- else if eq $metric "wantedWorkers" }}
query: {{ printf "max(relevo:planner_wanted_workers{%s})" $from | quote }}
target: 1
type: AverageValue
{{- else if eq $metric "requestsRunning" }}
role: {{ $role }}
query: {{ printf "sum(max by (engine) (vllm:num_requests_running{role=%q,%s}))" $role $from | quote }}
target: {{ $target | default 48 }}
type: AverageValue
{{- else if eq $metric "kvCacheUsage" }}
role: {{ $role }}
query: {{ printf "avg(max by (engine) (vllm:kv_cache_usage_perc{role=%q,%s}))" $role $from | quote }}
target: {{ $target | default 0.7 }}
type: Value
{{- else }}
role: {{ $role }}
query: {{ printf "avg(max by (worker) (rate(relevo:worker_busy_seconds_total{role=%q,%s}[2m])))" $role $from | quote }}
target: {{ $target | default 0.8 }}
type: Value
{{- end }}
{{- end }}

{{/* Slow down, quick up: a decode worker that leaves has its streams to finish. The planner's number is what it wants
by now, and has waited before: it is followed at once. */}}
{{- define "relevo.scalingBehavior" -}}
{{- if eq .metric "wantedWorkers" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Pods, value: {{ .maxReplicas }}, periodSeconds: 15}]
scaleDown:
  stabilizationWindowSeconds: 0
  policies: [{type: Pods, value: {{ .maxReplicas }}, periodSeconds: 15}]
{{- else -}}
scaleUp:
  stabilizationWindowSeconds: {{ .scaleUpWindowSeconds }}
  policies: [{type: Pods, value: 2, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownWindowSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 120}]
{{- end }}
{{- end }}
