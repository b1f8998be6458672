{{- define "lowkey.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lowkey.labels" -}}
app.kubernetes.io/name: lowkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lowkey.domain" -}}
{{ include "lowkey.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "lowkey.formSecret" -}}
{{- .Values.formSecret.existingSecret | default (printf "%s-form" (include "lowkey.name" .)) -}}
{{- end -}}

{{/* The nodes that found the cluster, by name: lowkey-0.lowkey.NAMESPACE.svc.cluster.local:9000,… */}}
{{- define "lowkey.founders" -}}
{{- $founders := list -}}
{{- range $number := until (int .Values.clusterOf) -}}
{{- $founders = append $founders (printf "%s-%d.%s:9000" (include "lowkey.name" $) $number (include "lowkey.domain" $)) -}}
{{- end -}}
{{- join "," $founders -}}
{{- end -}}
