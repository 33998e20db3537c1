//! Runs the fuzz targets on the corpus in `fuzz/` and on mutations of it, so that every test run includes some fuzzing
//! with any toolchain. `just fuzz TARGET` runs longer and is guided by coverage.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test helpers fail by panicking"
)]

mod mutate;
#[allow(unreachable_pub, reason = "the crate in fuzz/ exports it")]
mod targets;

use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use targets::TARGETS;

/// The number of mutated inputs for each target. The environment variable `PILLION_MUTATIONS` overrides it.
const MUTATIONS: usize = 1_000;

/// The maximum time for one input, in an unoptimized build on a busy machine.
const LIMIT: Duration = Duration::from_secs(3);

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Returns the file names and contents of a target's corpus, sorted by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path());
    let mut corpus: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    corpus.sort();
    assert!(corpus.len() > 10, "the corpus of {target} is missing");
    corpus
}

/// Runs a target on an input. `what` describes the input. If the target panics or takes too long, panics with the
/// input.
fn run(name: &str, target: fn(&[u8]), input: &[u8], what: &str) {
    let start = Instant::now();
    let result = catch_unwind(|| target(input));
    let taken = start.elapsed();
    assert!(
        result.is_ok() && taken < LIMIT,
        "{name} {}: {what}, after {taken:?}: {}",
        if result.is_ok() { "takes too long" } else { "panics" },
        input.escape_ascii()
    );
}

#[test]
fn corpus_passes() {
    for (name, target) in TARGETS {
        for (file, input) in corpus(name) {
            run(name, target, &input, &file);
        }
    }
}

fn mutate(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(other, _)| *other == name).unwrap();
    let number = |variable| std::env::var(variable).ok().and_then(|number| number.parse().ok());
    let seed = number("PILLION_SEED").unwrap_or(1);
    let inputs: Vec<_> = corpus(name).into_iter().map(|(_, input)| input).collect();
    let mut random = mutate::Random::new(u64::try_from(seed).unwrap());
    for mutation in 0..number("PILLION_MUTATIONS").unwrap_or(MUTATIONS) {
        let input = mutate::mutated(&inputs, &mut random);
        run(name, target, &input, &format!("mutation {mutation} of seed {seed}"));
    }
}

#[test]
fn mutated_reviews_pass() {
    mutate("review_bytes");
}

#[test]
fn mutated_profiles_pass() {
    mutate("profile_yaml");
}

#[test]
fn mutated_profiles_and_pods_pass() {
    mutate("profile_and_pod");
}

#[test]
fn mutated_expressions_pass() {
    mutate("expression");
}

#[test]
fn mutated_records_pass() {
    mutate("record");
}
