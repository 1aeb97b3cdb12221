{{/* Labels of an object. Argument: list of root and component. */}}
{{- define "akri.labels" -}}
{{ include "akri.selector" (index . 1) }}
app.kubernetes.io/part-of: akri
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{- define "akri.selector" -}}
app.kubernetes.io/name: {{ . }}
{{- end }}

{{/* The image of a component. Argument: list of root and the component's values. */}}
{{- define "akri.image" -}}
{{- $root := index . 0 }}{{- $own := (index . 1).image | default dict }}
{{- $repository := $own.repository | default $root.Values.image.repository }}
{{- $tag := $own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- $digest := $own.digest | default (ternary "" $root.Values.image.digest (not (empty $own.repository))) }}
{{- printf "%s:%s" $repository $tag }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "akri.pullPolicy" -}}
{{- ((index . 1).image | default dict).pullPolicy | default (index . 0).Values.image.pullPolicy }}
{{- end }}

{{/* Resources as Kubernetes has them, as the defaults are, or as upstream Akri's chart names them. */}}
{{- define "akri.resources" -}}
{{- $requests := dict }}{{- $limits := dict }}
{{- range $name, $into := dict "memoryRequest" (list $requests "memory") "cpuRequest" (list $requests "cpu") "memoryLimit" (list $limits "memory") "cpuLimit" (list $limits "cpu") }}
{{- with index $.resources $name }}{{ $_ := set (index $into 0) (index $into 1) . }}{{ end }}
{{- end }}
{{- $requests = merge $requests ($.resources.requests | default dict) }}
{{- $limits = merge $limits ($.resources.limits | default dict) }}
{{- $all := dict }}
{{- with $requests }}{{ $_ := set $all "requests" . }}{{ end }}
{{- with $limits }}{{ $_ := set $all "limits" . }}{{ end }}
{{- toYaml $all }}
{{- end }}

{{/* A value as text: helm reads the integers of a file as 1e+06. */}}
{{- define "akri.text" -}}
{{ if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end }}
{{- end }}

{{/* Labels, annotations or a selector: values of a file may be numbers and booleans, those of Kubernetes are texts. */}}
{{- define "akri.texts" -}}
{{- $texts := dict }}
{{- range $name, $value := . }}{{ $_ := set $texts $name (include "akri.text" $value) }}{{ end }}
{{- toYaml $texts }}
{{- end }}

{{/* The name of the webhook's Service and registration. A certificate that somebody else makes is for the name that upstream Akri has. */}}
{{- define "akri.webhook" -}}
{{- .Values.webhookConfiguration.name | default (ternary "akri-webhook" "akri-webhook-configuration" (empty .Values.webhookConfiguration.caBundle)) }}
{{- end }}

{{/* Where pods of a component may run. Argument: its values. */}}
{{- define "akri.placement" -}}
{{- $selector := merge (dict "kubernetes.io/os" "linux") .nodeSelectors }}
{{- $affinity := deepCopy (.affinity | default dict) }}
{{- if .onlyOnControlPlane }}{{- /* whatever the value of the label: K3s has "true" */}}
{{- $terms := list }}
{{- range $own := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list (dict)) $affinity }}
{{- range tuple "control-plane" "master" }}
{{- $role := dict "key" (printf "node-role.kubernetes.io/%s" .) "operator" "Exists" }}
{{- $terms = append $terms (merge (dict "matchExpressions" (append ($own.matchExpressions | default list) $role)) $own) }}
{{- end }}
{{- end }}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms))) }}
{{- end }}
nodeSelector: {{- include "akri.texts" $selector | nindent 2 }}
{{- $tolerations := ternary .tolerations list (kindIs "slice" .tolerations) }}
{{- if or .onlyOnControlPlane .allowOnControlPlane }}
{{- range tuple "control-plane" "master" }}
{{- $tolerations = append $tolerations (dict "key" (printf "node-role.kubernetes.io/%s" .) "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a container of the controller or the webhook may do: nothing. */}}
{{- define "akri.unprivileged" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 65532 "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $default (deepCopy .securityContext)) }}
{{- end }}

{{/* Whether policies are rendered: "true" or "". */}}
{{- define "akri.policy" -}}
{{- $wanted := toString .Values.policy.enabled }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version)) }}true{{ end }}
{{- end }}

{{/* Whether there are SecurityContextConstraints: "true" or "". */}}
{{- define "akri.openshift" -}}
{{- $wanted := toString .Values.openshift.enabled }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}true{{ end }}
{{- end }}

{{/* Lets an account run as user 65532, which is in no namespace's range. Argument: list of root and account. */}}
{{- define "akri.nonroot" -}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:openshift:scc:nonroot-v2"}
subjects:
- {kind: ServiceAccount, name: {{ index . 1 }}, namespace: {{ (index . 0).Release.Namespace }}}
{{- end }}

{{/* A DiscoveryHandler. Argument: dict of root, file and values. */}}
{{- define "akri.handler" -}}
{{- if .values.enabled }}
{{- $object := .root.Files.Get (printf "files/handlers/%s.yaml" .file) | fromYaml }}
{{- range $field := tuple "grants" "limits" "interval" "shared" }}
{{- $value := index $.values $field }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $object.spec $field $value }}{{ end }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{/* One container's environment, mounts and so on. Argument: dict of root, name and values. */}}
{{- define "akri.broker.container" -}}
- name: {{ .name }}
  image: {{ printf "%s:%s" .values.image.repository (.values.image.tag | default "latest") | quote }}
  {{- with .values.image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- with .values.command }}
  command: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.env }}
  env:
  {{- if kindIs "map" . }}
  {{- range $name, $value := . }}
  - {name: {{ $name | quote }}, value: {{ include "akri.text" $value | quote }}}
  {{- end }}
  {{- else }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- with .values.envFrom }}
  envFrom:
  {{- range .secretRef }}
  - secretRef: {name: {{ . | quote }}}
  {{- end }}
  {{- range .configMapRef }}
  - configMapRef: {name: {{ . | quote }}}
  {{- end }}
  {{- end }}
  {{- with .values.securityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $resources := include "akri.resources" .values | fromYaml }}
  resources:
    requests: {{- toYaml (merge (dict "{{PLACEHOLDER}}" "1") ($resources.requests | default dict)) | nindent 6 }}
    limits: {{- toYaml (merge (dict "{{PLACEHOLDER}}" "1") ($resources.limits | default dict)) | nindent 6 }}
  {{- with .mounts }}
  volumeMounts: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The spec of a Service. Argument: list of its values and the section that they are in. In upstream's chart `name` is that of the port for some. */}}
{{- define "akri.service" -}}
{{- $service := index . 0 }}
{{- $named := has (index . 1) (tuple "debugEcho" "custom") }}
type: {{ $service.type }}
ports:
- name: {{ ternary $service.name "" $named | default $service.portName | default "http" }}
  port: {{ $service.port }}
  targetPort: {{ $service.targetPort }}
  protocol: {{ $service.protocol }}
{{- end }}

