{{/* The name of the release's objects, as `--release` says it. The longest suffix is that of a Service, -controller-metrics. */}}
{{- define "pillion.name" -}}
{{- $name := default .Release.Name .Values.fullnameOverride -}}
{{- if gt (len $name) 44 }}{{ fail (printf "the name %q is longer than 44 bytes, and names of Services end after 63: set fullnameOverride" $name) }}{{ end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}{{ fail (printf "the name %q is none that a Service can have, which is small letters, digits and -, beginning with a letter: set fullnameOverride" $name) }}{{ end -}}
{{- $name -}}
{{- end }}

{{/*
Fails where a value is null that has others in it: Helm takes all defaults in it away then. And where what is said of one thing
contradicts itself. Every template begins with it.
*/}}
{{- define "pillion.check" -}}
{{- range $path := list "image" "webhook" "webhook.autoscaling" "webhook.podDisruptionBudget" "webhook.serviceAccount" "controller" "controller.podDisruptionBudget" "controller.serviceAccount" "service" "rbac" "guardrails" "guardrails.profiles" "guardrails.inlineSecrets" "crds" "uninstall" "jobs" "networkPolicy" "metrics" "metrics.serviceMonitor" "metrics.prometheusRule" "dashboards" -}}
{{- $value := $.Values -}}
{{- range splitList "." $path }}{{ $value = get (default dict $value) . }}{{ end -}}
{{- if not (kindIs "map" $value) }}{{ fail (printf "%s is null, which takes all its defaults away: leave it out, or say what in it is to be otherwise" $path) }}{{ end -}}
{{- end -}}
{{- with .Values.webhook.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) }}{{ fail (printf "webhook.autoscaling.minReplicas is %d, and maxReplicas only %d" (int .minReplicas) (int .maxReplicas)) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "pillion.release" -}}
{{ .Release.Namespace }}/{{ include "pillion.name" . }}
{{- end }}

{{- define "pillion.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{/* What pods are selected by. Call it with (list $ "webhook"). */}}
{{- define "pillion.selector" -}}
app.kubernetes.io/name: pillion
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "pillion.labels" -}}
app.kubernetes.io/name: pillion
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pillion.servingSecret" -}}
{{ default (printf "%s-serving" (include "pillion.name" .)) .Values.webhook.servingSecret }}
{{- end }}

{{/* The policy files: what holds for both processes is said once. */}}
{{- define "pillion.webhookPolicy" -}}
{{- $policy := dict "apiVersion" "config.pillion.dev/v1alpha1" "kind" "WebhookPolicy" -}}
{{- $policy = mergeOverwrite $policy (deepCopy (default dict .Values.webhook.policy)) -}}
{{- if .Values.optIn }}{{ $policy = mergeOverwrite $policy (dict "namespaces" (dict "optIn" .Values.optIn)) }}{{ end -}}
{{- $guardrails := deepCopy .Values.guardrails.profiles -}}
{{- if .Values.guardrails.records }}{{ $_ := set $guardrails "recordDecisions" true }}{{ end -}}
{{- if $guardrails }}{{ $_ := set $policy "guardrails" $guardrails }}{{ end -}}
{{- toYaml $policy -}}
{{- end }}

{{/*
Whether pods without a record may be refused: `true`, or nothing. Replicas that were there before have to write records first,
and the policy would act at once: so an upgrade that begins with records leaves that to the next one. Where nobody can look at
the cluster (`helm template`, Argo CD), it is as the values say.
*/}}
{{- define "pillion.recordsAreAskedFor" -}}
{{- if .Values.guardrails.records -}}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-webhook" (include "pillion.name" .)) -}}
{{- $policy := dig "data" "policy.yaml" "" $live | fromYaml -}}
{{- if or .Release.IsInstall (not (lookup "v1" "Service" "default" "kubernetes")) (get (get $policy "guardrails" | default dict) "recordDecisions") }}true{{ end -}}
{{- end -}}
{{- end }}

{{- define "pillion.controllerPolicy" -}}
{{- $policy := dict "apiVersion" "config.pillion.dev/v1alpha1" "kind" "ControllerPolicy" -}}
{{- $policy = mergeOverwrite $policy (deepCopy (default dict .Values.controller.policy)) -}}
{{- $webhooks := dict -}}
{{- if .Values.optIn }}{{ $_ := set $webhooks "optIn" .Values.optIn }}{{ end -}}
{{- if .Values.excludedNamespaces }}{{ $_ := set $webhooks "excludedNamespaces" .Values.excludedNamespaces }}{{ end -}}
{{- if $webhooks }}{{ $policy = mergeOverwrite $policy (dict "webhooks" $webhooks) }}{{ end -}}
{{- toYaml $policy -}}
{{- end }}

