use std::ops::ControlFlow;

use super::*;

fn rollout(steps: &[(u8, u32)]) -> Rollout {
    let steps =
        steps.iter().map(|(percent, bake)| RolloutStep { percent: *percent, bake_seconds: Some(*bake), pause: None });
    Rollout { steps: steps.collect(), max_unavailable: Some(2), ..Rollout::default() }
}

fn situation<'s>(rollout: &'s Rollout, before: Option<&'s UpgradeStatus>, pods: PodStates, now: i64) -> Situation<'s> {
    Situation {
        rollout,
        before,
        revision: "r2",
        promoted: Some("r1"),
        is_rollback: false,
        request: None,
        pods,
        failure: None,
        verdict: None,
        waits: None,
        now,
    }
}

fn pods(all: usize, upgraded: usize, running: usize) -> PodStates {
    PodStates { all, upgraded, running, away: upgraded, ..PodStates::default() }
}

/// Returns the number of pods that should get the revision in the current phase and step.
fn share(situation: &Situation<'_>, status: &UpgradeStatus) -> usize {
    let pods = PodStates { all: situation.pods.all, ..PodStates::default() };
    left(&Situation { pods, ..situation.clone() }, status)
}

#[test]
fn steps_are_upgraded_and_observed_in_turn() {
    let rollout = rollout(&[(10, 60)]);
    let first = next(&situation(&rollout, None, pods(20, 0, 0), 100));
    assert_eq!((first.phase, first.step, first.previous_revision.as_deref()), (UpgradePhase::Upgrading, 0, Some("r1")));
    assert_eq!(share(&situation(&rollout, None, pods(20, 0, 0), 100), &first), 2);
    let running = next(&situation(&rollout, Some(&first), pods(20, 1, 1), 110));
    assert_eq!((running.phase, running.upgraded, running.upgrading), (UpgradePhase::Upgrading, 1, 1));
    let baking = next(&situation(&rollout, Some(&running), pods(20, 2, 0), 120));
    assert_eq!((baking.phase, baking.since.0.as_second()), (UpgradePhase::Baking, 120));
    let good = Verdict::Good;
    let observed = |now| Situation { verdict: Some(&good), ..situation(&rollout, Some(&baking), pods(20, 2, 0), now) };
    assert_eq!(next(&observed(179)).phase, UpgradePhase::Baking);
    // Without a comparison, the next step does not begin.
    assert_eq!(next(&situation(&rollout, Some(&baking), pods(20, 2, 0), 180)).phase, UpgradePhase::Baking);
    let second = next(&observed(180));
    assert_eq!((second.phase, second.step), (UpgradePhase::Upgrading, 1));
    assert_eq!(share(&observed(180), &second), 20);
    let last = next(&situation(&rollout, Some(&second), pods(20, 20, 0), 200));
    assert_eq!(last.phase, UpgradePhase::Baking);
    let complete = next(&Situation { verdict: Some(&good), ..situation(&rollout, Some(&last), pods(20, 20, 0), 200) });
    assert_eq!(complete.phase, UpgradePhase::Complete);
    // A profile's first revision needs no rollout.
    let first = Situation { promoted: Some("r2"), ..situation(&rollout, None, pods(20, 20, 0), 1) };
    assert_eq!(next(&first).phase, UpgradePhase::Complete);
    // New pods already get the revision, so all other pods follow in one step, and a failure does not stop the rollout.
    let outdated = Situation { promoted: Some("r2"), ..situation(&rollout, None, pods(20, 19, 0), 1) };
    let returning = next(&outdated);
    assert_eq!((returning.phase, share(&outdated, &returning)), (UpgradePhase::Upgrading, 20));
    let failed = Situation { before: Some(&returning), failure: Some("crashed"), ..outdated };
    assert_eq!(next(&failed).phase, UpgradePhase::Upgrading);
    // Another revision begins from the first step.
    let other = Situation { revision: "r3", ..situation(&rollout, Some(&complete), pods(20, 0, 0), 300) };
    assert_eq!((next(&other).phase, next(&other).step), (UpgradePhase::Upgrading, 0));
}

