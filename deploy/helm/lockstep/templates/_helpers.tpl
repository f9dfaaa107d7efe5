{{- define "lockstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lockstep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "lockstep.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lockstep.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.selector" -}}
app.kubernetes.io/name: {{ include "lockstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lockstep.labels" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "lockstep.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lockstep.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* The headless Service for the names of the pods. */}}
{{- define "lockstep.peers" -}}
{{- printf "%s-peers" (include "lockstep.fullname" .) -}}
{{- end -}}

{{- define "lockstep.domain" -}}
{{- printf "%s.%s.svc.%s" (include "lockstep.peers" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* Advertised addresses of both nodes. */}}
{{- define "lockstep.addresses" -}}
{{- $domain := include "lockstep.domain" . -}}
{{- $name := include "lockstep.fullname" . -}}
{{- printf "%s-0.%s:7420,%s-1.%s:7420" $name $domain $name $domain -}}
{{- end -}}

{{- define "lockstep.voters" -}}
{{- $domain := include "lockstep.domain" . -}}
{{- $name := include "lockstep.fullname" . -}}
{{- printf "%s-0.%s:7430,%s-1.%s:7430,%s-witness-0.%s:7430" $name $domain $name $domain $name $domain -}}
{{- end -}}

{{- define "lockstep.tlsSecret" -}}
{{- if eq .Values.tls.mode "certManager" -}}
{{- default (printf "%s-tls" (include "lockstep.fullname" .)) .Values.tls.secretName -}}
{{- else -}}
{{- required "tls.secretName: the Secret with tls.crt, tls.key and ca.crt; or tls.mode: certManager; or, if the network is trusted, tls.mode: none" .Values.tls.secretName -}}
{{- end -}}
{{- end -}}

{{/* Names in the certificate. */}}
{{- define "lockstep.dnsNames" -}}
{{- $name := include "lockstep.fullname" . -}}
{{- $domain := include "lockstep.domain" . -}}
- {{ $name }}-0.{{ $domain }}
- {{ $name }}-1.{{ $domain }}
{{- if eq .Values.coordinator.type "witness" }}
- {{ $name }}-witness-0.{{ $domain }}
{{- end }}
- {{ $name }}.{{ .Release.Namespace }}.svc
- {{ $name }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- if .Values.activeService.enabled }}
- {{ $name }}-active.{{ .Release.Namespace }}.svc
- {{ $name }}-active.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}
- localhost
{{- end -}}

{{- define "lockstep.port" -}}
{{- splitList ":" . | last | int -}}
{{- end -}}

{{- define "lockstep.scheme" -}}
{{- if eq .Values.tls.mode "none" }}HTTP{{ else }}HTTPS{{ end -}}
{{- end -}}

{{/* Not empty if the nodes use etcd: for the cluster record or for a fleet. */}}
{{- define "lockstep.etcd" -}}
{{- if or (eq .Values.coordinator.type "etcd") .Values.fleet.pair }}true{{ end -}}
{{- end -}}

{{/* node.yaml: the operator's settings, overridden by the chart's own. */}}
{{- define "lockstep.config" -}}
{{- $tls := ne .Values.tls.mode "none" -}}
{{- $own := dict "data" (dict "dir" "/data") "listen" "0.0.0.0:7420" "metrics" (dict "listen" .Values.metrics.listen) -}}
{{- if $tls -}}
{{- $_ := set $own "tls" (dict "cert" "/tls/tls.crt" "key" "/tls/tls.key" "ca" "/tls/ca.crt" "client-auth" .Values.tls.clientAuth) -}}
{{- $_ := set $own.metrics "tls" (dict "own" true) -}}
{{- else -}}
{{- $_ := set $own "insecure" true -}}
{{- end -}}
{{- with .Values.metrics.tokenSecret }}{{ $_ := set $own.metrics "token-file" "/secrets/metrics/token" }}{{ end -}}
{{- with .Values.peerToken.secretName }}{{ $_ := set $own "peer-token-file" "/secrets/peer/token" }}{{ end -}}
{{- if .Values.site.name }}{{ $_ := set $own "site" (dict "name" .Values.site.name) }}{{ end -}}
{{- if .Values.site.remote -}}
{{- $site := dict "name" (required "site.name: the name of this site, different from that of site.remote" .Values.site.name) "remote" .Values.site.remote -}}
{{- with .Values.site.tokenSecret }}{{ $_ := set $site "token-file" "/secrets/site/token" }}{{ end -}}
{{- with .Values.site.caSecret }}{{ $_ := set $site "ca" "/secrets/site-ca/ca.crt" }}{{ end -}}
{{- $_ := set $own "site" $site -}}
{{- else if or .Values.site.tokenSecret .Values.site.caSecret -}}
{{- fail "site.remote: the addresses of the other site, required with site.tokenSecret and site.caSecret" -}}
{{- end -}}
{{- if .Values.console.listen -}}
{{- $console := dict "listen" .Values.console.listen -}}
{{- if $tls }}{{ $_ := set $console "tls" (dict "own" true) }}{{ end -}}
{{- $_ := set $own "console" $console -}}
{{- end -}}
{{- if eq .Values.coordinator.type "witness" -}}
{{- $raft := dict "listen" "0.0.0.0:7430" "voters" (splitList "," (include "lockstep.voters" .)) -}}
{{- if $tls }}{{ $_ := set $raft "tls" (dict "cert" "/tls/tls.crt" "key" "/tls/tls.key" "ca" "/tls/ca.crt") }}{{ end -}}
{{- $_ := set $own "coordinator" (dict "type" "raft" "raft" $raft) -}}
{{- end -}}
{{- if include "lockstep.etcd" . -}}
{{- $etcd := .Values.coordinator.etcd -}}
{{- $e := dict -}}
{{- if eq .Values.coordinator.type "etcd" -}}
{{- if not $etcd.endpoints }}{{ fail "coordinator.etcd.endpoints: at least one is required, such as [etcd-0.etcd:2379]" }}{{ end -}}
{{- $prefix := default (printf "/lockstep/%s/%s/" .Release.Namespace (include "lockstep.fullname" .)) $etcd.prefix -}}
{{- $e = dict "endpoints" $etcd.endpoints "prefix" $prefix -}}
{{- $_ := set $own "coordinator" (dict "type" "etcd") -}}
{{- end -}}
{{- with $etcd.username }}{{ $_ := set $e "username" . }}{{ end -}}
{{- with $etcd.passwordSecret }}{{ $_ := set $e "password-file" "/secrets/etcd-password/password" }}{{ end -}}
{{- if $etcd.tlsSecret -}}
{{- $t := dict "ca" "/secrets/etcd-tls/ca.crt" -}}
{{- if $etcd.tlsClientCertificate }}{{ $_ := set $t "cert" "/secrets/etcd-tls/tls.crt" }}{{ $_ := set $t "key" "/secrets/etcd-tls/tls.key" }}{{ end -}}
{{- $_ := set $e "tls" $t -}}
{{- end -}}
{{- if $e }}{{ $_ := set $own.coordinator "etcd" $e }}{{ end -}}
{{- end -}}
{{- if .Values.fleet.pair -}}
{{- if or .Values.site.name .Values.site.remote }}{{ fail "fleet.pair: a pair of a fleet cannot have a replica at another site; remove site or fleet.pair" }}{{ end -}}
{{- $fleet := dict "pair" .Values.fleet.pair -}}
{{- with .Values.fleet.prefix }}{{ $_ := set $fleet "prefix" . }}{{ end -}}
{{- with .Values.fleet.tokenSecret }}{{ $_ := set $fleet "token-file" "/secrets/fleet/token" }}{{ end -}}
{{- with .Values.fleet.endpoints }}{{ $_ := set $fleet "endpoints" . }}{{ end -}}
{{- if and (eq .Values.coordinator.type "witness") (not .Values.fleet.endpoints) }}{{ fail "fleet.endpoints: required with coordinator.type witness, such as [etcd-0.etcd:2379]" }}{{ end -}}
{{- $labels := list -}}
{{- range $key, $value := .Values.fleet.labels }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- if $labels }}{{ $_ := set $fleet "labels" $labels }}{{ end -}}
{{- $_ := set $own "fleet" $fleet -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end -}}

{{/* Mounted Secrets: a list of name, Secret and directory. */}}
{{- define "lockstep.mounts" -}}
{{- if ne .Values.tls.mode "none" }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- if .Values.peerToken.secretName }}
- {name: peer, mountPath: /secrets/peer, readOnly: true}
{{- end }}
{{- if .Values.site.tokenSecret }}
- {name: site, mountPath: /secrets/site, readOnly: true}
{{- end }}
{{- if and .Values.fleet.pair .Values.fleet.tokenSecret }}
- {name: fleet, mountPath: /secrets/fleet, readOnly: true}
{{- end }}
{{- if .Values.site.caSecret }}
- {name: site-ca, mountPath: /secrets/site-ca, readOnly: true}
{{- end }}
{{- if .Values.metrics.tokenSecret }}
- {name: metrics-token, mountPath: /secrets/metrics, readOnly: true}
{{- end }}
{{- if include "lockstep.etcd" . }}
{{- if .Values.coordinator.etcd.passwordSecret }}
- {name: etcd-password, mountPath: /secrets/etcd-password, readOnly: true}
{{- end }}
{{- if .Values.coordinator.etcd.tlsSecret }}
- {name: etcd-tls, mountPath: /secrets/etcd-tls, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "lockstep.volumes" -}}
{{- if ne .Values.tls.mode "none" }}
- name: tls
  secret: {secretName: {{ include "lockstep.tlsSecret" . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.peerToken.secretName }}
- name: peer
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.site.tokenSecret }}
- name: site
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.fleet.pair .Values.fleet.tokenSecret }}
- name: fleet
  secret: {secretName: {{ .Values.fleet.tokenSecret }}, defaultMode: 0440}
{{- end }}
{{- with .Values.site.caSecret }}
- name: site-ca
  secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}], defaultMode: 0440}
{{- end }}
{{- with .Values.metrics.tokenSecret }}
- name: metrics-token
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if include "lockstep.etcd" . }}
{{- with .Values.coordinator.etcd.passwordSecret }}
- name: etcd-password
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.coordinator.etcd.tlsSecret }}
- name: etcd-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end -}}

