# All tasks of this repository: `just --list` shows them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Disables backtraces in test errors: the messages already name the origin, and would be hard to find among stack frames.
export RUST_LIB_BACKTRACE := "0"

# Makes Go programs collect garbage less often, because tests and builds are limited by CPU time.
export GOGC := "400"

# The cargo flags of benchmarks and releases.
release := "--release --locked"
nextest := "services/testkit/tools/prebuilt.sh cargo-nextest"
pictures := env("XDG_CACHE_HOME", env("HOME", "/tmp") / ".cache") / "pillion/pictures"

# Lists the recipes
default:
    @just --list --unsorted

# Builds target/release/pillion
build:
    cargo build {{ release }} -p pillion

# Runs all checks and tests against real components; builds or fetches the tools that they need
test:
    #!/usr/bin/env bash
    set -euo pipefail
    # The tests need Go programs and Rust programs. Both are built in parallel, the Go programs at a lower priority.
    nice "{{ just_executable() }}" tools & tools=$!
    trap 'kill "$tools" 2>/dev/null || true' EXIT
    "{{ just_executable() }}" fmt-check lint doc
    cargo test --locked --workspace --no-run
    trap - EXIT
    wait "$tools"
    "{{ just_executable() }}" lint-workflows generated run
    if services/testkit/tools/chromium.sh --if-there >/dev/null 2>&1; then
        "{{ just_executable() }}" browser
        services/testkit/tools/not-run.sh page_works_in_a_browser
    else
        services/testkit/tools/not-run.sh
    fi

# Runs only the tests: all, or those that the arguments of cargo-nextest select, as in `just run -p pillion-engine`
run *arguments:
    # Three tests per processor: tests with a control plane mostly wait.
    "$({{ nextest }})" nextest run --locked --workspace --test-threads $((3 * $(nproc))) {{ arguments }}

# Runs the tests whose names contain FILTER against a real control plane; KUBERNETES=1.34 (1.35, 1.36, 1.37) selects a version
e2e filter="":
    services/testkit/tools/e2e.sh {{ filter }}

# Tests the playground's page in Chromium; fetches Chromium from Debian's packages if it is not installed
browser:
    services/testkit/tools/chromium.sh >/dev/null
    "$({{ nextest }})" nextest run --locked --workspace --test integration --run-ignored only page_works_in_a_browser

# Writes the screenshots of the playground to docs/images, with Chromium
screenshots:
    services/testkit/tools/chromium.sh >/dev/null
    "$({{ nextest }})" nextest run --locked --workspace --test integration --run-ignored only writes_small_screenshots

# Writes a picture of each dashboard to docs/images, with the data of a real cluster under load
dashboard-pictures:
    python3 -m venv {{ pictures }}
    {{ pictures }}/bin/pip install --quiet --disable-pip-version-check matplotlib==3.11.2
    PILLION_PYTHON={{ pictures }}/bin/python "$({{ nextest }})" nextest run --locked --workspace --test e2e --no-capture --run-ignored only -E 'test(renders_dashboard_pictures)'

# Runs the test cases of other injectors in DIR (eks/, istio/, linkerd/, otel/, tumblr/); the last line is one JSON object
peers dir=env("PILLION_PEERS", ""):
    PILLION_PEERS="$(realpath '{{ dir }}')" services/testkit/tools/result.sh \
        --workspace --test integration --run-ignored only --no-capture peers::peer_cases_have_expected_results

# Builds the documentation as a site in target/book; fetches mdBook and mermaid once
docs:
    services/testkit/tools/book.sh

# Builds the programs that the tests run (control plane, Prometheus, k6, collector, helm, kubeconform) into a cache outside the checkout, and unpacks a browser there
tools:
    @services/testkit/tools/build.sh
    @timeout 300 services/testkit/tools/chromium.sh >/dev/null || echo "no browser: the test of the playground's page will not run" >&2

# Writes all generated files
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

# Checks the documentation's links, and runs its examples
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet
    cargo test --locked --workspace --doc --quiet

# Checks licences, sources, duplicates and security advisories of the dependencies
audit:
    PATH="$(dirname "$(services/testkit/tools/prebuilt.sh cargo-deny)"):$PATH" cargo deny --locked check

alias deny := audit

# Benchmarks the webhook against a minimal server; the last line is one JSON object
bench *arguments:
    cargo build {{ release }} -p pillion -p pillion-testkit --bins
    cargo build {{ release }} -p pillion-engine --example instructions
    target/release/bench {{ arguments }}

# Compares the webhook with MutatingAdmissionPolicy on a real API server, with an optimized build; the last line is one JSON object
compare rounds="3":
    cargo build {{ release }} -p pillion
    PILLION_PROGRAM=$PWD/target/release/pillion PILLION_ROUNDS={{ rounds }} services/testkit/tools/result.sh \
        --workspace --test e2e --run-ignored only --no-capture compare::

# Draws the result of `just compare`, the JSON object in FILE, to docs/images/compare.svg
compare-picture file:
    python3 -m venv {{ pictures }}
    {{ pictures }}/bin/pip install --quiet --disable-pip-version-check matplotlib==3.11.2
    {{ pictures }}/bin/python services/testkit/tools/compare.py '{{ file }}' docs/images/compare.svg

# Runs a script of load-tests/ against a running webhook (PILLION_URL, SSL_CERT_FILE, ...: see its README); builds k6 once
load script="smoke":
    PATH="$(services/testkit/tools/build.sh k6):$PATH" GODEBUG=http2client=0 K6_AUTO_EXTENSION_RESOLUTION=false \
        k6 run --no-usage-report --quiet load-tests/{{ script }}.js

