//! Runs one piece of the engine's work a given number of times, to be counted by an instruction profiler: the cost of one
//! run is the difference of two counts divided by the difference of their numbers.
//!
//! ```text
//! instructions scan|one|three COUNT REVIEW.json
//! ```
//!
//! `scan` is the unit: one pass of `serde_json` over the body that keeps nothing.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use pillion_api::names::InjectionLevel;
use pillion_engine::profile::{ProfileName, ProfileSet, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [work, count, file] = arguments.as_slice() else { return ExitCode::from(2) };
    let (Ok(count), Ok(body)) = (count.parse::<u32>(), std::fs::read(file)) else { return ExitCode::from(2) };
    match work.as_str() {
        "scan" => (0..count).for_each(|_| {
            black_box(serde_json::from_slice::<serde::de::IgnoredAny>(black_box(&body)).is_ok());
        }),
        "one" | "three" => {
            let snapshot = snapshot(if work == "one" { 1 } else { 3 });
            (0..count).for_each(|_| {
                black_box(answer(black_box(&body), &snapshot));
            });
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn answer(body: &[u8], snapshot: &Snapshot) -> Option<Vec<u8>> {
    let review = Review::parse(body).ok()?;
    let facts = Facts { namespace: snapshot.namespace(review.namespace()), ..Facts::default() };
    let decided = review.decide(Endpoint::Level(InjectionLevel::Enabled), snapshot, &facts).ok()?;
    assert!(decided.patch.is_some(), "the profiles have to be applied, or this measures something else");
    Some(review.respond(&decided))
}

fn snapshot(profiles: usize) -> Snapshot {
    let profiles = (0..profiles).filter_map(|number| {
        let spec = serde_json::json!({
            "activation": "Always",
            "template": {
                "metadata": {"annotations": {format!("example.com/status-{number}"): "injected"}},
                "spec": {
                    "containers": [{
                        "name": format!("sidecar-{number}"),
                        "image": "registry.example.com/sidecar:1.0",
                        "ports": [{"containerPort": 15_000 + number}],
                        "volumeMounts": [{"name": format!("config-{number}"), "mountPath": "/etc/sidecar"}],
                    }],
                    "volumes": [{"name": format!("config-{number}"), "configMap": {"name": "sidecar"}}],
                },
            },
        });
        let spec = serde_json::from_value(spec).ok()?;
        compile(&ProfileName::cluster(format!("profile-{number}")), &spec).ok().map(Arc::new)
    });
    Snapshot::new(ProfileSet::new(profiles))
        .with_namespace("team-a", Some(Namespace::opted_in(InjectionLevel::Enabled)))
}