{{- define "lockstep.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "lockstep.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* At most one of the nodes and the witness on each machine. */}}
{{- define "lockstep.affinity" -}}
podAntiAffinity:
{{- if eq .Values.antiAffinity "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "lockstep.selector" . | nindent 10 }}
        matchExpressions: [{key: app.kubernetes.io/component, operator: In, values: [node, witness]}]
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "lockstep.selector" . | nindent 12 }}
          matchExpressions: [{key: app.kubernetes.io/component, operator: In, values: [node, witness]}]
{{- end }}
{{- end -}}

{{/* Scheduling of a pod. */}}
{{- define "lockstep.placement" -}}
affinity: {{- include "lockstep.affinity" . | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Variables of commands that connect with the nodes' certificate. A node ignores them. */}}
{{- define "lockstep.clientTLS" -}}
{{- if ne .Values.tls.mode "none" -}}
- {name: LOCKSTEP_CLIENT_TLS_CA, value: /tls/ca.crt}
- {name: LOCKSTEP_CLIENT_TLS_CERT, value: /tls/tls.crt}
- {name: LOCKSTEP_CLIENT_TLS_KEY, value: /tls/tls.key}
{{- end }}
{{- end -}}

{{/* Runs a command against the pair with the nodes' certificate. */}}
{{- define "lockstep.testContainer" -}}
image: {{ include "lockstep.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: {{- toYaml .args | nindent 2 }}
env:
  - {name: LOCKSTEP_ADDR, value: {{ include "lockstep.addresses" .root | quote }}}
  {{- include "lockstep.clientTLS" .root | nindent 2 }}
resources:
  limits: {memory: 64Mi}
securityContext: {{- include "lockstep.containerSecurity" .root | nindent 2 }}
{{- if ne .root.Values.tls.mode "none" }}
volumeMounts:
  - {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end -}}
