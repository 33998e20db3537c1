#!/usr/bin/env bash
# Writes a release: images, archives, chart, bills of materials, licences and checksums. `just dist` runs it.
#
#   dist.sh [--platform amd64|arm64]... [--program FILE]... [--repository NAME] [--out FOLDER]
#
# --platform builds the program for a platform (by default that of this machine); --program takes a static program that is
# already built. --repository names the image, as in registry.example.com/platform/pillion. --out (dist) must be empty or
# contain a release only, which is replaced.
#
# All times are the commit's, or SOURCE_DATE_EPOCH. So two runs with the same commit and compiler write the same bytes.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"
tools=services/testkit/tools
fail() { echo "error: $*" >&2 && exit 1; }

platforms=() programs=() repository=pillion out=dist
while [ $# -gt 0 ]; do
  case $1 in
    --platform) platforms+=("$2") ;;
    --program) programs+=("$2") ;;
    --repository) repository=$2 ;;
    --out) out=$2 ;;
    *) fail "unknown option $1" ;;
  esac
  shift 2
done
[ ${#platforms[@]} -gt 0 ] || [ ${#programs[@]} -gt 0 ] || platforms=("$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')")

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
revision=$(git rev-parse --verify --quiet HEAD || true)
dirty=
[ -z "$revision" ] || [ -z "$(git status --porcelain)" ] || dirty=-dirty
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
[ -n "$SOURCE_DATE_EPOCH" ] || fail "the time of the release is unknown: set SOURCE_DATE_EPOCH, or use a clone of the repository"
export SOURCE_DATE_EPOCH
work=$(mktemp --directory)
trap 'rm -rf "$work"; rm -f "$root"/services/*/dist-sbom.json' EXIT

target_of() { # ARCHITECTURE
  case $1 in
    amd64) echo x86_64-unknown-linux-gnu ;;
    arm64) echo aarch64-unknown-linux-gnu ;;
    *) fail "images are not built for $1; use amd64 or arm64" ;;
  esac
}

linker_of() { # ARCHITECTURE
  local processor
  processor=$(target_of "$1" | cut -d- -f1)
  if [ "$processor" = "$(uname -m)" ]; then echo cc; else echo "$processor-linux-gnu-gcc"; fi
}

# Prints the architecture of a static program, and fails if the program is not static.
architecture_of() { # PROGRAM
  local headers
  headers=$(LC_ALL=C readelf --file-header --program-headers --dynamic --wide "$1" 2>/dev/null) || fail "$1 is not an ELF program"
  ! grep -qE 'INTERP|\(NEEDED\)' <<<"$headers" || fail "$1 is not static: build it with +crt-static"
  case $headers in
    *X86-64*) echo amd64 ;;
    *AArch64*) echo arm64 ;;
    *) fail "$1 is for a processor other than amd64 and arm64" ;;
  esac
}

