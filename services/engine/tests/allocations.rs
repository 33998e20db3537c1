//! Limits the number of allocations of a decision. Unlike times, this number is the same in every run, so a test can
//! check it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "test helpers fail by panicking")]
#![allow(clippy::print_stdout, reason = "the numbers help if a ceiling is exceeded")]

#[path = "../benches/answers/cases.rs"]
#[allow(dead_code, reason = "only the benchmark counts scans")]
mod cases;

use cases::Case;

fn allocations(case: Case) -> u64 {
    let count = case.work().allocations();
    println!("{}: {count} allocations", case.name());
    count
}

/// The ceilings are slightly above the current numbers. They must not exceed the limits of the benchmark.
#[test]
fn cases_stay_within_ceilings() {
    for (case, ceiling) in [
        (Case::One, 22),
        (Case::Three, 98),
        (Case::Env, 75),
        (Case::Large, 24),
        (Case::TwiceAsLarge, 24),
        (Case::Two, 50),
        (Case::Many, 50),
    ] {
        assert!(ceiling <= case.gate().allocations, "{case:?}: the ceiling is above the limit");
        let count = allocations(case);
        assert!(count <= ceiling, "{count} allocations for {}, at most {ceiling} are allowed", case.name());
    }
}

#[test]
fn inapplicable_profiles_allocate_nothing() {
    assert_eq!(allocations(Case::Many), allocations(Case::Two));
}

#[test]
fn larger_pod_needs_no_more_allocations() {
    let (small, large) = (allocations(Case::One), allocations(Case::TwiceAsLarge));
    assert!(large <= small + 4, "{large} allocations for a pod of 428 KB, {small} for a pod of 7 KB");
}
