# Everything that is done with this repository.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Errors of the tests say in words where they come from; the stack of each `?` would only bury that.
export RUST_LIB_BACKTRACE := "0"

# Programs in Go collect their garbage less often: processors are what tests and builds lack.
export GOGC := "400"

# Builds for measuring and for shipping.
release := "--release --locked"
nextest := "services/testkit/tools/prebuilt.sh cargo-nextest"

# Lists the recipes
default:
    @just --list --unsorted

# Builds target/release/pillion
build:
    cargo build {{ release }} -p pillion

# All checks and tests, on real parts; builds or fetches what they need
test:
    #!/usr/bin/env bash
    set -euo pipefail
    # The Go programs are built beside the Rust programs, at a lower priority: the tests need both.
    nice "{{ just_executable() }}" tools & tools=$!
    trap 'kill "$tools" 2>/dev/null || true' EXIT
    "{{ just_executable() }}" fmt-check lint doc lint-workflows
    cargo test --locked --workspace --no-run
    trap - EXIT
    wait "$tools"
    "{{ just_executable() }}" generated run
    if services/testkit/tools/chromium.sh --if-there >/dev/null 2>&1; then
        "{{ just_executable() }}" browser
        services/testkit/tools/not-run.sh page_works_in_a_browser
    else
        services/testkit/tools/not-run.sh
    fi

# The tests alone: `just run`, or those that a nextest filter selects, as in `just run -p pillion-engine`
run *arguments:
    # Two tests for each processor: those with a control plane wait more than they compute.
    "$({{ nextest }})" nextest run --locked --workspace --test-threads $((2 * $(nproc))) {{ arguments }}

# The tests against a real control plane; FILTER is a part of their names. KUBERNETES=1.34 (1.35, 1.36) runs them on another version
e2e filter="":
    services/testkit/tools/e2e.sh {{ filter }}

# Tests the playground's page in Chromium, which is fetched from Debian's packages where it is not installed
browser:
    services/testkit/tools/chromium.sh >/dev/null
    "$({{ nextest }})" nextest run --locked --workspace --test integration --run-ignored only page_works_in_a_browser

# Writes the pictures of the playground in docs/images, by a browser
screenshots:
    services/testkit/tools/chromium.sh >/dev/null
    "$({{ nextest }})" nextest run --locked --workspace --test integration --run-ignored only writes_small_screenshots

# Runs the cases of the injectors' own projects that are in DIR (eks/, istio/, linkerd/, otel/, tumblr/); the last line is one JSON object
peers dir=env("PILLION_PEERS", ""):
    PILLION_PEERS="$(realpath '{{ dir }}')" services/testkit/tools/result.sh \
        --workspace --test integration --run-ignored only --no-capture peers::the_peers_cases

# Builds the programs that the tests drive (a control plane, Prometheus, k6, a collector, helm, kubeconform) once into a cache outside the checkout, and unpacks a browser there
tools:
    @services/testkit/tools/build.sh
    @timeout 300 services/testkit/tools/chromium.sh >/dev/null || echo "no browser: the test of the playground's page will not run" >&2

# Writes everything that is generated
generate:
    services/testkit/tools/generate.sh

alias chart := generate
alias manifests := generate
alias dashboards := generate

# Fails if a generated file is out of date
generated:
    services/testkit/tools/generate.sh --check

# Checks the format
fmt-check:
    cargo fmt --all --check

# Checks the lints
lint:
    cargo clippy --locked --workspace --all-targets -- -D warnings

# Checks the documentation's links
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet

# Checks licences, sources, duplicates and security advisories of the dependencies
audit:
    PATH="$(dirname "$(services/testkit/tools/prebuilt.sh cargo-deny)"):$PATH" cargo deny --locked check

alias deny := audit

# Floor and webhook side by side; the last line is one JSON object
bench *arguments:
    cargo build {{ release }} -p pillion -p pillion-testkit --bins
    cargo build {{ release }} -p pillion-engine --example instructions
    cargo run {{ release }} --quiet -p pillion-testkit --bin bench -- {{ arguments }}

