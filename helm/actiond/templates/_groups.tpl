{{- /* The groups of pods of mode distributed: ingress, the workers, and the workers of each pool, which are as the other workers
       but for what the pool says. Puts a list of (dict "component" "worker-gpu" "role" "worker" "pool" "gpu" "name" …
       "settings" …) into .found.groups: (dict "root" $ "found" $found). */}}
{{- define "actiond.groups" -}}
{{- $values := .root.Values }}
{{- $groups := list }}
{{- if eq $values.mode "distributed" }}
{{- range $role := list "ingress" "worker" }}
{{- $groups = append $groups (dict "component" $role "role" $role "pool" "" "settings" (omit (get $values $role) "pools")) }}
{{- end }}
{{- range $pool := $values.worker.pools }}
{{- $settings := omit (deepCopy $values.worker) "pools" }}
{{- include "actiond.override" (dict "base" $settings "over" (omit $pool "name")) }}
{{- $groups = append $groups (dict "component" (printf "worker-%s" $pool.name) "role" "worker" "pool" $pool.name "settings" $settings) }}
{{- end }}
{{- end }}
{{- range $groups }}
{{- $_ := set . "root" $.root }}
{{- $_ := set . "name" (printf "%s-%s" (include "actiond.fullname" $.root) .component) }}
{{- end }}
{{- $_ := set .found "groups" $groups }}
{{- end }}

{{- /* Key by key within the chart's own parts; anything else as a whole. */}}
{{- define "actiond.override" -}}
{{- $base := .base }}
{{- range $key, $value := .over }}
{{- if and (has $key (list "hpa" "keda" "pdb" "fallback" "existingSecret")) (kindIs "map" $value) }}
{{- include "actiond.override" (dict "base" (get $base $key) "over" $value) }}
{{- else }}
{{- $_ := set $base $key $value }}
{{- end }}
{{- end }}
{{- end }}
