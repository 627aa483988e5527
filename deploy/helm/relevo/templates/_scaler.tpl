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
{{- else if eq $metric "requestsRunning" }}
query: {{ printf "sum(max by (engine) (vllm:num_requests_running{role=%q,%s}))" $role $from | quote }}
target: {{ $target | default 48 }}
type: AverageValue
{{- else if eq $metric "kvCacheUsage" }}
query: {{ printf "avg(max by (engine) (vllm:kv_cache_usage_perc{role=%q,%s}))" $role $from | quote }}
target: {{ $target | default 0.7 }}
type: Value
{{- else }}
query: {{ printf "avg(max by (worker) (rate(relevo:worker_busy_seconds_total{role=%q,%s}[2m])))" $role $from | quote }}
target: {{ $target | default 0.8 }}
type: Value
{{- end }}
{{- end }}

{{/* Slow down, quick up: a decode worker that leaves has its streams to finish. */}}
{{- define "relevo.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: {{ .scaleUpWindowSeconds }}
  policies: [{type: Pods, value: 2, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownWindowSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 120}]
{{- end }}