{{- define "pillion.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pillion.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What both Deployments' pods have in common. Call it with (list $ "webhook" .Values.webhook). */}}
{{- define "pillion.placement" -}}
{{- $root := first . -}}{{- $component := index . 1 -}}{{- $values := last . -}}
serviceAccountName: {{ include "pillion.name" $root }}-{{ $component }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- if or $values.dnsPolicy $values.hostNetwork }}
dnsPolicy: {{ default "ClusterFirstWithHostNet" $values.dnsPolicy }}
{{- end }}
securityContext: {{- include "pillion.podSecurityContext" $root | nindent 2 }}
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
{{- $constraint := deepCopy . }}
{{- if not .labelSelector }}
{{- /* Counts only pods of one revision, so that old pods do not affect where new ones are placed. */}}
{{- $labels := include "pillion.selector" (list $root $component) | fromYaml }}
{{- $constraint = merge (dict "labelSelector" (dict "matchLabels" $labels) "matchLabelKeys" (list "pod-template-hash")) $constraint }}
{{- end }}
- {{ toYaml $constraint | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Services' IP families. */}}
{{- define "pillion.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/*
Who says how many replicas there are, by the managedFields of a Deployment: `scaler`, who has scaled it, or `installer`, who
applied it; both, or nothing. Installers have many names (helm, helm-controller, what a copy of helm is called), and those
who scale are known: they write the subresource `scale`, or are kubectl or the controllers of Kubernetes. Call it with the Deployment.
*/}}
{{- define "pillion.whoScales" -}}
{{- range (dig "metadata" "managedFields" list .) -}}
{{- if hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" -}}
{{- $manager := default "" .manager -}}
{{- if or (eq (default "" .subresource) "scale") (hasPrefix "kubectl" $manager) (eq $manager "kube-controller-manager") }} scaler{{ else }} installer{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
How many replicas: what the values say, unless somebody else has scaled the Deployment that is there, who goes on deciding.
Server-side apply would else end an upgrade in a conflict. Call it with (list $ "webhook" .Values.webhook).
*/}}
{{- define "pillion.replicas" -}}
{{- $root := first . -}}
{{- $live := lookup "apps/v1" "Deployment" $root.Release.Namespace (printf "%s-%s" (include "pillion.name" $root) (index . 1)) -}}
{{- if contains "scaler" (include "pillion.whoScales" $live) }}{{ $live.spec.replicas }}{{ else }}{{ (last .).replicaCount }}{{ end -}}
{{- end }}

{{/*
How many replicas of the webhook, or nothing where a HorizontalPodAutoscaler says it. What an installer said once and does not
say any more, the API server would put back to 1: as long as nobody else has said anything, that is how many there are, and on a
cluster that can be looked at a first installation begins with as many as the autoscaler has at least.
*/}}
{{- define "pillion.webhookReplicas" -}}
{{- if not .Values.webhook.autoscaling.enabled -}}
{{- include "pillion.replicas" (list . "webhook" .Values.webhook) -}}
{{- else -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-webhook" (include "pillion.name" .)) -}}
{{- if $live -}}
{{- if or (semverCompare "<4-0" .Capabilities.HelmVersion.Version) (contains "installer" (include "pillion.whoScales" $live)) }}{{ $live.spec.replicas }}{{ end -}}
{{- else if lookup "v1" "Service" "default" "kubernetes" -}}
{{- .Values.webhook.autoscaling.minReplicas -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Where processes listen: at all addresses of both families where a Service is, or may be, of IPv6, since API servers call each
of its families and a rotation waits for replicas that cannot be reached by one. Call it with (list $ "webhook").
*/}}
{{- define "pillion.listenAddress" -}}
{{- $root := first . -}}{{- $component := last . -}}
{{- $given := (get $root.Values $component).listenAddress -}}
{{- $service := $root.Values.service -}}
{{- $isDual := or (has $service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) (has "IPv6" $service.ipFamilies) -}}
{{- if $given -}}
{{- if and $isDual (regexMatch "^[0-9.]+$" $given) }}{{ fail (printf "%s.listenAddress: nobody can call %s by IPv6, which service.ipFamilies or service.ipFamilyPolicy asks for: leave it out, or say [::]" $component $given) }}{{ end -}}
{{- $given -}}
{{- else if or $isDual (has "IPv6" (dig "spec" "ipFamilies" list (lookup "v1" "Service" "default" "kubernetes"))) -}}
[::]
{{- else -}}
0.0.0.0
{{- end -}}
{{- end }}
