{{/* Names. Node names have at most 63 characters: 30 of the release, 15 of a pool, 17 that Kubernetes adds. */}}
{{- define "relevo.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{- define "relevo.selector" -}}
app.kubernetes.io/name: relevo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "relevo.labels" -}}
{{ include "relevo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "relevo.heads" -}}
{{ include "relevo.fullname" . }}-heads.{{ .Release.Namespace }}.svc:{{ .Values.cluster.port }}
{{- end }}

{{/* (root, of: image values that may leave things out) */}}
{{- define "relevo.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.of | default dict) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A pool with the defaults that it leaves open, as YAML. (root, name) */}}
{{- define "relevo.pool" -}}
{{- $given := index .root.Values.pools .name | default dict -}}
{{- mergeOverwrite (deepCopy .root.Values.poolDefaults) (deepCopy $given) | toYaml -}}
{{- end }}

{{/* From SIGTERM to the last process: the drain, and 15 s in which rows are kept, workers and the node process end. */}}
{{- define "relevo.grace" -}}
{{- .terminationGracePeriodSeconds | default (add .drain.preStopSeconds .drain.seconds 15) -}}
{{- end }}

{{- define "relevo.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "relevo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Liveness: of the supervisor's own loop, for at least a minute. */}}
{{- define "relevo.liveness" -}}
livenessProbe:
  httpGet: {path: /live, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* A Secret's files cannot be the cluster folder itself: they are links, and open to the group. (root, keys) */}}
{{- define "relevo.identityInit" -}}
- name: identity
  image: {{ include "relevo.image" (dict "root" .root "of" .image) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  terminationMessagePolicy: FallbackToLogsOnError
  command:
    - /bin/sh
    - -ec
    - |
      umask 077
      mkdir -p /var/lib/relevo-node/cluster
      for file in {{ join " " .files }}; do
        test -e /run/relevo-secret/$file || { echo "the Secret {{ .root.Values.cluster.secret }} has no $file; see docs/guides/kubernetes.md" >&2; exit 2; }
        test -e /var/lib/relevo-node/cluster/$file || cp /run/relevo-secret/$file /var/lib/relevo-node/cluster/$file
        chmod 600 /var/lib/relevo-node/cluster/$file
      done
      {{- with .then }}
      {{ . }}
      {{- end }}
  {{- with .env }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "relevo.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 128Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: node, mountPath: /var/lib/relevo-node}
    - {name: state, mountPath: /var/lib/relevo}
    - {name: tmp, mountPath: /tmp}
    - {name: cluster-secret, mountPath: /run/relevo-secret, readOnly: true}
{{- end }}

{{- define "relevo.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- with .Values.model.hubToken.secret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.model.hubToken.key }}}}
{{- end }}
{{- end }}

{{- define "relevo.modelVolume" -}}
- name: models
  {{- with .Values.model.cache }}
  {{- if eq .kind "claim" }}
  persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: {{ .readOnly }}}
  {{- else if eq .kind "hostPath" }}
  hostPath: {path: {{ .hostPath }}, type: DirectoryOrCreate}
  {{- else }}
  emptyDir: {sizeLimit: {{ .sizeLimit }}}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "relevo.modelFlags" -}}
{{- with .Values.model.maxLength }}
- --max-model-len={{ . }}
{{- end }}
- --start-timeout-s={{ .Values.model.loadSeconds }}
{{- end }}

{{/* Of pods of a kind. (spec, labels) */}}
{{- define "relevo.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Brackets, as an address with a port has them. */}}
{{- define "relevo.everyAddress" -}}
{{ ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") }}
{{- end }}

{{- define "relevo.podAddress" -}}
{{ ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") }}
{{- end }}

{{/* Empty: all pools are of a foreign engine, which the gateway knows by their addresses. */}}
{{- define "relevo.isCluster" -}}
{{- range $name, $_ := .Values.pools }}
{{- if eq (include "relevo.pool" (dict "root" $ "name" $name) | fromYaml).engine "own" }}yes{{ end }}
{{- end }}
{{- end }}
