//! How often the engine asks for memory. Allocations are the same in every run, so they are a gate where times are not.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail by panicking")]
#![allow(clippy::print_stdout, reason = "figures are of use where a ceiling is broken")]

#[path = "../benches/answers/cases.rs"]
#[allow(dead_code, reason = "scans are counted elsewhere")]
mod cases;

use cases::Case;

fn allocations(case: Case) -> u64 {
    let count = case.work().allocations();
    println!("{}: {count} allocations", case.name());
    count
}

/// What is measured today, with some room. The gates of the project are far above.
#[test]
fn every_case_keeps_to_its_ceiling() {
    for (case, ceiling) in [
        (Case::One, 22),
        (Case::Three, 98),
        (Case::Env, 75),
        (Case::Large, 24),
        (Case::TwiceAsLarge, 24),
        (Case::Two, 50),
        (Case::Many, 50),
    ] {
        assert!(ceiling <= case.gate().allocations, "{case:?}: the ceiling is above the gate");
        let count = allocations(case);
        assert!(count <= ceiling, "{count} allocations for {}, and {ceiling} are allowed", case.name());
    }
}

#[test]
fn profiles_that_do_not_apply_ask_for_nothing() {
    assert_eq!(allocations(Case::Many), allocations(Case::Two));
}

#[test]
fn a_larger_pod_asks_no_more_often() {
    let (small, large) = (allocations(Case::One), allocations(Case::TwiceAsLarge));
    assert!(large <= small + 4, "{large} for a pod of 428 KB, {small} for one of 7 KB");
}
