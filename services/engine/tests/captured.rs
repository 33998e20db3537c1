//! Tests reviews that a real API server sent.

#![allow(clippy::panic, reason = "test helpers fail by panicking")]

use crate::common::{answer, captured, captured_by_name, large_review, patched, sidecar, snapshot};
use pillion_engine::decision::{Outcome, Reason};
use pillion_engine::review::Review;
use serde_json::Value as Json;

#[test]
fn every_captured_review_gets_a_valid_answer() {
    let snapshot = snapshot(&[("logger", sidecar("logger"))]);
    for (file, body) in captured() {
        let review: Json = serde_json::from_slice(&body).unwrap();
        let (decided, answer) = answer(&body, &snapshot);
        let answer: Json = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["apiVersion"], review["apiVersion"], "{file}");
        assert_eq!(answer["kind"], "AdmissionReview", "{file}");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"], "{file}");
        assert_eq!(answer["response"]["allowed"], true, "{file}");
        let is_new_pod = review["request"]["operation"] == "CREATE" && review["request"]["kind"]["kind"] == "Pod";
        let expected = if is_new_pod { Outcome::Injected } else { Outcome::Skipped };
        assert_eq!(decided.decision.outcome, expected, "{file}");

        // All original values are still at their original positions.
        let (before, after) = (&review["request"]["object"], patched(&body, decided.patch.as_deref()));
        assert_contains(&file, before, &after);
        if is_new_pod {
            let names: Vec<_> = after["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
            assert_eq!(names.last().unwrap(), &"logger", "{file}");
            let init = after["spec"]["initContainers"].as_array().unwrap().last().unwrap();
            assert_eq!(init["restartPolicy"], "Always", "{file}");
        }
    }
}

/// Asserts that every pointer of `before` leads to the same value in `after`.
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
fn a_captured_pod_is_not_injected_twice() {
    let snapshot = snapshot(&[("logger", sidecar("logger")), ("tracer", sidecar("tracer"))]);
    for (file, body) in captured() {
        let (first, _) = answer(&body, &snapshot);
        let mut review: Json = serde_json::from_slice(&body).unwrap();
        review["request"]["object"] = patched(&body, first.patch.as_deref());
        let (second, _) = answer(review.to_string().as_bytes(), &snapshot);
        assert_eq!(second.patch, None, "{file}");
        if first.decision.outcome == Outcome::Injected {
            assert_eq!(second.decision.reason, Reason::AlreadyInjected, "{file}");
        }
    }
}

#[test]
fn a_pod_with_a_thousand_variables_is_injected() {
    let body = large_review(1_000);
    assert!(body.len() > 200_000);
    let (decided, _) = answer(&body, &snapshot(&[("logger", sidecar("logger"))]));
    assert_eq!(decided.decision.outcome, Outcome::Injected);
    assert_contains(
        "large",
        &serde_json::from_slice::<Json>(&body).unwrap()["request"]["object"],
        &patched(&body, decided.patch.as_deref()),
    );
}

#[test]
fn what_a_review_says_of_itself_is_read() {
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
