//! Tests reviews that were captured from a real API server.

#![allow(clippy::panic, reason = "test helpers fail by panicking")]

use crate::common::{captured, captured_by_name, large_review, patched, respond, sidecar, snapshot};
use pillion_engine::decision::{Outcome, Reason};
use pillion_engine::review::Review;
use serde_json::Value as Json;

#[test]
fn captured_reviews_get_valid_responses() {
    let snapshot = snapshot(&[("logger", sidecar("logger"))]);
    for (file, body) in captured() {
        let review: Json = serde_json::from_slice(&body).unwrap();
        let (decided, response) = respond(&body, &snapshot);
        let response: Json = serde_json::from_slice(&response).unwrap();
        assert_eq!(response["apiVersion"], review["apiVersion"], "{file}");
        assert_eq!(response["kind"], "AdmissionReview", "{file}");
        assert_eq!(response["response"]["uid"], review["request"]["uid"], "{file}");
        assert_eq!(response["response"]["allowed"], true, "{file}");
        let is_new_pod = review["request"]["operation"] == "CREATE" && review["request"]["kind"]["kind"] == "Pod";
        let expected = if is_new_pod { Outcome::Injected } else { Outcome::Skipped };
        assert_eq!(decided.decision.outcome, expected, "{file}");

        // All original values are unchanged, at their original positions.
        let (before, after) = (&review["request"]["object"], patched(&body, &decided));
        assert_contains(&file, before, &after);
        if is_new_pod {
            let names: Vec<_> = after["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
            assert_eq!(names.last().unwrap(), &"logger", "{file}");
            let init = after["spec"]["initContainers"].as_array().unwrap().last().unwrap();
            assert_eq!(init["restartPolicy"], "Always", "{file}");
        }
    }
}

/// Asserts that `after` contains every value in `before` at the same path.
fn assert_contains(file: &str, before: &Json, after: &Json) {
    match (before, after) {
        (Json::Object(before), Json::Object(after)) => {
            for (key, value) in before {
                assert_contains(file, value, after.get(key).unwrap_or_else(|| panic!("{file}: {key} is missing")));
            }
        }
        (Json::Array(before), Json::Array(after)) => {
            assert!(after.len() >= before.len(), "{file}");
            before.iter().zip(after).for_each(|(before, after)| assert_contains(file, before, after));
        }
        _ => assert_eq!(before, after, "{file}"),
    }
}

#[test]
fn captured_pods_are_injected_once() {
    let snapshot = snapshot(&[("logger", sidecar("logger")), ("tracer", sidecar("tracer"))]);
    for (file, body) in captured() {
        let (first, _) = respond(&body, &snapshot);
        let mut review: Json = serde_json::from_slice(&body).unwrap();
        review["request"]["object"] = patched(&body, &first);
        let (second, _) = respond(review.to_string().as_bytes(), &snapshot);
        assert_eq!(second.patch, None, "{file}");
        if first.decision.outcome == Outcome::Injected {
            assert_eq!(second.decision.reason, Reason::AlreadyInjected, "{file}");
        }
    }
}

#[test]
fn pod_with_thousand_variables_is_injected() {
    let body = large_review(1_000);
    assert!(body.len() > 200_000);
    let (decided, _) = respond(&body, &snapshot(&[("logger", sidecar("logger"))]));
    assert_eq!(decided.decision.outcome, Outcome::Injected);
    assert_contains(
        "large",
        &serde_json::from_slice::<Json>(&body).unwrap()["request"]["object"],
        &patched(&body, &decided),
    );
}

#[test]
fn reads_envelope_of_review() {
    let body = captured_by_name("create-pod-dry-run.json");
    let review = Review::parse(&body).unwrap();
    assert!(review.dry_run());
    let expected: Json = serde_json::from_slice(&body).unwrap();
    assert_eq!(review.namespace(), expected["request"]["namespace"]);
    let deployment = captured_by_name(crate::common::DEPLOYMENT);
    let review = Review::parse(&deployment).unwrap();
    assert!(!review.dry_run());
    assert_eq!(review.object_name().as_deref(), Some("checkout-75d9f48f79-"));
}