# A script of load-tests/ against a webhook that runs (PILLION_URL, SSL_CERT_FILE, ...: see its README); k6 is built once
load script="smoke":
    PATH="$(services/testkit/tools/build.sh k6):$PATH" GODEBUG=http2client=0 K6_AUTO_EXTENSION_RESOLUTION=false \
        k6 run --no-usage-report --quiet load-tests/{{ script }}.js

# COUNT rotations of the certificate authority while pods are created; the last line is one JSON object
rotate count="100":
    PILLION_ROTATIONS={{ count }} services/testkit/tools/result.sh --workspace --test e2e --no-capture rotation::rotations_lose_no_pod

# Runs the attacks that once crashed, starved or bypassed Pillion; the last line is one JSON object
attacks:
    #!/usr/bin/env bash
    set -uo pipefail
    result=$(services/testkit/tools/result.sh --workspace -E 'test(/(^|::)(attacks|pod_resources|sharing|unfinished)::/)')
    status=$?
    [[ $result =~ \"passed\":([0-9]+),\"failed\":([0-9]+) ]]
    echo "{\"attacks\":$((BASH_REMATCH[1] + BASH_REMATCH[2])),\"failed\":${BASH_REMATCH[2]}}"
    exit "$status"

# COUNT rolling restarts of all replicas while pods are created; the last line is one JSON object
restart count="20":
    PILLION_RATE=200 PILLION_ROLLS={{ count }} services/testkit/tools/result.sh --workspace --test e2e --no-capture rolling::rolling_restarts_lose_no_pod

# SECONDS of everything that a replica meets in a year; the last line is one JSON object
soak seconds="600":
    PILLION_SOAK_SECONDS={{ seconds }} services/testkit/tools/result.sh --workspace --test integration --no-capture soak::

# The end-to-end tests on every Kubernetes version, and long runs of what `just test` does shortly, or only the named PARTS of them; the last line is one JSON object
nightly *parts: tools
    services/testkit/tools/nightly.sh {{ parts }}

# A control plane on this machine's loopback to play with: up prints KUBECONFIG=..., down ends it
control-plane action: tools
    cargo run --locked --quiet -p pillion-testkit --bin control-plane -- {{ action }}

# A real cluster of one node, by kind where there is a container engine: up [NAME] starts it or goes on with it, and prints KUBECONFIG=...; also restart [NAME], down [NAME], load NAME IMAGE.tar
cluster *arguments:
    cargo run --locked --quiet -p pillion-testkit --bin cluster -- {{ arguments }}

# The tests on such a cluster; FILTER is a part of their names; the last line is one JSON object
node filter="": tools (cluster "build")
    services/testkit/tools/result.sh --workspace --test node --run-ignored only --no-capture {{ filter }}

# Fuzzes TARGET (review_bytes, profile_yaml, profile_and_pod, expression or record) for so many seconds, with a nightly toolchain
fuzz target seconds="600": fuzz-tools
    mkdir -p fuzz/target/found/{{ target }}
    cargo +nightly fuzz run {{ target }} fuzz/target/found/{{ target }} fuzz/corpus/{{ target }} -- -max_total_time={{ seconds }} -timeout=10 -rss_limit_mb=2048 -max_len=65536

# Compiles the fuzz targets with the toolchain of the repository, so that they keep fitting
fuzz-check:
    cargo check --locked --manifest-path fuzz/Cargo.toml --bins

fuzz-tools:
    @command -v cargo-fuzz >/dev/null || cargo +nightly install --locked cargo-fuzz@0.13.2

# A release in dist/: images, chart, manifests, command line, bills of materials, licences, checksums (--platform amd64 --platform arm64)
dist *arguments:
    services/testkit/tools/dist.sh {{ arguments }}

# Continuous integration: what .github/workflows calls beside the recipes above

version := `sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml`

# Checks .github/workflows
lint-workflows:
    "$(services/testkit/tools/build.sh actionlint)/actionlint" -shellcheck= -pyflakes=

# Allows user namespaces, which the tests need and Ubuntu's AppArmor forbids
ci-namespaces:
    sudo sysctl --quiet --write kernel.apparmor_restrict_unprivileged_userns=0

# Installs what `just dist --platform arm64` needs on an amd64 Debian or Ubuntu
ci-cross:
    rustup target add aarch64-unknown-linux-gnu
    sudo apt-get update --quiet
    sudo apt-get install --yes --quiet gcc-aarch64-linux-gnu

# Installs the release in dist/ on a cluster that `just cluster up NAME` has started, and checks that a pod is injected
cluster-install name:
    #!/usr/bin/env bash
    set -euo pipefail
    KUBECONFIG=$("{{ just_executable() }}" cluster load {{ name }} dist/pillion-{{ version }}-linux-*-image.tar | sed -n 's/^KUBECONFIG=//p')
    PATH=$(services/testkit/tools/build.sh kubectl helm):$PATH
    export KUBECONFIG PATH
    helm install pillion dist/pillion-{{ version }}.tgz --namespace pillion-system --create-namespace \
        --values deploy/kind/values.yaml --wait --timeout 5m
    kubectl label namespace default pillion.dev/injection=enabled --overwrite
    # The controller registers the webhooks shortly after the replicas are ready.
    for _ in $(seq 60); do
        names=$(kubectl run web --image=registry.example.com/web --dry-run=server --output=jsonpath='{.spec.containers[*].name}' \
            --annotations=sidecar-injector-webhook.morven.me/inject=yes)
        [ "$names" != "web sidecar-nginx" ] || exit 0
        sleep 2
    done
    echo "error: the pod has the containers '$names'; expected 'web sidecar-nginx'" >&2
    exit 1

# The command line for macOS on arm64, as an archive in dist/; runs on such a machine
dist-macos:
    #!/usr/bin/env bash
    set -euo pipefail
    name=pillion-{{ version }}-darwin-arm64
    PILLION_REVISION=$(git rev-parse HEAD) cargo build --locked --profile dist --target aarch64-apple-darwin -p pillion
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p dist "$work/$name"
    cp LICENSE target/aarch64-apple-darwin/dist/pillion "$work/$name"
    tar -czf "dist/$name.tar.gz" -C "$work" "$name"

# Pushes the image and the chart in dist/ to REGISTRY, signs both and the checksums, and prints names and digests; needs skopeo, cosign and a login
publish registry: released
    #!/usr/bin/env bash
    set -euo pipefail
    registry={{ lowercase(registry) }}
    image=$registry/pillion chart=$registry/charts/pillion
    PATH=$(services/testkit/tools/build.sh helm):$PATH
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Archives of other machines were added after `just dist` wrote the checksums.
    (cd dist && find . -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >"$work/sums")
    mv "$work/sums" dist/SHA256SUMS
    skopeo copy --all --preserve-digests --digestfile "$work/image" \
        "oci-archive:dist/pillion-{{ version }}-image.tar" "docker://$image:{{ version }}" >&2
    helm push "dist/pillion-{{ version }}.tgz" "oci://${chart%/*}" 2>&1 | tee "$work/push" >&2
    image_digest=$(cat "$work/image")
    chart_digest=$(sed -n 's/^Digest: //p' "$work/push")
    cosign sign --yes --recursive "$image@$image_digest" >&2
    cosign sign --yes "$chart@$chart_digest" >&2
    cosign sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS >&2
    printf '%s\n' "image_name=$image" "image_digest=$image_digest" "chart_name=$chart" "chart_digest=$chart_digest"

# Creates the release on GitHub with every file in dist/; needs gh and its token
release-page: released
    gh release create "v{{ version }}" --verify-tag --notes-file CHANGELOG.md dist/*

# Fails unless the commit has the tag of the version
[private]
released:
    @git tag --points-at HEAD --list "v{{ version }}" | grep --quiet . || { echo "error: this commit has no tag v{{ version }}" >&2; exit 1; }