# Builds the program without the build machine's paths, and prints its path.
build() { # ARCHITECTURE
  local target linker variable
  target=$(target_of "$1") linker=$(linker_of "$1")
  if ! command -v "$linker" >/dev/null || [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
    fail "no compiler for $target: run \`rustup target add $target\` and install $linker"
  fi
  variable=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$target")
  env --unset RUSTFLAGS "${variable}_LINKER=$linker" "PILLION_REVISION=$revision$dirty" \
    "${variable}_RUSTFLAGS=-Ctarget-feature=+crt-static --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$PWD=/pillion" \
    cargo build --locked --profile dist --target "$target" --package pillion >&2
  echo "$(cargo metadata --locked --no-deps --format-version 1 | jq --raw-output .target_directory)/$target/dist/pillion"
}

glibc_of() { # ARCHITECTURE
  "$(linker_of "$1")" -dM -E -include features.h -x c /dev/null 2>/dev/null |
    sed -n 's/^#define __GLIBC__ //p; s/^#define __GLIBC_MINOR__ //p' | paste -sd .
}

# Writes the bill of materials of a program. cargo-cyclonedx lists the crates of the whole workspace; only those that cargo
# tree lists for the program are kept.
sbom() { # ARCHITECTURE PROGRAM OUT
  local target unknown
  target=$(target_of "$1")
  cargo cyclonedx --quiet --manifest-path services/pillion/Cargo.toml --format json --spec-version 1.5 --target "$target" \
    --no-build-deps --override-filename dist-sbom
  cargo tree --locked --package pillion --target "$target" --edges normal,no-proc-macro --prefix none --format '{p}' |
    sed -n 's/^\([^ ]*\) v\([^ ]*\).*/\1 \2/p' | sort -u >"$work/linked"
  jq --rawfile linked "$work/linked" --arg rust "$rust" --arg glibc "$(glibc_of "$1")" --arg revision "$revision$dirty" \
    --arg sum "$(sha256sum "$2" | cut -d' ' -f1)" --arg architecture "$1" '
    def runtime($name; $version; $licence; $cpe): {type: "library", "bom-ref": "\($name)@\($version)", name: $name,
      version: $version, scope: "required", licenses: [{expression: $licence}], cpe: "cpe:2.3:a:\($cpe):\($version):*:*:*:*:*:*:*"};
    ($linked | split("\n")) as $linked
    | .components |= map(select("\(.name) \(.version)" | IN($linked[])))
    | ([.metadata.component, .components[]] | map(."bom-ref")) as $refs
    | .dependencies |= map(select(.ref | IN($refs[])) | if .dependsOn then .dependsOn |= map(select(IN($refs[]))) else . end)
    | .components += [runtime("rust-std"; $rust; "MIT OR Apache-2.0"; "rust-lang:rust")]
    | if $glibc != "" then .components += [runtime("glibc"; $glibc; "LGPL-2.1-or-later"; "gnu:glibc")] else . end
    | .metadata.component.hashes = [{alg: "SHA-256", content: $sum}]
    | .metadata.properties += [{name: "pillion.dev/architecture", value: $architecture}, {name: "pillion.dev/revision", value: $revision}]
    ' services/pillion/dist-sbom.json | sed "s|$PWD/|/pillion/|g" >"$3"
  # Panic messages contain source paths, so the program contains the names of most crates.
  grep --text --only-matching --extended-regexp '/registry/src/[^/]+/[^/]+/' "$2" | cut -d/ -f5 | sort -u >"$work/named" || true
  [ -s "$work/named" ] || fail "$2 names no crate, so its content cannot be checked: use a program that \`just dist\` has built"
  unknown=$(sed 's/ /-/' "$work/linked" | sort | comm -13 - "$work/named")
  [ -z "$unknown" ] || fail "$2 has code of crates that cargo does not list: $unknown"
}

pack() { # OUT FOLDER NAME: packs FOLDER/NAME
  tar --create --directory "$2" --format gnu --sort name --mtime "@$SOURCE_DATE_EPOCH" --owner 0 --group 0 --numeric-owner \
    --mode u=rwX,go=rX -- "$3" | gzip --best --no-name >"$1"
}

# Removes the previous release from the folder; fails if the folder contains anything else.
empty() {
  local listed found
  mkdir -p "$out"
  found=$(find "$out" -mindepth 1 -printf '%P\n' | LC_ALL=C sort)
  [ -n "$found" ] || return 0
  listed=$(cd "$out" && { [[ $(head -1 README.md) == '# Pillion '* ]] && cut -c67- SHA256SUMS &&
    printf '%s\n' SHA256SUMS SHA256SUMS.sig SHA256SUMS.sigstore.json; } 2>/dev/null) || true
  found=$(LC_ALL=C comm -23 <(echo "$found") <(LC_ALL=C sort -u <<<"$listed"))
  [ -z "$found" ] || fail "$out contains files that do not belong to a release: ${found//$'\n'/, }; nothing was removed; name another folder, or empty this one"
  find "$out" -mindepth 1 -delete
}

empty
for platform in "${platforms[@]}"; do programs+=("$(build "$platform")"); done
declare -A program_of
for program in "${programs[@]}"; do
  architecture=$(architecture_of "$program")
  [ -z "${program_of[$architecture]:-}" ] || fail "two programs are for $architecture"
  program_of[$architecture]=$program
done
mapfile -t architectures < <(printf '%s\n' "${!program_of[@]}" | sort)

PATH=$("$tools/build.sh" helm crane):$PATH
for tool in cargo-cyclonedx cargo-about; do PATH=$(dirname "$("$tools/prebuilt.sh" $tool)"):$PATH; done
rust=$(rustc --version | cut -d' ' -f2)

licences=$work/licences
mkdir "$licences"
cp LICENSE "$licences"
cp "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" "$licences/RUST-STANDARD-LIBRARY.html"
cargo about generate --locked --fail --manifest-path services/pillion/Cargo.toml --config "$tools/dist/about.toml" "$tools/dist/about.hbs" |
  sed "s/{version}/$version/; s/{rust}/$rust/; s/{glibc}/$(glibc_of "${architectures[0]}")/" |
  cat - "$tools/dist/LGPL-2.1.txt" >"$licences/THIRD-PARTY-LICENCES.txt"
cp "$licences"/* "$out"

home=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
labels=(title=pillion "description=One sidecar injector for a whole Kubernetes cluster" licenses=Apache-2.0 "source=$home" "url=$home"
  "version=$version" "created=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)")
[ -z "$revision" ] || labels+=("revision=$revision$dirty")
labels=("${labels[@]/#/org.opencontainers.image.}")
trees=()
for architecture in "${architectures[@]}"; do
  name=pillion-$version-linux-$architecture
  tree=$work/$architecture
  sbom "$architecture" "${program_of[$architecture]}" "$out/$name.cdx.json"
  install -D --mode 755 "${program_of[$architecture]}" "$work/$name/pillion"
  install --mode 644 "$out/$name.cdx.json" "$work/$name/pillion.cdx.json"
  install -D --mode 644 --target-directory "$work/$name/licences" "$licences"/*
  pack "$out/$name.tar.gz" "$work" "$name"
  cp -a "$work/$name" "$tree"
  chmod 755 "$tree" "$tree/licences"
  # Only commands of the CLI write to /tmp. A replica's file system is read-only.
  mkdir -m 1777 "$tree/tmp"
  trees+=("$architecture=$tree")
  digest=$("$tools/image.sh" "$repository:$version" "$out/$name-image.tar" /pillion "${labels[@]}" -- "$architecture=$tree")
  image=$name-image.tar
done
if [ ${#trees[@]} -gt 1 ]; then
  image=pillion-$version-image.tar
  digest=$("$tools/image.sh" "$repository:$version" "$out/$image" /pillion "${labels[@]}" -- "${trees[@]}")
fi

# The chart of a release names the image of the release. Helm keeps the modification times of files, so they are set to
# `SOURCE_DATE_EPOCH`.
cp -r charts/pillion "$work/chart"
sed -i "s|^  repository: pillion$|  repository: $repository|" "$work/chart/values.yaml"
grep --quiet --line-regexp --fixed-strings "  repository: $repository" "$work/chart/values.yaml" ||
  fail "charts/pillion/values.yaml has no line '  repository: pillion' to set the image of the release in"
find "$work/chart" -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
chart=$out/pillion-$version.tgz
helm package "$work/chart" --destination "$out" --version "$version" --app-version "$version" >/dev/null
cp charts/pillion/crds/pillion.dev.yaml "$out/pillion-$version-crds.yaml"
{
  echo "# Pillion's chart with its default values: kubectl apply --server-side -f FILE"
  printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: pillion-system}\n'
  # Leaves out the hook jobs for upgrades and removal, which only Helm starts at the right time.
  helm template pillion "$chart" --namespace pillion-system --include-crds --no-hooks
} >"$out/pillion-$version-manifests.yaml"
for part in dashboards deploy profiles; do
  mkdir "$work/$part"
  cp -r "$part" "$work/$part/pillion-$version-$part"
  pack "$out/pillion-$version-$part.tar.gz" "$work/$part" "pillion-$version-$part"
done
cp CHANGELOG.md "$out"
source=pillion-$version-source.tar.gz
if [ -n "$revision" ] && [ -z "$dirty" ]; then
  git archive --format tar --prefix "pillion-$version/" HEAD | gzip --best --no-name >"$out/$source"
fi
case $repository in
  *[.:]*/* | localhost/*) registry=$repository ;;
  *) registry=registry.example.com/$repository ;;
esac
joined=$(printf ', %s' "${architectures[@]}")
sed "s|{registry}|$registry|g; s|{version}|$version|g; s|{revision}|${revision:-unknown}$dirty|g; s|{repository}|$repository|g
  s|{digest}|$digest|g; s|{image}|$image|g; s|{platform}|${architectures[0]}|g; s|{platforms}|${joined:2}|g" "$tools/dist/readme.md" |
  { if [ -f "$out/$source" ]; then cat; else grep --invert-match --fixed-strings "$source"; fi; } >"$out/README.md"

cd "$out"
find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >"$work/sums"
cp "$work/sums" SHA256SUMS
stat --format '%12s %n' -- *
pwd
