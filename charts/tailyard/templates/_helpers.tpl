{{- define "tailyard.selector" -}}
app.kubernetes.io/name: tailyard
app.kubernetes.io/component: reconciler
{{- end }}

{{- define "tailyard.labels" -}}
{{ include "tailyard.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of an object (root, more: the user's, component: if it is not the reconciler); of one key ours. */}}
{{- define "tailyard.mergedLabels" -}}
{{- $labels := include "tailyard.labels" .root | fromYaml -}}
{{- with .component }}{{ $_ := set $labels "app.kubernetes.io/component" . }}{{ end -}}
{{- merge $labels (.more | default dict) | toYaml -}}
{{- end }}

{{/* The names of a list of objects, separated by commas. */}}
{{- define "tailyard.names" -}}
{{- range $i, $object := . }}{{ if $i }},{{ end }}{{ $object.name }}{{ end -}}
{{- end }}

{{- define "tailyard.image" -}}
{{- with .Values.image -}}
{{- if or (eq .repository "tailscale") (hasSuffix "/tailscale" .repository) }}
{{- fail (printf "image.repository is %s, the name of the Tailscale operator's proxy image: name Tailyard's image; proxyImage may be another" .repository) }}
{{- end -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "tailyard.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: tailyard-reconciler
    namespace: {{ .Release.Namespace }}
{{- end }}

{{/* The rules of users' Services, wherever they are looked for. */}}
{{- define "tailyard.services" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [services/status]
  verbs: [patch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch, patch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Bindings let proxies read EndpointSlices of their backends. No binding can grant more than these rules.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Whether the operator's device may impersonate all users and groups: its mode is "true", and no list names any. */}}
{{- define "tailyard.deviceImpersonatesAll" -}}
{{- $config := .apiServerProxyConfig | default dict -}}
{{- $lists := $config.impersonation | default dict -}}
{{- if and (eq (toString $config.mode) "true") (not $lists.users) (not $lists.groups) }}true{{ end -}}
{{- end }}

{{/* Users or groups that ProxyGroups may impersonate, or with `all` any API server proxy, separated by commas. */}}
{{- define "tailyard.impersonated" -}}
{{- $config := .values.apiServerProxyConfig | default dict -}}
{{- $names := get ($config.impersonation | default dict) .resource | default list -}}
{{- if or (eq (toString $config.allowImpersonation) "true") .all }}{{ $names = prepend $names "*" | uniq }}{{ end -}}
{{- join "," $names -}}
{{- end }}

{{/* The port of the control plane's URL. */}}
{{- define "tailyard.controlPort" -}}
{{- $url := .Values.controlPlane.url -}}
{{- $host := "" -}}
{{- if $url }}{{ $host = (urlParse $url).host }}{{ end -}}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" -}}
{{- $port | default (ternary "80" "443" (hasPrefix "http://" $url)) -}}
{{- end }}

{{/* Fails for values of the Tailscale operator's chart, each with what replaces it: files/operator-values.json. */}}
{{- define "tailyard.refuseOperatorValues" -}}
{{- $found := list -}}
{{- range $key, $answer := .Files.Get "files/operator-values.json" | fromJson -}}
{{- $value := dict "here" $.Values -}}
{{- range $name := splitList "." $key -}}
{{- $parent := $value.here -}}
{{- $value = dict -}}
{{- if kindIs "map" $parent }}{{ if hasKey $parent $name }}{{ $value = dict "here" (get $parent $name) }}{{ end }}{{ end -}}
{{- end -}}
{{- if hasKey $value "here" }}{{ $found = append $found (printf "%s: %s" $key $answer) }}{{ end -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "values of the Tailscale operator's chart, which tailyard migrate values converts:\n%s" (join "\n" $found)) -}}
{{- end -}}
{{- end }}
