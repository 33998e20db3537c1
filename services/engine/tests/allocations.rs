//! How often the engine asks for memory. Allocations are the same in every run, so they are a gate where times are not.

mod common;

use std::sync::Arc;

use common::{DEPLOYMENT, answer, captured_by_name, sidecar, snapshot};
use pillion_api::names::InjectionLevel;
use pillion_engine::profile::{ProfileName, ProfileSet, compile};
use pillion_engine::report::Outcome;
use pillion_engine::snapshot::{Namespace, Snapshot};

/// Allocations of one answer, once what is found once for a namespace has been found.
fn allocations(body: &[u8], snapshot: &Snapshot) -> u64 {
    let (decided, _) = answer(body, snapshot);
    assert_eq!(decided.decision.outcome, Outcome::Injected);
    allocation_counter::measure(|| {
        let _ = answer(body, snapshot);
    })
    .count_total
}

#[test]
fn one_profile_on_the_captured_pod() {
    let count = allocations(&captured_by_name(DEPLOYMENT), &snapshot(&[("logger", sidecar("logger"))]));
    println!("one profile: {count} allocations");
    assert!(count <= 32, "{count} allocations; the gate of the project is 64");
}

#[test]
fn three_profiles_on_the_captured_pod() {
    let profiles = ["a", "b", "c"].map(|name| (name, sidecar(name)));
    let count = allocations(&captured_by_name(DEPLOYMENT), &snapshot(&profiles));
    println!("three profiles: {count} allocations");
    assert!(count <= 64, "{count} allocations");
}

#[test]
fn profiles_that_do_not_apply_cost_nothing() {
    let body = captured_by_name(DEPLOYMENT);
    let few = allocations(&body, &snapshot(&[("logger", sidecar("logger"))]));
    let others = (0..2_000).map(|number| {
        let mut spec = sidecar("other");
        spec["activation"] = "Requested".into();
        spec["request"] = serde_json::json!({"annotation": format!("example.com/inject-{number}")});
        (format!("other-{number}"), spec)
    });
    let compiled = others.chain([("logger".to_owned(), sidecar("logger"))]).map(|(name, spec)| {
        Arc::new(compile(&ProfileName::cluster(name), &serde_json::from_value(spec).unwrap()).unwrap())
    });
    let many = Snapshot::new(ProfileSet::new(compiled))
        .with_namespace("team-a", Some(Namespace::opted_in(InjectionLevel::Enabled)));
    assert_eq!(allocations(&body, &many), few);
}

#[test]
fn a_larger_pod_takes_no_more_allocations() {
    let snapshot = snapshot(&[("logger", sidecar("logger"))]);
    let small = allocations(&captured_by_name(DEPLOYMENT), &snapshot);
    let large = allocations(&common::large_review(1_000), &snapshot);
    assert!(large <= small + 4, "{large} for a pod of 218 KB, {small} for one of 7 KB");
}