#[test]
fn workloads_are_restarted_in_shares() {
    let rollout = Rollout { strategy: Some(RolloutStrategy::Restart), ..rollout(&[(10, 0)]) };
    let first = next(&situation(&rollout, None, PodStates { left_in_share: 2, ..pods(20, 0, 0) }, 100));
    let with = |left_in_share, running| {
        let pods = PodStates { left_in_share, ..pods(20, 5, running) };
        next(&situation(&rollout, Some(&first), pods, 110)).phase
    };
    // The share is a share of workloads, so the number of upgraded pods does not matter.
    assert_eq!(with(1, 0), UpgradePhase::Upgrading);
    assert_eq!(with(0, 1), UpgradePhase::Upgrading, "an evicted pod is not replaced yet");
    assert_eq!(with(0, 0), UpgradePhase::Baking);
    // The status has a limited number of evictions.
    let large = Rollout { max_unavailable: Some(1000), ..rollout.clone() };
    assert_eq!(capacity(&large, pods(2000, 0, 3)), MAX_EVICTIONS - 3);
    assert_eq!(capacity(&Rollout { strategy: Some(RolloutStrategy::InPlace), ..large }, pods(2000, 0, 3)), 997);
    assert_eq!(percent(&situation(&rollout, None, pods(20, 0, 0), 100), &first), 10);
}

#[test]
fn step_with_pause_waits_for_user() {
    let mut rollout = rollout(&[(10, 0), (100, 0)]);
    for step in &mut rollout.steps {
        step.pause = Some(true);
    }
    let good = Verdict::Good;
    let baking = UpgradeStatus::new("r2", Some("r1"), UpgradePhase::Baking, time(1));
    let passed = Situation { verdict: Some(&good), ..situation(&rollout, Some(&baking), pods(20, 2, 0), 2) };
    let waiting = next(&passed);
    assert_eq!((waiting.phase, waiting.step), (UpgradePhase::AwaitingResume, 0));
    let with = |before: &UpgradeStatus, request, failure| {
        let situation = situation(&rollout, Some(before), pods(20, 2, 0), 3);
        next(&Situation { request, failure, ..situation })
    };
    assert_eq!(with(&waiting, None, None).phase, UpgradePhase::AwaitingResume);
    assert_eq!(with(&waiting, Some("resume r1 t"), None).phase, UpgradePhase::AwaitingResume, "of another revision");
    assert_eq!(with(&waiting, None, Some("crashed")).phase, UpgradePhase::SteppingBack);
    assert_eq!(with(&waiting, Some("undo r2 t"), None).phase, UpgradePhase::SteppingBack);
    let resumed = with(&waiting, Some("resume r2 t"), None);
    assert_eq!((resumed.phase, resumed.step), (UpgradePhase::Upgrading, 1));
    assert_eq!(resumed.handled_request.as_deref(), Some("resume r2 t"));
    // After the last step, the rollout is complete. The handled request does not resume it.
    let last = UpgradeStatus { phase: UpgradePhase::AwaitingResume, ..resumed };
    assert_eq!(with(&last, Some("resume r2 t"), None).phase, UpgradePhase::AwaitingResume);
    assert_eq!(with(&last, Some("resume r2 later"), None).phase, UpgradePhase::Complete);
}

#[test]
fn pods_are_changed_within_windows() {
    let window = RolloutWindow { days: Vec::new(), start: "01:00".to_owned(), hours: 1 };
    let rollout = Rollout { windows: vec![window], ..rollout(&[]) };
    let at = |now| situation(&rollout, None, pods(4, 0, 0), now);
    assert!(is_window_open(&at(3_600)) && !is_window_open(&at(7_200)));
    assert!(is_window_open(&Situation { is_rollback: true, ..at(7_200) }));
    let always = Rollout::default();
    assert!(is_window_open(&Situation { rollout: &always, ..at(0) }));
}

