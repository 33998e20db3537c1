#!/usr/bin/env bash
# Packs one folder per platform into a container image: an OCI layout in a tar archive. Prints the image's digest.
#
#   image.sh REFERENCE OUT ENTRYPOINT [LABEL=VALUE...] -- ARCHITECTURE=FOLDER...
#
# crane assembles the image in a registry on the loopback interface, which stops with this script. Every file and the image
# have the time SOURCE_DATE_EPOCH (0 by default), so the same files give the same bytes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
reference=$1 out=$(realpath --canonicalize-missing "$2") entrypoint=$3
shift 3
labels=() annotations=()
while [ "$1" != -- ]; do
  labels+=(--label "$1") annotations+=(--annotation "$1")
  shift
done
shift
epoch=${SOURCE_DATE_EPOCH:-0}
created=$(date --utc --date "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
PATH=$("$here/build.sh" crane):$PATH
work=$(mktemp --directory)
registry=
trap '[ -z "$registry" ] || kill "$registry"; rm -rf "$work"' EXIT

pack() { # OUT FOLDER: packs the content of a folder
  (cd "$2" && tar --create --file "$1" --format gnu --sort name --mtime "@$epoch" --owner 0 --group 0 --numeric-owner -- *)
}

quietly() { "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2 && return 1; }; }

: >"$work/log"
crane registry serve --address 127.0.0.1:0 --disk "$work" 2>"$work/log" &
registry=$!
until port=$(sed -n 's/.*serving on port //p' "$work/log") && [ -n "$port" ]; do
  kill -0 "$registry" 2>/dev/null || { cat "$work/log" >&2 && exit 1; }
  sleep 0.05
done
image=127.0.0.1:$port/image

platforms=()
for platform in "$@"; do
  architecture=${platform%%=*} folder=${platform#*=}
  name=$image:$architecture
  pack "$work/layer.tar" "$folder"
  quietly crane append --oci-empty-base --new_layer "$work/layer.tar" --new_tag "$name"
  # The user is numeric, because kubelets cannot check runAsNonRoot for a user name.
  quietly crane mutate "$name" --tag "$name" --set-platform "linux/$architecture" --entrypoint "$entrypoint" --user 65532:65532 \
    --workdir / --env PATH=/ "${labels[@]}" "${annotations[@]}"
  crane config "$name" | sed "s/\"created\":\"0001-01-01T00:00:00Z\"/\"created\":\"$created\"/g" |
    quietly crane edit config "$name" --tag "$name"
  platforms+=(--manifest "$name")
done
if [ $# -eq 1 ]; then
  type=application/vnd.oci.image.manifest.v1+json
else
  type=application/vnd.oci.image.index.v1+json
  name=$image:all
  quietly crane index append "${platforms[@]}" --tag "$name"
fi
crane pull --format oci "$name" "$work/layout"
digest=$(crane digest "$name")
blob=blobs/${digest/://}

# containerd stores images under names with a registry. Kubelets add Docker Hub to a name without a registry.
case $reference in
  *[.:]*/* | localhost/*) qualified=$reference ;;
  */*) qualified=docker.io/$reference ;;
  *) qualified=docker.io/library/$reference ;;
esac
# containerd and Docker read the image's name from the first annotation, skopeo and Podman from the second.
cat >"$work/layout/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"$type",
"digest":"$digest","size":$(stat --format %s "$work/layout/$blob"),"annotations":{"io.containerd.image.name":"$qualified",
"org.opencontainers.image.ref.name":"${reference##*:}"}}]}
JSON
if [ $# -eq 1 ]; then
  # The manifest for kind and for Docker before version 25.
  mapfile -t blobs < <(grep --only-matching 'sha256:[0-9a-f]*' "$work/layout/$blob" | sed 's|:|/|')
  echo "[{\"Config\":\"blobs/${blobs[0]}\",\"RepoTags\":[\"$reference\"],\"Layers\":[\"blobs/${blobs[1]}\"]}]" >"$work/layout/manifest.json"
fi
chmod -R u=rwX,go=rX "$work/layout"
pack "$out" "$work/layout"
echo "$digest"
