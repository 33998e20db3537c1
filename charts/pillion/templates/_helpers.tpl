{{/* The name of the release's objects, also for `--release NAMESPACE/NAME`. The longest suffix is -controller-metrics. */}}
{{- define "pillion.name" -}}
{{- $name := default .Release.Name .Values.fullnameOverride -}}
{{- if gt (len $name) 44 }}{{ fail (printf "the name %q is longer than 44 bytes, and the names of Services would exceed 63: set fullnameOverride" $name) }}{{ end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}{{ fail (printf "the name %q is not valid for a Service (lower-case letters, digits and hyphens, starting with a letter): set fullnameOverride" $name) }}{{ end -}}
{{- $name -}}
{{- end }}

{{/*
Fails if a map of values is null, because Helm then removes all defaults in it, and if values contradict each other. Every template
starts with this check.
*/}}
{{- define "pillion.check" -}}
{{- range $path := list "image" "webhook" "webhook.autoscaling" "webhook.podDisruptionBudget" "webhook.serviceAccount" "controller" "controller.podDisruptionBudget" "controller.serviceAccount" "service" "rbac" "guardrails" "guardrails.profiles" "guardrails.inlineSecrets" "rollout" "rollout.namespaced" "audit" "crds" "uninstall" "jobs" "networkPolicy" "metrics" "metrics.serviceMonitor" "metrics.prometheusRule" "dashboards" -}}
{{- $value := $.Values -}}
{{- range splitList "." $path }}{{ $value = get (default dict $value) . }}{{ end -}}
{{- if not (kindIs "map" $value) }}{{ fail (printf "%s is null, which removes all its defaults: omit it, or set only the keys that you want to change" $path) }}{{ end -}}
{{- end -}}
{{- with .Values.webhook.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) }}{{ fail (printf "webhook.autoscaling.minReplicas is %d, but maxReplicas is only %d" (int .minReplicas) (int .maxReplicas)) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "pillion.release" -}}
{{ .Release.Namespace }}/{{ include "pillion.name" . }}
{{- end }}

