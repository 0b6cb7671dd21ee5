{{- /* metadata and spec of a pod that serves: (dict "root" $ "component" "worker" "role" "worker" "pool" "" "settings" .Values.worker). */}}
{{- define "actiond.pod" -}}
{{- $values := .root.Values }}
metadata:
  labels: {{- include "actiond.labels" . | nindent 4 }}
    actiond-metrics: "true"
    {{- with include "actiond.texts" .settings.podLabels }}{{ trim . | nindent 4 }}{{ end }}
  annotations:
    kubectl.kubernetes.io/default-container: actiond
    checksum/config: {{ include "actiond.config" .root | sha256sum }}
    {{- with include "actiond.secrets" .root }}
    checksum/secret: {{ sha256sum . }}
    {{- end }}
    {{- with include "actiond.texts" (merge (dict) .settings.podAnnotations $values.commonAnnotations) }}{{ trim . | nindent 4 }}{{ end }}
spec:
  {{- include "actiond.podCommon" . | nindent 2 }}
  serviceAccountName: {{ include "actiond.serviceAccount" .root }}
  terminationGracePeriodSeconds: {{ include "actiond.termination" . }}
  {{- with .settings.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .settings.nodeSelector }}
  nodeSelector: {{- include "actiond.texts" . | trim | nindent 4 }}
  {{- end }}
  {{- with .settings.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .settings.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if hasKey .settings "topologySpreadConstraints" }}
  topologySpreadConstraints:
    {{- if .settings.topologySpreadConstraints }}
    {{- toYaml .settings.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "actiond.selector" $ | nindent 10 }}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
    {{- end }}
  {{- end }}
  {{- with .settings.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: actiond
      {{- include "actiond.container" .root | nindent 6 }}
      args: [serve, --role, {{ .role }}{{ with .pool }}, --pool, {{ . | quote }}{{ end }}]
      {{- include "actiond.environment" . | nindent 6 }}
      ports:
        {{- if ne .role "worker" }}
        - { name: http, containerPort: 8080 }
        {{- end }}
        - { name: admin, containerPort: 9090 }
      startupProbe:
        httpGet: { path: /health/live, port: admin }
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: { path: /health/live, port: admin }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: { path: /health/ready, port: admin }
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      {{- if and (ne .role "worker") (gt (int64 .settings.drainSeconds) 0) (semverCompare ">=1.30-0" .root.Capabilities.KubeVersion.Version) }}
      lifecycle:
        preStop:
          sleep: { seconds: {{ int64 .settings.drainSeconds }} }
      {{- end }}
      resources: {{- toYaml .settings.resources | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/actiond, readOnly: true }
        - { name: tmp, mountPath: /tmp }
        {{- if eq .component "all" }}
        - { name: data, mountPath: /data }
        {{- end }}
        {{- range concat $values.extraVolumeMounts .settings.extraVolumeMounts }}
        - {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- with .settings.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap: { name: {{ include "actiond.fullname" .root }} }
    - name: tmp
      emptyDir: {}
    {{- range concat $values.extraVolumes .settings.extraVolumes }}
    - {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{- define "actiond.podCommon" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "actiond.container" -}}
image: {{ include "actiond.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- define "actiond.environment" -}}
env:
  - { name: ACTIOND_CONFIG, value: /etc/actiond/actiond.yaml }
  {{- with include "actiond.credentials" .root }}{{ trim . | nindent 2 }}{{ end }}
  {{- with include "actiond.env" (concat .root.Values.extraEnv .settings.extraEnv) }}{{ trim . | nindent 2 }}{{ end }}
{{- with include "actiond.envFrom" .root }}
envFrom: {{- trim . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "actiond.envFrom" -}}
{{- with .Values.existingSecret }}
- secretRef: { name: {{ . }} }
{{- end }}
{{- if include "actiond.secrets" . }}
- secretRef: { name: {{ include "actiond.fullname" . }} }
{{- end }}
{{- range .Values.extraEnvFrom }}
- {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
