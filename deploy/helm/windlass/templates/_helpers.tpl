{{/* An image. Takes its values, and `version`, the default tag. */}}
{{- define "windlass.image" -}}
{{- $tag := .tag | default .version -}}
{{ .repository }}{{ hasPrefix "sha256:" $tag | ternary "@" ":" }}{{ $tag }}
{{- end }}

{{/*
A manifest of deploy/, of which the folder `objects` has a copy: the objects are those of Kustomize, word for word. Takes
the root context and the path.
*/}}
{{- define "windlass.manifest" -}}
{{- $root := index . 0 -}}
{{- $path := printf "objects/%s" (index . 1) -}}
{{- $root.Files.Get $path | required (printf "the chart lacks %s: fetch it anew" $path) | replace "windlass-system" $root.Release.Namespace -}}
{{- end }}

{{/* Text, if the agent needs a service account. */}}
{{- define "windlass.account" -}}
{{- $config := include "windlass.config" . | fromYaml -}}
{{- $labels := $config.labels | default dict -}}
{{- $writesLabels := or (has $labels.to (list "node" "nodeFeature")) $labels.devices -}}
{{- $writesEvents := ($config.cluster | default dict).events -}}
{{- with .Values -}}
{{- if or .account .claims.enabled .watchdog.enabled .driverLimits .nvFractions .mps $writesLabels $writesEvents
  $config.shares -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{/* The driver's folder on the node. */}}
{{- define "windlass.driverRoot" -}}
{{- ternary "/home/kubernetes/bin/nvidia" .Values.driverRoot .Values.gke -}}
{{- end }}