#[test]
fn failed_rollout_steps_back_or_halts() {
    let steps = rollout(&[(50, 10)]);
    let upgrading = next(&situation(&steps, None, pods(4, 1, 0), 1));
    let failed = Situation { failure: Some("pod a: crashed"), ..situation(&steps, Some(&upgrading), pods(4, 1, 1), 2) };
    let back = next(&failed);
    assert_eq!((back.phase, back.message.as_deref()), (UpgradePhase::SteppingBack, Some("pod a: crashed")));
    // The first reason is kept while pods return.
    let later = Situation { waits: Some("a budget"), ..situation(&steps, Some(&back), pods(4, 1, 0), 3) };
    assert_eq!(next(&later).message.as_deref(), Some("pod a: crashed"));
    assert_eq!(next(&later).waiting.as_deref(), Some("a budget"));
    assert_eq!(next(&later).phase, UpgradePhase::SteppingBack);
    let done = next(&situation(&steps, Some(&back), pods(4, 0, 0), 4));
    assert_eq!((done.phase, done.message.as_deref()), (UpgradePhase::SteppedBack, Some("pod a: crashed")));
    assert_eq!(share(&situation(&steps, Some(&done), pods(4, 0, 0), 4), &done), 0);
    // A pod that cannot return does not keep the others waiting.
    let stuck = PodStates { stuck: 1, ..pods(4, 1, 0) };
    assert_eq!(next(&situation(&steps, Some(&back), stuck, 4)).phase, UpgradePhase::SteppedBack);

    let without = Rollout { auto_rollback: Some(false), ..steps.clone() };
    assert_eq!(next(&Situation { rollout: &without, ..failed.clone() }).phase, UpgradePhase::Halted);
    let first_revision = UpgradeStatus { previous_revision: None, ..upgrading.clone() };
    assert_eq!(next(&Situation { before: Some(&first_revision), ..failed }).phase, UpgradePhase::Halted);

    let baking = next(&situation(&steps, Some(&upgrading), pods(4, 2, 0), 5));
    let worse = Verdict::Worse("2 of 2".to_owned());
    let judged = Situation { verdict: Some(&worse), ..situation(&steps, Some(&baking), pods(4, 2, 0), 6) };
    assert_eq!(next(&judged).phase, UpgradePhase::SteppingBack);
}

#[test]
fn requests_are_handled_once_and_for_their_revision() {
    let steps = rollout(&[]);
    let upgrading = next(&situation(&steps, None, pods(4, 0, 0), 1));
    let with = |before, request| {
        next(&Situation { request: Some(request), ..situation(&steps, Some(before), pods(4, 1, 0), 2) })
    };
    let paused = with(&upgrading, "pause");
    assert_eq!(paused.phase, UpgradePhase::Paused);
    assert_eq!(share(&situation(&steps, Some(&paused), pods(4, 1, 0), 2), &paused), 0);
    assert_eq!(next(&situation(&steps, Some(&paused), pods(4, 1, 0), 3)).phase, UpgradePhase::Upgrading);
    assert_eq!(with(&upgrading, "undo r1 t").phase, UpgradePhase::Upgrading, "the request is for another revision");
    let undone = with(&upgrading, "undo r2 t");
    assert_eq!(undone.phase, UpgradePhase::SteppingBack);
    let back = next(&situation(&steps, Some(&undone), pods(4, 0, 0), 3));
    // While a failed pod returns, the request waits.
    let early = Situation { failure: Some("x"), ..situation(&steps, Some(&back), pods(4, 0, 1), 3) };
    let early = next(&Situation { request: Some("resume r2 t1"), ..early });
    assert_eq!((early.phase, early.handled_request.as_deref()), (UpgradePhase::SteppedBack, Some("undo r2 t")));
    let resumed = with(&back, "resume r2 t1");
    assert_eq!((resumed.phase, resumed.handled_request.as_deref()), (UpgradePhase::Upgrading, Some("resume r2 t1")));
    // The same request does not resume the rollout again after another failure.
    let failed = Situation { failure: Some("x"), ..situation(&steps, Some(&resumed), pods(4, 1, 0), 4) };
    let failed = next(&Situation { request: Some("resume r2 t1"), ..failed });
    assert_eq!(failed.phase, UpgradePhase::SteppingBack);
    assert_eq!(with(&failed, "resume r2 t1").phase, UpgradePhase::SteppingBack);
    assert_eq!(with(&failed, "resume r2 t2").phase, UpgradePhase::Upgrading);
    for invalid in ["", "stop", "pause now please", "resume", "undo"] {
        assert_eq!(steering(invalid), None, "{invalid}");
    }
}

