{{- /* Whole seconds of a duration as config writes it: (dict "text" "1.5s" "path" "config.worker.grace_period"). */}}
{{- define "actiond.seconds" -}}
{{- $text := include "actiond.text" .text }}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?(ms|s|m|h|d)$" $text) }}
{{- fail (printf "\n\n%s: %s is not a duration such as 30s or 5m.\n" .path $text) }}
{{- end }}
{{- $factors := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 }}
{{- mulf (regexFind "^[0-9]+(\\.[0-9]+)?" $text | float64) (get $factors (regexFind "[a-z]+$" $text)) | ceil | int64 }}
{{- end }}

{{- /* Seconds that running handlers get at a stop: config.worker.grace_period, else enough for the slowest handler. */}}
{{- define "actiond.grace" -}}
{{- with (.Values.config.worker | default dict).grace_period }}
{{- include "actiond.seconds" (dict "text" . "path" "config.worker.grace_period") }}
{{- else }}
{{- $longest := 25 }}
{{- range $i, $function := .Values.config.functions }}
{{- with ($function.handler | default dict).timeout }}
{{- $path := printf "config.functions[%d].handler.timeout" $i }}
{{- $longest = max $longest (include "actiond.seconds" (dict "text" . "path" $path) | int64) }}
{{- end }}
{{- end }}
{{- min 3600 (add $longest 5) }}
{{- end }}
{{- end }}

{{- /* What is pinned to a pool must find one. */}}
{{- define "actiond.pinned" -}}
{{- $names := list }}
{{- range .Values.worker.pools }}
{{- if has .name $names }}
{{- fail (printf "\n\nworker.pools: %s is listed twice.\n" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- range $key := list "functions" "function_sources" "mcp_servers" }}
{{- range $i, $entry := get $.Values.config $key | default list }}
{{- with eq $key "mcp_servers" | ternary (($entry.import | default dict).pool) $entry.pool }}
{{- if not (has . $names) }}
{{- fail (printf "\n\nconfig.%s[%d] is pinned to pool %s, which is not in worker.pools.\n" $key $i .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Seconds until Kubernetes kills the pod. */}}
{{- define "actiond.termination" -}}
{{- with .settings.terminationGracePeriodSeconds }}{{ int64 . }}
{{- else }}{{ add (include "actiond.grace" .root | int64) 15 (.settings.drainSeconds | default 0 | int64) }}
{{- end }}
{{- end }}

{{- define "actiond.publicUrl" -}}
{{- with .Values.expose }}{{ if .host }}{{ ternary "https" "http" .https }}://{{ .host }}{{ end }}{{ end }}
{{- end }}

{{- /* actiond.yaml: config and what the chart owns. */}}
{{- define "actiond.config" -}}
{{- $config := deepCopy .Values.config }}
{{- range $path, $instead := dict "ingress.listen" "the chart sets it" "admin.listen" "the chart sets it" "admin.token" "use admin in the values" "worker.pools" "use worker.pools in the values" "queue.type" "use mode in the values" "queue.url" "use rabbitmq in the values" "store.url" "use postgresql in the values" }}
{{- $parts := splitList "." $path }}
{{- if hasKey (get $config (first $parts) | default dict) (last $parts) }}
{{- fail (printf "\n\nconfig.%s cannot be set: %s.\n" $path $instead) }}
{{- end }}
{{- end }}
{{- range list "ingress" "admin" "queue" "store" "worker" }}
{{- if not (get $config .) }}{{ $_ := set $config . (dict) }}{{ end }}
{{- end }}
{{- $_ := set $config.ingress "listen" "0.0.0.0:8080" }}
{{- if and (include "actiond.publicUrl" .) (not $config.ingress.public_url) }}
{{- $_ := set $config.ingress "public_url" (include "actiond.publicUrl" .) }}
{{- end }}
{{- $_ := set $config.admin "listen" "0.0.0.0:9090" }}
{{- $_ := set $config.admin "token" "${ACTIOND_ADMIN_TOKEN}" }}
{{- if eq .Values.mode "embedded" }}
{{- $_ := set $config.queue "type" "embedded" }}
{{- $_ := set $config.store "url" "sqlite:///data/actiond.db" }}
{{- else }}
{{- $_ := set $config.queue "type" "rabbitmq" }}
{{- $_ := set $config.queue "url" "${ACTIOND_AMQP_URL}" }}
{{- $_ := set $config.store "url" "${ACTIOND_DATABASE_URL}" }}
{{- end }}
{{- include "actiond.pinned" . }}
{{- with .Values.worker.pools }}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
{{- $_ := set $config.worker "pools" $names }}
{{- end }}
{{- if not $config.worker.grace_period }}
{{- $_ := set $config.worker "grace_period" (printf "%ss" (include "actiond.grace" .)) }}
{{- end }}
{{- $text := toYaml $config }}
{{- with regexFind "(?m)(: |- )-?[0-9]{16,}$" $text }}
{{- fail (printf "\n\nconfig holds a whole number of more than 15 digits, which Helm cannot carry exactly; it became %s.\n" (regexFind "-?[0-9]+$" .)) }}
{{- end }}
{{- $text }}
{{- end }}