{{/* A Configuration. Argument: dict of root, handler, details, values, and the section that these are in. */}}
{{- define "akri.configuration" -}}
{{- $values := .values }}{{- $root := .root }}
{{- if $values.enabled }}
{{- $volumes := $values.brokerPod.volumes | default list }}{{- $mounts := $values.brokerPod.volumeMounts | default list }}
{{- if $values.mountCertificates }}
{{- $items := list }}
{{- range $key, $path := dict "client_certificate" "own/certs/AkriBroker.der" "client_key" "own/private/AkriBroker.pfx" "ca_certificate" "trusted/certs/SomeCA.der" "ca_crl" "trusted/crl/SomeCA.crl" }}
{{- $items = append $items (dict "key" $key "path" $path) }}
{{- end }}
{{- $volumes = append $volumes (dict "name" "credentials" "secret" (dict "secretName" "opcua-broker-credentials" "items" $items)) }}
{{- $mounts = append $mounts (dict "name" "credentials" "mountPath" "/etc/opcua-certs/client-pki" "readOnly" false) }}
{{- end }}
{{- /* As in upstream's chart, where Jobs of debugEcho have Services, too. */}}
{{- $serves := or $values.brokerPod.image.repository (and (eq .section "debugEcho") $values.brokerJob.image.repository) }}
---
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: {{ $values.name }}
  namespace: {{ $root.Release.Namespace }}
spec:
  discoveryHandler:
    name: {{ .handler | quote }}
    discoveryDetails: {{ .details | toJson }}
    {{- with $values.discoveryProperties }}
    discoveryProperties: {{- toYaml . | nindent 4 }}
    {{- end }}
  capacity: {{ $values.capacity }}
  {{- if $values.brokerPod.image.repository }}
  brokerSpec:
    brokerPodSpec:
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 6 }}
      {{- end }}
      containers: {{- include "akri.broker.container" (dict "name" (printf "%s-broker" $values.name) "values" $values.brokerPod "mounts" $mounts) | nindent 6 }}
      {{- with $volumes }}
      volumes: {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- else if $values.brokerJob.image.repository }}
  brokerSpec:
    brokerJobSpec:
      parallelism: {{ $values.brokerJob.parallelism }}
      completions: {{ $values.brokerJob.completions }}
      backoffLimit: {{ $values.brokerJob.backoffLimit }}
      template:
        spec:
          {{- with $root.Values.imagePullSecrets }}
          imagePullSecrets: {{- toYaml . | nindent 10 }}
          {{- end }}
          restartPolicy: {{ $values.brokerJob.restartPolicy }}
          containers: {{- include "akri.broker.container" (dict "name" (printf "%s-broker" $values.name) "values" $values.brokerJob "mounts" $values.brokerJob.volumeMounts) | nindent 10 }}
          {{- with $values.brokerJob.volumes }}
          volumes: {{- toYaml . | nindent 10 }}
          {{- end }}
  {{- end }}
  {{- if and $values.createInstanceServices $serves }}
  instanceServiceSpec: {{- include "akri.service" (list $values.instanceService .section) | nindent 4 }}
  {{- end }}
  {{- if and $values.createConfigurationService $serves }}
  configurationServiceSpec: {{- include "akri.service" (list $values.configurationService .section) | nindent 4 }}
  {{- end }}
  {{- with $values.brokerProperties }}
  brokerProperties: {{- include "akri.texts" . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Whether a usage, which is an expression, is one of this node: through an Instance, a Configuration or a ResourceClaim. */}}
{{- define "akri.ownUsage" -}}
({{ . }} == variables.node || (({{ . }}.startsWith('C:') || {{ . }}.startsWith('R:')) && {{ . }}.endsWith(variables.suffix)))
{{- end }}