# Runs COUNT rotations of the CA while pods are created; the last line is one JSON object
rotate count="100":
    PILLION_ROTATIONS={{ count }} services/testkit/tools/result.sh --workspace --test e2e --no-capture rotation::rotations_lose_no_pod

# Runs the tests of known attacks (crash, starvation, bypass); the last line is one JSON object
attacks:
    #!/usr/bin/env bash
    set -uo pipefail
    result=$(services/testkit/tools/result.sh --workspace -E 'test(/(^|::)(attacks|pod_resources|sharing|unfinished)::/)')
    status=$?
    [[ $result =~ \"passed\":([0-9]+),\"failed\":([0-9]+) ]]
    echo "{\"attacks\":$((BASH_REMATCH[1] + BASH_REMATCH[2])),\"failed\":${BASH_REMATCH[2]}}"
    exit "$status"

# Runs COUNT rolling restarts of all replicas while pods are created; the last line is one JSON object
restart count="20":
    PILLION_RATE=200 PILLION_ROLLS={{ count }} services/testkit/tools/result.sh --workspace --test e2e --no-capture rolling::rolling_restarts_lose_no_pod

# Runs a replica for SECONDS under all loads and failures of a year of operation; the last line is one JSON object
soak seconds="600":
    PILLION_SOAK_SECONDS={{ seconds }} services/testkit/tools/result.sh --workspace --test integration --no-capture soak::

# Runs the end-to-end tests on every Kubernetes version, and longer runs of other tests; PARTS runs only the parts with these names; the last line is one JSON object
nightly *parts: tools
    services/testkit/tools/nightly.sh {{ parts }}

# Starts a control plane on the loopback interface and prints KUBECONFIG=... (up), or stops it (down)
control-plane action: tools
    cargo run --locked --quiet -p pillion-testkit --bin control-plane -- {{ action }}

# Manages a cluster of one node, with kind if there is a container engine: up [NAME] starts or resumes it and prints KUBECONFIG=...; also restart [NAME], down [NAME], load NAME IMAGE.tar
cluster *arguments:
    cargo run --locked --quiet -p pillion-testkit --bin cluster -- {{ arguments }}

# Runs the tests whose names contain FILTER on a cluster of one node, as `just cluster` starts it; the last line is one JSON object
node filter="": tools (cluster "build")
    services/testkit/tools/result.sh --workspace --test node --run-ignored only --no-capture {{ filter }}

# Fuzzes TARGET (review_bytes, profile_yaml, profile_and_pod, expression or record) for SECONDS, with a nightly toolchain
fuzz target seconds="600": fuzz-tools
    mkdir -p fuzz/target/found/{{ target }}
    cargo +nightly fuzz run {{ target }} fuzz/target/found/{{ target }} fuzz/corpus/{{ target }} -- -max_total_time={{ seconds }} -timeout=10 -rss_limit_mb=2048 -max_len=65536

# Compiles the fuzz targets with the repository's toolchain
fuzz-check:
    cargo check --locked --manifest-path fuzz/Cargo.toml --bins

fuzz-tools:
    @command -v cargo-fuzz >/dev/null || cargo +nightly install --locked cargo-fuzz@0.13.2

# Builds the program and packs it into target/pillion-image.tar, an image under the chart's default name, for `kind load image-archive`
image:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --locked -p pillion
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    install target/debug/pillion "$tree/pillion"
    # The program is linked dynamically, so the image also needs its libraries, at the paths where the loader searches.
    ldd target/debug/pillion | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$tree$library"; done
    architecture=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
    services/testkit/tools/image.sh pillion:{{ version }} target/pillion-image.tar /pillion -- "$architecture=$tree"

# Writes a release to dist/: images, chart, manifests, command line, bills of materials, licences, checksums (--platform amd64 --platform arm64)
dist *arguments:
    services/testkit/tools/dist.sh {{ arguments }}

# Recipes that only the workflows in .github/workflows call

version := `sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml`

# Checks .github/workflows
lint-workflows:
    "$(services/testkit/tools/build.sh actionlint)/actionlint" -shellcheck= -pyflakes=

# Allows user namespaces, which the tests need and Ubuntu's AppArmor forbids
ci-namespaces:
    sudo sysctl --quiet --write kernel.apparmor_restrict_unprivileged_userns=0

# Installs the cross-compiler for `just dist --platform arm64` on an amd64 Debian or Ubuntu
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
    # The controller creates the webhook configurations shortly after the replicas are ready.
    for _ in $(seq 60); do
        names=$(kubectl run web --image=registry.example.com/web --dry-run=server --output=jsonpath='{.spec.containers[*].name}' \
            --annotations=sidecar-injector-webhook.morven.me/inject=yes)
        [ "$names" != "web sidecar-nginx" ] || exit 0
        sleep 2
    done
    echo "error: the pod has the containers '$names'; expected 'web sidecar-nginx'" >&2
    exit 1

# Follows docs/quickstart.md on kind; needs a container engine
quickstart: image
    PATH=$PWD/target/debug:$(services/testkit/tools/build.sh kind kubectl helm):$PATH services/testkit/tools/quickstart.sh '^just |oci://'

# Writes an archive of the command line for macOS on arm64 to dist/; runs on such a machine
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
    services/testkit/tools/krew.sh dist
    # Archives from other machines were added after `just dist` wrote the checksums.
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
