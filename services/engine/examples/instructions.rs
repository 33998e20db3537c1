//! Runs one step of the engine's work repeatedly, so that an external profiler can count its instructions.
//!
//! ```text
//! instructions scan COUNT REVIEW.json
//! instructions answer COUNT REVIEW.json PROFILE.json...
//! instructions allocations REVIEW.json PROFILE.json...
//! ```
//!
//! `scan` parses the body with `serde_json` and stores nothing. Its cost is the unit for the other costs. `answer`
//! parses the review, computes the decision, and writes the response. To get the cost of one run, take two counts with
//! different values of COUNT, and divide their difference by the difference of the COUNTs. This excludes the cost of
//! startup and of compiling profiles. `allocations` prints the number of memory allocations of one `answer`.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_api::profile::ProfileSpec;
use pillion_engine::decision::ProfileOutcome;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};

const USAGE: &str = "expected: scan COUNT REVIEW.json, or answer COUNT REVIEW.json PROFILE.json..., \
                     or allocations REVIEW.json PROFILE.json...";

type Failure = Box<dyn std::error::Error>;

#[expect(clippy::print_stderr, reason = "errors are printed for the caller")]
fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

#[expect(clippy::print_stdout, reason = "the number is the program's output")]
fn run(words: &[&str]) -> Result<(), Failure> {
    match words {
        ["scan", count, review] => {
            let (count, body) = (count.parse::<u32>()?, read(review)?);
            for _ in 0..count {
                black_box(serde_json::from_slice::<serde::de::IgnoredAny>(black_box(&body))?);
            }
        }
        ["answer", count, review, profiles @ ..] if !profiles.is_empty() => {
            let (count, work) = (count.parse::<u32>()?, Work::read(review, profiles)?);
            for _ in 0..count {
                black_box(work.answer()?);
            }
        }
        ["allocations", review, profiles @ ..] if !profiles.is_empty() => {
            let work = Work::read(review, profiles)?;
            // The first call fills the snapshot's cache for the namespace, so it is not measured.
            work.answer()?;
            let measured = allocation_counter::measure(|| {
                black_box(work.answer().is_ok());
            });
            println!("{}", measured.count_total);
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// A request, and the snapshot for its decision.
struct Work {
    body: Vec<u8>,
    snapshot: Snapshot,
    profiles: usize,
}

impl Work {
    /// Reads the files. The namespace of the review is opted in, and the profiles are cluster profiles.
    fn read(review: &str, profiles: &[&str]) -> Result<Self, Failure> {
        let body = read(review)?;
        let compiled = profiles.iter().map(|file| profile(file).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let namespace = Review::parse(&body)?.namespace().to_owned();
        let snapshot = Snapshot::new(ProfileSet::new(compiled))
            .with_namespace(&namespace, Some(Namespace::opted_in(FailureMode::Enabled)));
        Ok(Self { body, snapshot, profiles: profiles.len() })
    }

    /// Processes the request like the webhook does: from the complete request body to the response body.
    fn answer(&self) -> Result<Vec<u8>, Failure> {
        let review = Review::parse(black_box(&self.body))?;
        let facts = Facts { namespace: self.snapshot.namespace(review.namespace()), ..Facts::default() };
        let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), &self.snapshot, &facts)?;
        let applied = decided.decision.profiles.iter().filter(|profile| profile.outcome == ProfileOutcome::Applied);
        if applied.count() != self.profiles {
            return Err("not every profile is applied, so the measurement would not be comparable".into());
        }
        Ok(review.respond(&decided))
    }
}

/// Reads and compiles a cluster profile from a JSON manifest.
fn profile(file: &str) -> Result<pillion_engine::profile::CompiledProfile, Failure> {
    let object: serde_json::Value = serde_json::from_slice(&read(file)?)?;
    let name = object.pointer("/metadata/name").and_then(serde_json::Value::as_str);
    let name = ProfileName::cluster(name.ok_or_else(|| format!("{file} has no metadata.name"))?.to_owned());
    let spec = object.get("spec").cloned().unwrap_or_default();
    let spec: ProfileSpec = serde_json::from_value(spec).map_err(|error| format!("the spec in {file}: {error}"))?;
    compile(&name, &spec).map_err(|diagnostics| {
        let diagnostics: Vec<_> = diagnostics.iter().map(ToString::to_string).collect();
        format!("{file} does not compile: {}", diagnostics.join("; ")).into()
    })
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| format!("cannot read {file}: {error}").into())
}
