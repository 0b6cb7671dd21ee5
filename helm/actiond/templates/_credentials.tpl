{{- /* Where a credential comes from: (dict "what" "rabbitmq" "values" .Values.rabbitmq "root" $ "env" "ACTIOND_AMQP_URL").
       Answers own (a value, the chart makes a Secret), named (a Secret of its own), cluster, or shared (existingSecret). */}}
{{- define "actiond.source" -}}
{{- $found := list }}
{{- if or .values.url .values.token }}{{ $found = append $found "own" }}{{ end }}
{{- if .values.host }}{{ $found = append $found "own" }}{{ end }}
{{- if .values.existingSecret.name }}{{ $found = append $found "named" }}{{ end }}
{{- if (.values.cluster | default dict).enabled }}{{ $found = append $found "cluster" }}{{ end }}
{{- if gt (len $found) 1 }}
{{- fail (printf "\n\n%s: more than one of url, host, existingSecret.name and cluster.enabled is set; keep one.\n" .what) }}
{{- end }}
{{- if $found }}{{ first $found }}
{{- else if hasKey .root.Values.secrets .env }}shared
{{- else if .root.Values.existingSecret }}shared
{{- else }}
{{- fail (printf "\n\n%s is missing: set existingSecret to a Secret with %s in it, or set %s.\n" .what .env .need) }}
{{- end }}
{{- end }}

{{- define "actiond.amqp.source" -}}
{{- include "actiond.source" (dict "root" . "what" "rabbitmq" "values" .Values.rabbitmq "env" "ACTIOND_AMQP_URL" "need" "rabbitmq.url, rabbitmq.host, rabbitmq.existingSecret.name or rabbitmq.cluster.enabled") }}
{{- end }}

{{- define "actiond.database.source" -}}
{{- include "actiond.source" (dict "root" . "what" "postgresql" "values" .Values.postgresql "env" "ACTIOND_DATABASE_URL" "need" "postgresql.url, postgresql.host or postgresql.existingSecret.name; or mode=embedded, which needs neither broker nor database") }}
{{- end }}

{{- define "actiond.admin.source" -}}
{{- include "actiond.source" (dict "root" . "what" "the admin token" "values" .Values.admin "env" "ACTIOND_ADMIN_TOKEN" "need" "admin.token or admin.existingSecret.name") }}
{{- end }}

{{- /* Percent-encoded for any part of a URL. */}}
{{- define "actiond.encoded" -}}
{{- include "actiond.text" . | urlquery | replace "+" "%20" }}
{{- end }}

{{- define "actiond.userinfo" -}}
{{- if not (include "actiond.text" .values.username) }}{{ fail (printf "\n\n%s.username is missing: %s.host needs it.\n" .what .what) }}{{ end }}
{{- include "actiond.encoded" .values.username }}:{{ include "actiond.encoded" .values.password }}@
{{- end }}

{{- define "actiond.amqp.url" -}}
{{- with .Values.rabbitmq }}
{{- if .url }}{{ .url }}
{{- else }}
{{- ternary "amqps" "amqp" .tls }}://{{ include "actiond.userinfo" (dict "what" "rabbitmq" "values" .) }}
{{- .host }}:{{ .port | default (ternary 5671 5672 .tls) | int64 }}/{{ include "actiond.encoded" .vhost }}
{{- end }}
{{- end }}
{{- end }}

