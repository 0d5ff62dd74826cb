{{/* Contradictions and missing parts, each in a sentence that says what to set. Nothing is installed then. */}}
{{- define "windlass.checks" -}}
{{- include "windlass.checkValues" . -}}
{{- include "windlass.checkCluster" . -}}
{{- $given := include "windlass.givenConfig" . | fromYaml -}}
{{- if include "windlass.isOfAnotherPlugin" $given -}}
{{- with include "windlass.neededKeys" . | fromYaml -}}
{{- $path := keys . | sortAlpha | first -}}
{{- fail (printf "config is in the format of another plugin, which has no %s for %s: `windlass config convert` turns it into one that has" $path (get . $path).for) -}}
{{- end -}}
{{- else -}}
{{- include "windlass.checkConfig" (list . $given) -}}
{{- end -}}
{{- end }}

{{- define "windlass.checkValues" -}}
{{- with .Values -}}
{{- if and .claims.enabled (not .cdi) -}}
{{- fail "claims.enabled: containers get the devices of claims by CDI: set cdi to true as well" -}}
{{- end -}}
{{- if and .watchdog.drm (not .watchdog.enabled) -}}
{{- fail "watchdog.drm: it adds GPUs of AMD and Intel to the watchdog: set watchdog.enabled to true as well" -}}
{{- end -}}
{{- if and .driverLimits (not .cdi) -}}
{{- fail "driverLimits: the hook is in CDI documents: set cdi to true as well" -}}
{{- end -}}
{{- if and .nvFractions (not .driverLimits) -}}
{{- fail "nvFractions: fractions are limited by the hook: set driverLimits to true as well" -}}
{{- end -}}
{{- if and .mps (ne .access "privileged") -}}
{{- fail (printf "mps: only a privileged agent can start MPS daemons: set access to privileged, in place of %s" .access) -}}
{{- end -}}
{{- if .simulated.enabled -}}
{{- if not (hasSuffix "windlass-laboratory" .image.repository) -}}
{{- fail (printf "simulated.enabled: the image for nodes has no simulated machines: set image.repository to that of windlass-laboratory, in place of %s" .image.repository) -}}
{{- end -}}
{{- if or .gke .mps (ne .driverRoot "/") -}}
{{- fail "simulated.enabled: a simulated machine has a driver of its own: leave gke, mps and driverRoot out" -}}
{{- end -}}
{{- end -}}
{{- if .gke -}}
{{- if ne .access "privileged" -}}
{{- fail (printf "gke: nodes of GKE have no runtime of NVIDIA: set access to privileged, in place of %s" .access) -}}
{{- end -}}
{{- if not .cdi -}}
{{- fail "gke: nodes of GKE have no runtime of NVIDIA, so pods need CDI: set cdi to true as well" -}}
{{- end -}}
{{- if not (has .driverRoot (list "/" "/home/kubernetes/bin/nvidia")) -}}
{{- fail (printf "gke: the driver of GKE is below /home/kubernetes/bin/nvidia: leave driverRoot out, which is %s, or set gke to false" .driverRoot) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "windlass.checkCluster" -}}
{{- $served := .Capabilities.APIVersions.Has "resource.k8s.io/v1" -}}
{{- $new := semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version -}}
{{- if and .Values.claims.enabled (not (and $served $new)) -}}
{{- fail (printf "claims.enabled: claims need Kubernetes 1.34 with the API resource.k8s.io/v1, and this cluster is %s %s: set claims.enabled to false, or update the cluster (`helm template` asks no cluster: say --kube-version 1.34 --api-versions resource.k8s.io/v1)" .Capabilities.KubeVersion.Version ($served | ternary "with it" "without it")) -}}
{{- end -}}
{{- end }}

{{/* Takes the root context and the user's configuration. */}}
{{- define "windlass.checkConfig" -}}
{{- $root := index . 0 -}}
{{- $given := index . 1 -}}
{{- $known := include "windlass.configKeys" $root | replace "\n" " " | splitList " " -}}
{{- range $key, $_ := $given -}}
{{- if not (has $key $known) -}}
{{- fail (printf "config.%s: the agent's configuration has no such key: docs/configuration.md has all, and `windlass config convert` reads files of other plugins" $key) -}}
{{- end -}}
{{- if has $key (list "cdiDir" "hostRoot" "hostRootOnNode" "kubeletDir" "listen" "probeSocket" "stateDir") -}}
{{- fail (printf "config.%s: the mounts and ports of the pod decide this: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- range $section := list "cluster" "dra" "driver" "labels" "memoryLimits" "nvFractions" "watchdog" -}}
{{- with get $given $section -}}
{{- if not (kindIs "map" .) -}}
{{- fail (printf "config.%s is %v, and has to have keys of its own: docs/configuration.md has them" $section .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $need := include "windlass.neededKeys" $root | fromYaml -}}
{{- $keys := splitList "." $path -}}
{{- $section := get $given (first $keys) | default dict -}}
{{- $value := get $section (last $keys) -}}
{{- if and (hasKey $section (last $keys)) (ne (toString $value) (toString $need.is)) -}}
{{- fail (printf "config.%s is %v, and %s asks for %v: set one of them" $path $value $need.for $need.is) -}}
{{- end -}}
{{- end -}}
{{- include "windlass.checkRights" (list $root.Values $given) -}}
{{- end }}

{{/* What the configuration asks for, and the pod has no mounts or rights for. Takes values and the user's configuration. */}}
{{- define "windlass.checkRights" -}}
{{- $values := index . 0 -}}
{{- $given := index . 1 -}}
{{- $dra := $given.dra | default dict -}}
{{- if and (not $values.claims.enabled) (has $dra.offer (list "beside" "instead")) -}}
{{- fail (printf "config.dra.offer is %s, and the agent has no folder for it: set claims.enabled to true, and claims.offer to %s" $dra.offer $dra.offer) -}}
{{- end -}}
{{- if ne ($dra.driver | default "windlass.dev") "windlass.dev" -}}
{{- fail (printf "config.dra.driver is %s, and the chart has the rights and classes of windlass.dev: with Kustomize, change the name in deploy/rbac.yaml and deploy/deviceclasses.yaml" $dra.driver) -}}
{{- end -}}
{{- if not (or $values.cdi $values.simulated.enabled) -}}
{{- range (kindIs "slice" $given.deviceList | ternary $given.deviceList (list $given.deviceList)) -}}
{{- if hasPrefix "cdi-" (toString .) -}}
{{- fail (printf "config.deviceList has %s, and the agent has no folder for CDI documents: set cdi to true" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not $values.nvFractions) ($given.nvFractions | default dict).enabled -}}
{{- fail "config.nvFractions.enabled is true, and the agent does not reach the container runtime: set nvFractions to true" -}}
{{- end -}}
{{- $action := ($given.watchdog | default dict).action -}}
{{- if and (not $values.watchdog.enabled) (has $action (list "kill" "evict")) -}}
{{- fail (printf "config.watchdog.action is %s, and the agent has no right to do that: set watchdog.enabled to true" $action) -}}
{{- end -}}
{{- $root := ($given.driver | default dict).root | default "/" -}}
{{- if and (eq $values.driverRoot "/") (not $values.gke) (ne $root "/") -}}
{{- fail (printf "config.driver.root is %s, and the agent does not see this folder: set driverRoot to it" $root) -}}
{{- end -}}
{{- end }}
