{{- define "flambeau.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "flambeau.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "flambeau.labels" -}}
{{ include "flambeau.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: server
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "flambeau.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Folder of a model in the volume. */}}
{{- define "flambeau.modelPath" -}}
{{- if and .hub .path }}{{ fail (printf "the model %s has both a path and a hub name" .name) }}{{ end }}
{{- if .path }}/models/{{ .path }}{{ else if .hub }}/models/{{ .hub | replace "/" "--" | replace "@" "--" }}{{ else }}{{ fail (printf "the model %s has neither a path nor a hub name" .name) }}{{ end }}
{{- end }}

{{/* "yes" if an init container pulls models. */}}
{{- define "flambeau.pulls" -}}
{{- range .Values.models }}{{ if .hub }}yes{{ end }}{{ end }}
{{- end }}

{{- define "flambeau.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
