{{/* The pod of a node: own engine. (root, name, pool) */}}
{{- define "relevo.poolPod" -}}
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
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: {{ $pool.topologyKey }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "relevo.poolSelector" . | nindent 10 }}
      matchLabelKeys: [pod-template-hash]
  initContainers:
    {{- include "relevo.identityInit" (dict "root" .root "image" $pool.image "files" (list "join-token")) | nindent 4 }}
  containers:
    - name: worker
      image: {{ include "relevo.image" (dict "root" .root "of" $pool.image) }}
      imagePullPolicy: {{ get ($pool.image | default dict) "pullPolicy" | default $v.image.pullPolicy }}
      terminationMessagePolicy: FallbackToLogsOnError
      args:
        - join
        - {{ include "relevo.heads" .root }}
        - --token-file=/var/lib/relevo-node/cluster/join-token
        - --cluster-dir=/var/lib/relevo-node/cluster
        - --name=$(POD_NAME)
        - --role={{ get (dict "any" "unified") $pool.role | default $pool.role }}
        - --listen={{ include "relevo.everyAddress" .root }}:{{ $v.cluster.port }}
        - --advertise={{ include "relevo.podAddress" .root }}:{{ $v.cluster.port }}
        - --set=host={{ include "relevo.everyAddress" .root }}
        - --set=probe_port={{ $v.gateway.probePort }}
        - --set=kv_port={{ $v.cluster.kvPort }}
        {{- if ne $v.cluster.kvEncryption "auto" }}
        - --set=kv_encryption={{ $v.cluster.kvEncryption }}
        {{- end }}
        - --set=start_timeout_s={{ $v.model.loadSeconds }}
        - --set=shutdown_timeout_s={{ $pool.drain.seconds }}
        {{- range $pool.args }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- include "relevo.podEnv" .root | nindent 8 }}
        {{- with $pool.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: control, containerPort: {{ $v.cluster.port }}}
        - {name: kv, containerPort: {{ $v.cluster.kvPort }}}
        - {name: probes, containerPort: {{ $v.gateway.probePort }}}
      # A head that is not there yet is waited for, and a model that takes too long is ended by --start-timeout-s, with a
      # reason: neither is for a probe to judge.
      startupProbe:
        httpGet: {path: /live, port: probes}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div (add $v.model.loadSeconds 60 9) 10 }}
      {{- include "relevo.liveness" .root | nindent 6 }}
      # Of this pod's own processes: it asks no gateway, which would wait for it in turn.
      readinessProbe:
        httpGet: {path: /ready, port: probes}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- if gt (int $pool.drain.preStopSeconds) 0 }}
      lifecycle:
        preStop: {sleep: {seconds: {{ $pool.drain.preStopSeconds }}}}
      {{- end }}
      securityContext:
        {{- mergeOverwrite (include "relevo.containerSecurity" .root | fromYaml) (deepCopy $pool.securityContext) | toYaml | nindent 8 }}
      {{- with $pool.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: node, mountPath: /var/lib/relevo-node}
        - {name: state, mountPath: /var/lib/relevo}
        - {name: models, mountPath: /var/cache/relevo}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: node, emptyDir: {}} # of this pod: a new pod is a new node
    - {name: state, emptyDir: {}}
    {{- include "relevo.modelVolume" .root | nindent 4 }}
    - {name: tmp, emptyDir: {}}
    - name: cluster-secret
      secret:
        secretName: {{ $v.cluster.secret }}
        defaultMode: 0440
        items: [{key: join-token, path: join-token}] # the authority's key is the heads'
{{- end }}

{{- define "relevo.poolSelector" -}}
{{ include "relevo.selector" .root }}
app.kubernetes.io/component: pool
relevo/pool: {{ .name }}
{{- end }}

{{- define "relevo.poolLabels" -}}
{{ include "relevo.labels" .root }}
app.kubernetes.io/component: pool
relevo/pool: {{ .name }}
relevo/role: {{ .pool.role }}
{{- end }}
