# Everything that is done with this repository. `just test` is all that CI runs.

set shell := ["bash", "-euo", "pipefail", "-c"]

# One build profile for everything: aws-lc alone takes two minutes for each.
cargo_flags := "--release --locked"

# Lists the recipes
default:
    @just --list --unsorted

# Builds target/release/pillion
build:
    cargo build {{ cargo_flags }} -p pillion

# All checks and tests, on real parts; installs or builds what they need
test: tools fmt-check lint doc deny
    cargo test {{ cargo_flags }} --workspace

# Only the tests against the real control plane; FILTER is a part of their names
e2e filter="": tools
    cargo test {{ cargo_flags }} -p pillion --test e2e {{ filter }}

# Builds the programs that the tests drive (a control plane, Prometheus, k6, a collector) once into a cache outside the checkout
tools:
    @services/testkit/tools/build.sh

# Checks the format
fmt-check:
    cargo fmt --all --check

# Checks the lints
lint:
    cargo clippy {{ cargo_flags }} --workspace --all-targets -- -D warnings

# Checks the documentation's links
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc {{ cargo_flags }} --workspace --no-deps --quiet

# Checks licences, sources and duplicates of the dependencies
deny:
    command -v cargo-deny >/dev/null || cargo install --locked cargo-deny@0.20.2
    cargo deny --locked check bans licenses sources

# Floor and webhook side by side; the last line is one JSON object
bench *arguments:
    cargo build {{ cargo_flags }} -p pillion -p pillion-testkit --bins
    cargo build {{ cargo_flags }} -p pillion-engine --example instructions
    cargo run {{ cargo_flags }} --quiet -p pillion-testkit --bin bench -- {{ arguments }}

# A script of load-tests/ against a webhook that runs (PILLION_URL, SSL_CERT_FILE, ...: see its README); k6 is built once
load script="smoke":
    PATH="$(services/testkit/tools/build.sh k6):$PATH" GODEBUG=http2client=0 K6_AUTO_EXTENSION_RESOLUTION=false \
        k6 run --no-usage-report --quiet load-tests/{{ script }}.js

# So many rotations of the certificate authority while pods are created
rotate count="100": tools
    PILLION_ROTATIONS={{ count }} cargo test {{ cargo_flags }} -p pillion --test e2e rotations_lose_no_pod -- --nocapture

# The long counts of what `just test` does shortly: 20 rolling restarts, 20 kills, every load test as it is meant, ten minutes of soak; half an hour
nightly: tools
    PILLION_ROLLS=20 PILLION_KILLS=20 cargo test {{ cargo_flags }} -p pillion --test e2e -- --nocapture \
        rolling_restarts_lose_no_pod a_replica_that_dies_takes_with_it_only_what_it_had
    PILLION_LOAD=full cargo test {{ cargo_flags }} -p pillion --test load_tests -- --nocapture
    PILLION_SOAK_SECONDS=600 cargo test {{ cargo_flags }} -p pillion --test soak -- --nocapture

# A control plane on this machine's loopback to play with: up prints KUBECONFIG=..., down ends it
control-plane action: tools
    cargo run {{ cargo_flags }} --quiet -p pillion-testkit --bin control-plane -- {{ action }}

# Fuzzes TARGET (review_bytes, profile_yaml, profile_and_pod, expression or record) for so many seconds, with a nightly toolchain
fuzz target seconds="600": fuzz-tools
    mkdir -p fuzz/target/found/{{ target }}
    cargo +nightly fuzz run {{ target }} fuzz/target/found/{{ target }} fuzz/corpus/{{ target }} -- -max_total_time={{ seconds }} -timeout=10 -rss_limit_mb=2048 -max_len=65536

# Compiles the fuzz targets with the toolchain of the repository, so that they keep fitting
fuzz-check:
    cargo check --locked --manifest-path fuzz/Cargo.toml --bins

fuzz-tools:
    @command -v cargo-fuzz >/dev/null || cargo +nightly install --locked cargo-fuzz@0.13.2

# The program as it is shipped, in target/dist
dist:
    PILLION_REVISION="$(git rev-parse --verify --quiet HEAD || true)" cargo build --locked --profile dist -p pillion
