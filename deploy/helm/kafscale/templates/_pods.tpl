{{/* What the pods of brokers and of the console have in common; it satisfies the Pod Security Standard "restricted". */}}
{{- define "kafscale.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kafscale.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "kafscale.probed" -}}
port: admin
scheme: {{ ternary "HTTPS" "HTTP" .Values.tls.enabled }}
{{- end -}}

{{- define "kafscale.volumes" -}}
{{- if not .Values.persistence.enabled }}
- name: data
  emptyDir: {}
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
- name: client
  configMap: {name: {{ include "kafscale.fullname" . }}-client}
{{- end }}
{{- if include "kafscale.hasPasswords" . }}
- name: passwords
  secret: {secretName: {{ .Values.sasl.keySecret }}, defaultMode: 0440}
{{- end }}
{{- if .Values.admin.tokenSecret }}
- name: admin
  secret: {secretName: {{ .Values.admin.tokenSecret }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
