{{/*
The selected shipped profiles and the profiles that they extend, as {"items": [object, ...], "lookups": [{group, resource}, ...]}.
Defaults of parameters from the values apply to all profiles of the same file that declare the parameter.
*/}}
{{- define "pillion.profiles" -}}
{{- $root := . -}}
{{- $asked := dict -}}
{{- if kindIs "slice" .Values.profiles -}}
  {{- range .Values.profiles }}{{ $_ := set $asked . dict }}{{ end -}}
{{- else -}}
  {{- range $name, $settings := (default dict .Values.profiles) -}}
    {{- if ne (toString (dig "enabled" true (default dict $settings))) "false" }}{{ $_ := set $asked $name (default dict $settings) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $items := list -}}{{- $lookups := list -}}
{{- if $asked -}}
  {{- /* The objects of each file, and the file of each profile. */ -}}
  {{- $files := dict -}}{{- $home := dict -}}
  {{- range $path, $_ := .Files.Glob "files/profiles/*.yaml" -}}
    {{- $folder := trimSuffix ".yaml" (base $path) -}}
    {{- $objects := list -}}
    {{- range splitList "\n---\n" (printf "\n%s" ($root.Files.Get $path)) -}}
      {{- $object := fromYaml . -}}
      {{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end -}}
      {{- if $object -}}
        {{- $objects = append $objects $object -}}
        {{- if eq $object.kind "ClusterInjectionProfile" }}{{ $_ := set $home $object.metadata.name $folder }}{{ end -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $files $folder $objects -}}
  {{- end -}}
  {{- range $name, $_ := $asked -}}
    {{- if not (hasKey $files $name) }}{{ fail (printf "profiles: there is no shipped profile %q; there are: %s" $name (keys $files | sortAlpha | join ", ")) }}{{ end -}}
  {{- end -}}
  {{- /* Adds the files of extended profiles. A chain of them is at most as long as the number of files. */ -}}
  {{- $wanted := deepCopy $asked -}}
  {{- range $_, $_ := $files -}}
    {{- range $name := keys $wanted -}}
      {{- range index $files $name -}}
        {{- $parent := dig "extends" "name" "" (default dict .spec) -}}
        {{- if $parent -}}
          {{- $folder := get $home $parent -}}
          {{- if and $folder (not (hasKey $wanted $folder)) }}{{ $_ := set $wanted $folder dict }}{{ end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- range $name := keys $wanted | sortAlpha -}}
    {{- $parameters := dig "parameters" dict (get $wanted $name) -}}
    {{- $declared := dict -}}
    {{- range $object := index $files $name -}}
      {{- range $parameter := (dig "spec" "parameters" list $object) -}}
        {{- $_ := set $declared $parameter.name true -}}
        {{- if hasKey $parameters $parameter.name }}{{ $_ := set $parameter "default" (get $parameters $parameter.name) }}{{ end -}}
      {{- end -}}
      {{- range (dig "spec" "lookups" list $object) }}{{ $lookups = append $lookups (dict "group" (default "" .group) "resource" .resource) }}{{ end -}}
      {{- $items = append $items $object -}}
    {{- end -}}
    {{- range $parameter := keys $parameters -}}
      {{- if not (hasKey $declared $parameter) }}{{ fail (printf "profiles.%s.parameters: there is no parameter %q; there are: %s" $name $parameter (keys $declared | sortAlpha | join ", ")) }}{{ end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson (dict "items" $items "lookups" $lookups) -}}
{{- end }}