/// Returns a generator of pseudo-random numbers below a bound. Equal seeds produce equal numbers.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below.max(1)).unwrap()).unwrap()
    }
}

/// Simulates rollouts in which upgrades complete or fail at random. Each decision uses only the stored status and the
/// pods, as if a new leader had just begun.
#[test]
fn limits_hold_in_random_histories() {
    let mut failures = 0;
    for seed in 1..400 {
        let mut number = numbers(seed);
        let steps = [(number(50) + 1, number(20)), (number(40) + 55, number(20))];
        let steps = steps.map(|(percent, bake)| (u8::try_from(percent).unwrap(), u32::try_from(bake).unwrap()));
        let rollout = Rollout { max_unavailable: Some(u32::try_from(number(5) + 1).unwrap()), ..rollout(&steps) };
        let most = usize::try_from(rollout.max_unavailable.unwrap()).unwrap();
        let (all, fails_at) = (number(60) + 1, number(20));
        let (mut stored, mut now) = (None::<UpgradeStatus>, 0);
        let (mut upgraded, mut running, mut touched_at_failure) = (0, 0, None);
        let ended = (0..4_000).try_for_each(|turn| {
            now += i64::try_from(number(3)).unwrap();
            let verdict = Verdict::Good;
            let is_failure = turn >= fails_at && running > 0 && touched_at_failure.is_none() && seed % 2 == 0;
            let situation = Situation {
                verdict: Some(&verdict),
                failure: is_failure.then_some("crashed"),
                ..situation(&rollout, stored.as_ref(), pods(all, upgraded, running), now)
            };
            let status = next(&situation);
            let share = share(&situation, &status);
            if is_failure {
                touched_at_failure = Some((upgraded + running, status.step));
            }
            match status.phase {
                UpgradePhase::Upgrading | UpgradePhase::Complete => {
                    let begun = share.saturating_sub(upgraded + running).min(capacity(&rollout, situation.pods));
                    running += begun;
                    assert!(running <= most, "{seed}: {running}");
                    assert!(upgraded + running <= share.max(upgraded), "{seed}: {upgraded} {running} {share}");
                }
                UpgradePhase::SteppingBack => {
                    // Running upgrades are taken back. At most `most` upgraded pods per turn return to the previous
                    // revision.
                    running = 0;
                    upgraded = upgraded.saturating_sub(most);
                }
                _ => {}
            }
            let completed = number(running + 1);
            (running, upgraded) = (running - completed, upgraded + completed);
            let is_over =
                status.phase == UpgradePhase::Complete && upgraded == all || status.phase == UpgradePhase::SteppedBack;
            stored = Some(status);
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(ended.is_break(), "{seed}: the rollout does not end: {stored:?}");
        if let Some((touched, step)) = touched_at_failure {
            failures += 1;
            let percent = [usize::from(steps[0].0), usize::from(steps[1].0), 100][usize::try_from(step).unwrap()];
            assert!(touched <= (all * percent).div_ceil(100), "{seed}: {touched} of {all} in step {step}");
            assert_eq!((stored.unwrap().phase, upgraded), (UpgradePhase::SteppedBack, 0), "{seed}");
        }
    }
    assert!(failures > 50, "{failures} failures");
}