{{- define "pillion.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{/* The labels that select a component's pods. Arguments: (list $ "webhook"). */}}
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

{{/* The guardrails in the policy files. */}}
{{- define "pillion.guardrails" -}}
{{- $guardrails := deepCopy .Values.guardrails.profiles -}}
{{- if .Values.guardrails.records }}{{ $_ := set $guardrails "recordDecisions" true }}{{ end -}}
{{- toYaml $guardrails -}}
{{- end }}

{{/*
The facts about the cluster in the policy files: the values, and the minor version of Kubernetes. Where Helm cannot query the cluster
(`helm template`, Argo CD), its version is not known, and only the values decide.
*/}}
{{- define "pillion.cluster" -}}
{{- $facts := dict -}}
{{- if lookup "v1" "Service" "default" "kubernetes" }}{{ $_ := set $facts "kubernetesMinor" (regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor | int) }}{{ end -}}
{{- with dig "cluster" dict (default dict .Values.webhook.policy) }}{{ $facts = mergeOverwrite $facts (deepCopy .) }}{{ end -}}
{{- toYaml $facts -}}
{{- end }}

{{/* The policy file of the replicas. Values that webhook and controller share, such as optIn, are set in both files. */}}
{{- define "pillion.webhookPolicy" -}}
{{- $policy := dict "apiVersion" "config.pillion.dev/v1alpha1" "kind" "WebhookPolicy" -}}
{{- with include "pillion.cluster" . | fromYaml }}{{ $_ := set $policy "cluster" . }}{{ end -}}
{{- $policy = mergeOverwrite $policy (deepCopy (default dict .Values.webhook.policy)) -}}
{{- if .Values.optIn }}{{ $policy = mergeOverwrite $policy (dict "namespaces" (dict "optIn" .Values.optIn)) }}{{ end -}}
{{- with include "pillion.guardrails" . | fromYaml }}{{ $_ := set $policy "guardrails" . }}{{ end -}}
{{- toYaml $policy -}}
{{- end }}

{{/*
Whether the policy rejects pods without a record: `true`, or nothing. During the upgrade that enables records, old replicas still
write none, so the policy must not reject pods yet. The next upgrade enables the rejection. Where Helm cannot query the
cluster (`helm template`, Argo CD), only the values decide.
*/}}
{{- define "pillion.recordsAreAskedFor" -}}
{{- if .Values.guardrails.records -}}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-webhook" (include "pillion.name" .)) -}}
{{- $policy := dig "data" "policy.yaml" "" $live | fromYaml -}}
{{- if or .Release.IsInstall (not (lookup "v1" "Service" "default" "kubernetes")) (get (get $policy "guardrails" | default dict) "recordDecisions") }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* The policy file of the controllers. */}}
{{- define "pillion.controllerPolicy" -}}
{{- $policy := dict "apiVersion" "config.pillion.dev/v1alpha1" "kind" "ControllerPolicy" -}}
{{- $policy = mergeOverwrite $policy (deepCopy (default dict .Values.controller.policy)) -}}
{{- $webhooks := dict -}}
{{- if .Values.optIn }}{{ $_ := set $webhooks "optIn" .Values.optIn }}{{ end -}}
{{- if .Values.excludedNamespaces }}{{ $_ := set $webhooks "excludedNamespaces" .Values.excludedNamespaces }}{{ end -}}
{{- if $webhooks }}{{ $policy = mergeOverwrite $policy (dict "webhooks" $webhooks) }}{{ end -}}
{{- if .Values.safetyNet.enabled }}{{ $_ := set $policy "safetyNet" (pick .Values.safetyNet "enabled") }}{{ end -}}
{{- if .Values.rollout.inPlace -}}
{{- $_ := set $policy "rollouts" (pick .Values.rollout "inPlace" "restart" "pullSecrets" "requestsPerSecond" "namespaced") -}}
{{- /* The controller simulates the creation of pods with the guardrails and the facts of the replicas. */}}
{{- with include "pillion.cluster" . | fromYaml }}{{ $_ := set $policy "cluster" . }}{{ end -}}
{{- with include "pillion.guardrails" . | fromYaml }}{{ $_ := set $policy "guardrails" . }}{{ end -}}
{{- end -}}
{{- if .Values.audit.openReports }}{{ $_ := set $policy "audit" .Values.audit }}{{ end -}}
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

{{/* The common pod fields of both Deployments. Arguments: (list $ "webhook" .Values.webhook). */}}
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

{{/* The IP families of the Services. */}}
{{- define "pillion.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/*
The owners of the field `replicas` in the managedFields of a Deployment: `scaler`, `installer`, both, or nothing. A scaler writes
the subresource `scale`, or is kubectl or kube-controller-manager. Every other owner is an installer, since installers have many
names (helm, helm-controller, the name of a copy of helm). Argument: the Deployment.
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
The number of replicas: that of the values, or the current one if the existing Deployment was scaled. Otherwise server-side apply
would fail an upgrade with a conflict. Arguments: (list $ "webhook" .Values.webhook).
*/}}
{{- define "pillion.replicas" -}}
{{- $root := first . -}}
{{- $live := lookup "apps/v1" "Deployment" $root.Release.Namespace (printf "%s-%s" (include "pillion.name" $root) (index . 1)) -}}
{{- if contains "scaler" (include "pillion.whoScales" $live) }}{{ $live.spec.replicas }}{{ else }}{{ (last .).replicaCount }}{{ end -}}
{{- end }}

{{/*
The number of webhook replicas, or nothing if a HorizontalPodAutoscaler sets it. If an installer owns the field and omits it, the
API server resets it to 1. So while an installer owns it, the current number is rendered. A first installation renders the
autoscaler's minimum, if Helm can query the cluster.
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
The listen address: all addresses of both families if a Service has, or may have, an IPv6 address. API servers call every family of
a Service, and a rotation waits for replicas that are unreachable by one of them. Arguments: (list $ "webhook").
*/}}
{{- define "pillion.listenAddress" -}}
{{- $root := first . -}}{{- $component := last . -}}
{{- $given := (get $root.Values $component).listenAddress -}}
{{- $service := $root.Values.service -}}
{{- $isDual := or (has $service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) (has "IPv6" $service.ipFamilies) -}}
{{- if $given -}}
{{- if and $isDual (regexMatch "^[0-9.]+$" $given) }}{{ fail (printf "%s.listenAddress: %s is not reachable by IPv6, which service.ipFamilies or service.ipFamilyPolicy requests: omit it, or set [::]" $component $given) }}{{ end -}}
{{- $given -}}
{{- else if or $isDual (has "IPv6" (dig "spec" "ipFamilies" list (lookup "v1" "Service" "default" "kubernetes"))) -}}
[::]
{{- else -}}
0.0.0.0
{{- end -}}
{{- end }}