{{- define "actiond.database.url" -}}
{{- with .Values.postgresql }}
{{- if .url }}{{ .url }}
{{- else }}
{{- "postgres" }}://{{ include "actiond.userinfo" (dict "what" "postgresql" "values" .) }}
{{- .host }}:{{ .port | int64 }}/{{ include "actiond.encoded" .database }}?sslmode={{ .sslmode }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the chart's own Secret holds, as YAML. */}}
{{- define "actiond.secrets" -}}
{{- range $key, $value := .Values.secrets }}
{{ $key }}: {{ include "actiond.text" $value | quote }}
{{- end }}
{{- if eq .Values.mode "distributed" }}
{{- if eq (include "actiond.amqp.source" .) "own" }}
ACTIOND_AMQP_URL: {{ include "actiond.amqp.url" . | quote }}
{{- end }}
{{- if eq (include "actiond.database.source" .) "own" }}
ACTIOND_DATABASE_URL: {{ include "actiond.database.url" . | quote }}
{{- end }}
{{- end }}
{{- if eq (include "actiond.admin.source" .) "own" }}
ACTIOND_ADMIN_TOKEN: {{ include "actiond.text" .Values.admin.token | quote }}
{{- end }}
{{- end }}

{{- define "actiond.rabbitmqCluster" -}}{{ include "actiond.fullname" . }}-rabbitmq{{- end }}

{{- /* Environment from Secrets that hold one credential each. */}}
{{- define "actiond.credentials" -}}
{{- if eq .Values.mode "distributed" }}
{{- $amqp := include "actiond.amqp.source" . }}
{{- if eq $amqp "named" }}
- name: ACTIOND_AMQP_URL
  valueFrom:
    secretKeyRef: { name: {{ .Values.rabbitmq.existingSecret.name }}, key: {{ .Values.rabbitmq.existingSecret.key }} }
{{- else if eq $amqp "cluster" }}
{{- /* The operator makes both of letters, digits, - and _ only, so they need no encoding. Its own connection_string ends in
       an empty vhost. */}}
- name: RABBITMQ_USERNAME
  valueFrom:
    secretKeyRef: { name: {{ include "actiond.rabbitmqCluster" . }}-default-user, key: username }
- name: RABBITMQ_PASSWORD
  valueFrom:
    secretKeyRef: { name: {{ include "actiond.rabbitmqCluster" . }}-default-user, key: password }
- name: ACTIOND_AMQP_URL
  value: "amqp://$(RABBITMQ_USERNAME):$(RABBITMQ_PASSWORD)@{{ include "actiond.rabbitmqCluster" . }}.{{ .Release.Namespace }}.svc:5672/%2F"
{{- end }}
{{- include "actiond.database.env" . }}
{{- end }}
{{- if eq (include "actiond.admin.source" .) "named" }}
- name: ACTIOND_ADMIN_TOKEN
  valueFrom:
    secretKeyRef: { name: {{ .Values.admin.existingSecret.name }}, key: {{ .Values.admin.existingSecret.key }} }
{{- end }}
{{- end }}

{{- define "actiond.database.env" -}}
{{- if eq (include "actiond.database.source" .) "named" }}
- name: ACTIOND_DATABASE_URL
  valueFrom:
    secretKeyRef: { name: {{ .Values.postgresql.existingSecret.name }}, key: {{ .Values.postgresql.existingSecret.key }} }
{{- end }}
{{- end }}

{{- /* Every variable that config asks for must come from somewhere; only what the chart can see is judged. */}}
{{- define "actiond.variables" -}}
{{- $pools := list }}
{{- range .Values.worker.pools }}{{ $pools = concat $pools (.extraEnv | default list) }}{{ end }}
{{- if not (or .Values.existingSecret .Values.extraEnv .Values.extraEnvFrom .Values.ingress.extraEnv .Values.worker.extraEnv $pools .Values.embedded.extraEnv) }}
{{- $missing := list }}
{{- range regexFindAll "(^|[^$])\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" (toYaml .Values.config) -1 }}
{{- $name := regexFind "[A-Za-z_][A-Za-z0-9_]*" (regexFind "\\{.*" .) }}
{{- if not (hasKey $.Values.secrets $name) }}{{ $missing = append $missing $name }}{{ end }}
{{- end }}
{{- with uniq $missing }}
{{- fail (printf "\n\nconfig uses %s, which nothing sets: set existingSecret to a Secret with it, or secrets.%s, or extraEnv.\n" (join ", " .) (first .)) }}
{{- end }}
{{- end }}
{{- end }}
