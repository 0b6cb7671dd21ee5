{{- define "actiond.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "actiond.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := include "actiond.name" . }}
{{- contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* A value as text. Numbers in values are floats, which would print as 1.048576e+06. */}}
{{- define "actiond.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* A map whose values must be text, such as annotations. */}}
{{- define "actiond.texts" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ include "actiond.text" $value | quote }}
{{- end }}
{{- end }}

{{- /* A list of {name, value} or {name, valueFrom}, values made text. */}}
{{- define "actiond.env" -}}
{{- range . }}
- name: {{ .name }}
{{- if hasKey . "value" }}
  value: {{ include "actiond.text" .value | quote }}
{{- else }}
  valueFrom: {{- toYaml .valueFrom | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Takes (dict "root" $ "component" "worker"). */}}
{{- define "actiond.selector" -}}
app.kubernetes.io/name: {{ include "actiond.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "actiond.labels" -}}
{{ include "actiond.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with include "actiond.texts" .root.Values.commonLabels }}{{ trim . | nindent 0 }}{{ end }}
{{- end }}

{{- /* metadata of an object: (dict "root" $ "component" "worker" "name" "x" "annotations" dict). */}}
{{- define "actiond.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "actiond.labels" . | nindent 2 }}
{{- with include "actiond.texts" .labels }}{{ trim . | nindent 2 }}{{ end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- include "actiond.texts" . | trim | nindent 2 }}
{{- end }}
{{- end }}

{{- define "actiond.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "actiond.fullname" .) "default") }}
{{- end }}

{{- define "actiond.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ include "actiond.text" (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}
