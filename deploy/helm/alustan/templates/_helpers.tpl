{{- define "alustan.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* Prefix of object names: the name of the release, followed by the name of the chart unless it contains it. */ -}}
{{- define "alustan.fullname" -}}
{{- $name := include "alustan.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Name of the Deployment, the Service and the Roles. */ -}}
{{- define "alustan.controller" -}}
{{ include "alustan.fullname" . }}-controller
{{- end }}

{{- define "alustan.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "alustan.controller" .) }}
{{- end }}

{{- /* Labels that select the pods of the operator. */ -}}
{{- define "alustan.selector" -}}
app.kubernetes.io/name: {{ include "alustan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- /* Labels that select the pods of the page. */ -}}
{{- define "alustan.page.selector" -}}
app.kubernetes.io/name: {{ include "alustan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: page
{{- end }}

{{- /* Labels of all objects. */ -}}
{{- define "alustan.labels" -}}
app.kubernetes.io/name: {{ include "alustan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "alustan.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /*
Text of a file that is shared with kustomize (copied from deploy/ by `cargo xtask gen`), with the namespace, the ServiceAccount and the
names of this release.
*/ -}}
{{- define "alustan.file" -}}
{{- $text := .context.Files.Get .file | replace "alustan-system:alustan-controller" "%ACCOUNT%" -}}
{{- $text = replace "alustan-system" "%NAMESPACE%" $text -}}
{{- $text = regexReplaceAll "\\balustan-" $text (printf "%s-" (include "alustan.fullname" .context)) -}}
{{- $text = replace "%ACCOUNT%" (printf "%%NAMESPACE%%:%s" (include "alustan.serviceAccount" .context)) $text -}}
{{- replace "%NAMESPACE%" .context.Release.Namespace $text -}}
{{- end }}

{{- /* Objects of such a file, with the labels of the release. Policies apply to the watched namespaces. */ -}}
{{- define "alustan.objects" -}}
{{- $labels := include "alustan.labels" .context | fromYaml -}}
{{- range splitList "\n---\n" (include "alustan.file" .) }}
{{- $object := fromYaml . }}
{{- $_ := set $object.metadata "labels" (merge (dict) ($object.metadata.labels | default dict) ($.labels | default dict) $labels) }}
{{- if $.namespace }}
{{- $_ := set $object.metadata "namespace" $.namespace }}
{{- end }}
{{- if and $.context.Values.watchNamespaces (eq $object.kind "ValidatingAdmissionPolicyBinding") }}
{{- $watched := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" $.context.Values.watchNamespaces }}
{{- $_ := set $object.spec "matchResources" (dict "namespaceSelector" (dict "matchExpressions" (list $watched))) }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
