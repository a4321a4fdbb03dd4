{{/* The name of all objects: the release's, with the chart's unless it is in it. */}}
{{- define "kafscale.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The headless Service, which gives each broker a name. */}}
{{- define "kafscale.headless" -}}
{{ include "kafscale.fullname" . }}-brokers
{{- end -}}

{{- define "kafscale.domain" -}}
{{ include "kafscale.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "kafscale.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kafscale.labels" -}}
{{ include "kafscale.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "kafscale.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kafscale.fullname" .) }}
{{- end -}}

{{- define "kafscale.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "kafscale.clientsProtocol" -}}
{{- if .Values.sasl.enabled }}SASL_SSL{{ else if .Values.tls.enabled }}SSL{{ else }}PLAINTEXT{{ end -}}
{{- end -}}

{{- define "kafscale.brokersProtocol" -}}
{{- if .Values.tls.enabled }}SSL{{ else }}PLAINTEXT{{ end -}}
{{- end -}}

{{/* Passwords are kept, so that they need a key. */}}
{{- define "kafscale.hasPasswords" -}}
{{- if and .Values.sasl.enabled (without .Values.sasl.mechanisms "OAUTHBEARER") }}true{{ end -}}
{{- end -}}

{{- define "kafscale.listeners" -}}
BROKERS=0.0.0.0:9093,CLIENTS=0.0.0.0:9092
{{- if .Values.external.enabled }},EXTERNAL=0.0.0.0:9094{{ end -}}
{{- end -}}

{{- define "kafscale.protocols" -}}
BROKERS={{ include "kafscale.brokersProtocol" . }},CLIENTS={{ include "kafscale.clientsProtocol" . }}
{{- if .Values.external.enabled }},EXTERNAL={{ include "kafscale.clientsProtocol" . }}{{ end -}}
{{- end -}}

{{/* The addresses that a broker tells. Kubernetes replaces $(…) in each pod. */}}
{{- define "kafscale.advertised" -}}
BROKERS=$(POD_NAME).{{ include "kafscale.domain" . }}:9093,CLIENTS=$(POD_NAME).{{ include "kafscale.domain" . }}:9092
{{- if .Values.external.enabled }},EXTERNAL={{ include "kafscale.externalAddress" . }}{{ end -}}
{{- end -}}

{{- define "kafscale.externalAddress" -}}
{{- $index := "$(KAFSCALE_BROKER_ID)" -}}
{{- with .Values.external -}}
{{- if eq .type "NodePort" -}}
{{ .host | default "$(HOST_IP)" | replace "{index}" $index }}:{{ div .firstNodePort 10 }}{{ $index }}
{{- else -}}
{{ .host | replace "{index}" $index }}:{{ .port }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The options of the broker, as a map by their names. */}}
{{- define "kafscale.options" -}}
{{- $options := dict
  "listen" (include "kafscale.listeners" .)
  "listener-security-protocol" (include "kafscale.protocols" .)
  "advertised-listener" (include "kafscale.advertised" .)
  "inter-broker-listener" "BROKERS"
  "admin-listen" "0.0.0.0:9644"
  "data-dir" "/data"
  "console" "none"
  "store" .Values.store.url
  "shutdown-timeout" (printf "%ds" (int .Values.shutdownTimeoutSeconds)) -}}
{{- with .Values.store.endpoint }}{{ $_ := set $options "s3-endpoint" . }}{{ end -}}
{{- with .Values.store.region }}{{ $_ := set $options "s3-region" . }}{{ end -}}
{{- if .Values.admin.tokenSecret }}{{ $_ := set $options "admin-token-file" "/etc/kafscale/admin/token" }}{{ end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $options "ssl-certificate-file" "/etc/kafscale/tls/tls.crt" -}}
{{- $_ := set $options "ssl-key-file" "/etc/kafscale/tls/tls.key" -}}
{{- $_ := set $options "ssl-client-ca-file" "/etc/kafscale/tls/ca.crt" -}}
{{- $_ := set $options "ssl-client-auth" (ternary "required" .Values.tls.clientAuth .Values.sasl.enabled) -}}
{{- $_ := set $options "inter-broker-config" "/etc/kafscale/client/client.properties" -}}
{{- $_ := set $options "admin-ssl" "true" -}}
{{- if eq (.Values.config.authorizer | default "none") "acl" }}{{ $_ := set $options "super-user" .Values.tls.brokerUser }}{{ end -}}
{{- end -}}
{{- if .Values.sasl.enabled }}{{ $_ := set $options "sasl-mechanisms" (join "," .Values.sasl.mechanisms) }}{{ end -}}
{{- if include "kafscale.hasPasswords" . }}{{ $_ := set $options "secret-key-file" "/etc/kafscale/passwords/secret.key" }}{{ end -}}
{{- range $name, $value := .Values.config -}}
{{- $text := kindIs "slice" $value | ternary (join "," ($value | toStrings)) (kindIs "float64" $value | ternary (int64 $value | toString) (toString $value)) -}}
{{- $_ := set $options $name (hasKey $options $name | ternary (printf "%s,%s" (get $options $name) $text) $text) -}}
{{- end -}}
{{- toYaml $options -}}
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "kafscale.check" -}}
{{- with .Values -}}
{{- $_ := required "store.url is missing: give the bucket, --set store.url=s3://BUCKET" .store.url -}}
{{- if and .tls.enabled (not .tls.secretName) }}{{ fail "tls.enabled needs tls.secretName: a Secret with tls.crt, tls.key and ca.crt" }}{{ end -}}
{{- if and .sasl.enabled (not .tls.enabled) }}{{ fail "sasl.enabled needs tls.enabled: logins are sent over TLS only" }}{{ end -}}
{{- if and (include "kafscale.hasPasswords" $) (not .sasl.keySecret) }}{{ fail "sasl.enabled needs sasl.keySecret: a Secret with a key secret.key (openssl rand -hex 32)" }}{{ end -}}
{{- if eq (.config.authorizer | default "none") "acl" -}}
{{- if not (or .sasl.enabled (and .tls.enabled (eq .tls.clientAuth "required"))) }}{{ fail "config.authorizer=acl needs tls.enabled, and sasl.enabled or tls.clientAuth=required: brokers and clients have no names otherwise" }}{{ end -}}
{{- end -}}
{{- if and (eq (.config.durability | default "wal") "wal") (not .persistence.enabled) }}{{ fail "config.durability=wal needs persistence.enabled=true: acknowledged records are on the disk alone" }}{{ end -}}
{{- if and (gt (int .replicaCount) 1) (ne (index .config "several-brokers" | toString) "true") }}{{ fail "replicaCount above 1 needs config.several-brokers=true" }}{{ end -}}
{{- if and .console.enabled .tls.enabled (not .sasl.enabled) (eq .tls.clientAuth "required") }}{{ fail "console.enabled has no certificate for tls.clientAuth=required: use sasl.enabled, or tls.clientAuth=requested" }}{{ end -}}
{{- if .external.enabled -}}
{{- if eq .external.type "NodePort" -}}
{{- if or (mod (int .external.firstNodePort) 10) (gt (int .replicaCount) 10) }}{{ fail "external.type=NodePort needs external.firstNodePort divisible by 10, and at most 10 brokers" }}{{ end -}}
{{- else if not (or (contains "{index}" .external.host) (eq (int .replicaCount) 1)) }}{{ fail "external.type=LoadBalancer needs external.host with {index} in it, such as broker-{index}.example.com" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
