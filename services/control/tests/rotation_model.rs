//! Explores the rotation with two leaders, three replicas and two API servers. A change may reach each replica and API
//! server at any later time. A leader may stop or be paused between any two actions. Some tests add a disturbance: a
//! change that no leader makes.
//!
//! In every state, no admission request may fail because of the rotation ([`world::ModelState::broken_trust`]). From
//! every state, the rotation must complete if there are no further disturbances. The exploration is breadth first, so
//! it finds the shortest sequence of moves to a failure.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "the model has few and small numbers, and tests report failures by panicking"
)]

mod explore;
mod leader;
mod world;

use pillion_control::certificates::rotation::{Observed, Phase, Record, Settings, Step, next};
use pillion_control::trust_probe::fold;
use pillion_testkit::is_thorough;

use crate::rotation_model::explore::{Found, Move, explore, walk};
use crate::rotation_model::world::{Disturbance, Rules};

/// Number of explored states, unless `PILLION_ROTATION_STATES` is set. `just nightly` explores a million: all states
/// within about thirty moves.
const STATES: usize = 50_000;
/// Number of random walks. Without `PILLION_THOROUGH`, the tests that expect no failure run a tenth of them.
const WALKS: u64 = 2_000;
/// Number of moves in each walk: enough for several rotations.
const MOVES: usize = 600;

fn states() -> usize {
    let given = std::env::var("PILLION_ROTATION_STATES").ok();
    given.map_or(STATES, |text| text.parse().expect("PILLION_ROTATION_STATES is a number of states"))
}

fn walks() -> u64 {
    if is_thorough() { WALKS } else { WALKS / 10 }
}

#[test]
fn rotation_ends_without_failed_admission() {
    let explored = explore(Rules::CODE, &[], states());
    explored.assert_sound();
    assert!(explored.states >= states(), "only {} states exist, which are too few", explored.states);
    println!("{} states, {} of them at rest", explored.states, explored.at_rest);
    let explored = walk(Rules::CODE, &[], walks(), MOVES);
    explored.assert_sound();
    for phase in Phase::ALL {
        assert!(explored.phases.contains(&phase), "{phase} was never reached");
    }
    println!("{} moves at random, {} of them to rest", explored.states, explored.at_rest);
}

#[test]
fn disturbances_do_not_break_trust() {
    for disturbance in Disturbance::ALL {
        let explored = explore(Rules::CODE, &[disturbance], states() / 4);
        explored.assert_sound();
        walk(Rules::CODE, &[disturbance], walks(), MOVES).assert_sound();
        println!("{disturbance:?}: {} states, {} of them at rest", explored.states, explored.at_rest);
    }
}

/// The random walks must find the mistake of each wrong planner.
#[test]
fn exploration_finds_wrong_decisions() {
    type Planner = fn(&Settings, &Observed) -> Step;
    let wrong: [(&str, Planner); 4] = [
        ("the serving certificate is switched before the bundle is expanded", |settings, seen| {
            match next(settings, seen) {
                Step::Advance(record) if record.phase == Phase::Expanded => {
                    let (bundle_epoch, certificate_epoch) = (record.epoch, record.epoch);
                    Step::Advance(Record { phase: Phase::Switched, bundle_epoch, certificate_epoch, ..record })
                }
                step => step,
            }
        }),
        ("the rotation does not wait for API servers", |settings, seen| {
            let mut seen = seen.clone();
            seen.propagation.behind = 0;
            next(settings, &seen)
        }),
        ("the rotation does not wait for replicas", |settings, seen| {
            let mut seen = seen.clone();
            (seen.endpoints.rounds, seen.endpoints.is_other_ca_served) = (settings.rounds, false);
            next(settings, &seen)
        }),
        ("objects written for an older epoch are accepted", |settings, seen| {
            let mut seen = seen.clone();
            if let pillion_control::certificates::rotation::Stored::Is(record) = &mut seen.record {
                record.certificate_epoch = 0;
            }
            match next(settings, &seen) {
                // The record was lost, so the bundle has unknown certificates. This wrong planner removes them.
                Step::WriteBundle { cas, epoch, repair, .. } => {
                    Step::WriteBundle { cas, keep_unknown: false, epoch, repair }
                }
                step => step,
            }
        }),
    ];
    for (what, planner) in wrong {
        let disturbances = [Disturbance::RecordLost];
        let found = walk(Rules::planned_by(planner), &disturbances, WALKS, MOVES).found;
        let Some(Found { what: broken, way }) = found else { panic!("not found: {what}") };
        assert!(!way.is_empty(), "{what}: {broken}");
        println!("{what}: {broken}, after {} moves", way.len());
    }
}

/// Without the code that handles them, [`Disturbance::ApiServersUncounted`] and [`Disturbance::CertificateRestored`]
/// break trust, and the random walks must find these failures.
#[test]
fn disturbances_break_trust_without_their_fixes() {
    let uncounted = Rules { fold: |outcomes, servers| fold(outcomes, servers.or(Some(0))), ..Rules::CODE };
    let restored = Rules { may_replace: |_, _| true, ..Rules::CODE };
    for (rules, disturbance) in
        [(uncounted, Disturbance::ApiServersUncounted), (restored, Disturbance::CertificateRestored)]
    {
        let found = walk(rules, &[disturbance], WALKS, MOVES).found;
        let Some(Found { what, way }) = found else { panic!("not found: {disturbance:?}") };
        assert!(way.contains(&Move::Vandal(disturbance)), "{what}: {way:?}");
        println!("{disturbance:?}: {what}, after {} moves", way.len());
    }
}
