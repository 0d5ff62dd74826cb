{{/* The agent's configuration: the user's, merged with what the other values need. */}}
{{- define "windlass.config" -}}
{{- include "windlass.checks" . -}}
{{- $given := include "windlass.givenConfig" . | fromYaml -}}
{{- if include "windlass.isOfAnotherPlugin" $given -}}
{{- kindIs "string" .Values.config | ternary .Values.config (toYaml $given) -}}
{{- else -}}
{{- $config := dict "deviceList" (ternary "cdi-cri" "envvar" (or .Values.cdi .Values.simulated.enabled)) -}}
{{- if .Values.simulated.enabled -}}
{{- $_ := set $config "disclose" (list "pods") -}}
{{- end -}}
{{- range $path, $need := include "windlass.neededKeys" . | fromYaml -}}
{{- $keys := splitList "." $path -}}
{{- $section := get $config (first $keys) | default dict -}}
{{- $_ := set $config (first $keys) (set $section (last $keys) $need.is) -}}
{{- end -}}
{{- if and .Values.scheduler.enabled (not (hasKey $given "shares")) -}}
{{- $_ := set $config "shares" (dict "memory" "windlass.dev/gpu-memory" "compute" "windlass.dev/gpu-compute") -}}
{{- end -}}
{{- mergeOverwrite $config $given | toYaml -}}
{{- end -}}
{{- end }}

{{/* The user's configuration. YAML 1.1, which Helm reads, takes `off` for false. */}}
{{- define "windlass.givenConfig" -}}
{{- $given := kindIs "string" .Values.config | ternary (.Values.config | toString | fromYaml) .Values.config -}}
{{- if hasKey $given "Error" -}}
{{- fail (printf "config is not YAML with keys: %s" $given.Error) -}}
{{- end -}}
{{- $given = deepCopy $given -}}
{{- range $section, $key := dict "dra" "offer" "watchdog" "action" -}}
{{- $keys := get $given $section -}}
{{- if kindIs "map" $keys -}}
{{- if kindIs "bool" (get $keys $key) -}}
{{- $_ := set $keys $key (get $keys $key | ternary "on" "off") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $given -}}
{{- end }}

{{/* Text, if a configuration is in the format of another plugin. */}}
{{- define "windlass.isOfAnotherPlugin" -}}
{{- $imex := get . "imex" -}}
{{- if or (hasKey . "version") (hasKey . "flags") (hasKey . "sharing") (kindIs "map" (get . "resources"))
  (and (kindIs "map" $imex) (hasKey $imex "channelIDs")) (hasKey . "resourceList") (hasKey . "configList") -}}
true
{{- end -}}
{{- end }}

{{/* Keys of the configuration that values need, with the value that needs each. */}}
{{- define "windlass.neededKeys" -}}
{{- with .Values }}
{{- if .claims.enabled }}
dra.offer: {is: {{ .claims.offer }}, for: claims.offer}
{{- end }}
{{- if .driverLimits }}
memoryLimits.hook: {is: /var/lib/windlass/bin/windlass-hook, for: driverLimits}
{{- end }}
{{- if .nvFractions }}
nvFractions.enabled: {is: true, for: nvFractions}
{{- end }}
{{- if ne .labels.to "none" }}
labels.to: {is: {{ .labels.to }}, for: labels.to}
{{- end }}
{{- $for := .simulated.enabled | ternary "simulated.enabled" "scheduler.enabled" }}
{{- if or .labels.devices .scheduler.enabled .simulated.enabled }}
labels.devices: {is: true, for: {{ .labels.devices | ternary "labels.devices" $for }}}
{{- end }}
{{- end }}
{{- with include "windlass.driverRoot" . }}
{{- if ne . "/" }}
driver.root: {is: {{ . }}, for: {{ $.Values.gke | ternary "gke" "driverRoot" }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Keys of the agent's configuration, as `windlass config schema` has them. */}}
{{- define "windlass.configKeys" -}}
amd cdiAnnotationPrefix cdiDir cluster deviceIds deviceInfoDir deviceList disclose dra driver exclude features fpga gpu
health hooks hostRoot hostRootOnNode imex intel kubeletDir labels listen memoryLimits mig mps mpsDir nics nvFractions
nvmlLibrary passDeviceSpecs probeSocket resources shares sources stateDir unmatched watchdog
{{- end }}
