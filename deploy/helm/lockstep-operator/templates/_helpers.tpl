{{- define "operator.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: lockstep-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Rights in the namespaces of the pairs. */}}
{{- define "operator.rules" -}}
- apiGroups: [lockstep-mq.io]
  resources: [locksteppairs]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [lockstep-mq.io]
  resources: [lockstepfleets, lockstepqueues]
  verbs: [get, list, watch, update, patch]
- apiGroups: [lockstep-mq.io]
  resources: [locksteppairs/status, lockstepfleets/status, lockstepqueues/status]
  verbs: [get, update, patch]
# Required to set owner references.
- apiGroups: [lockstep-mq.io]
  resources: [locksteppairs/finalizers, lockstepfleets/finalizers, lockstepqueues/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
# Tokens and certificates for requests to the nodes. Secrets are not listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch{{ if .Values.activeService }}, create, patch{{ end }}]
{{- if .Values.activeService }}
# A Role can only contain rights that the operator has itself.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
{{- if .Values.certManager }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch]
{{- end }}
{{- end -}}
