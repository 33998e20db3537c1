use super::*;

const HELD: NamespaceState = NamespaceState::OptedIn(FailureMode::Held);

fn key(name: &str) -> Key {
    Key { namespace: "shop".into(), name: name.into() }
}

/// Creates waiting pods from their names, their owners, and the seconds after `start` when they were first seen.
fn pods(start: Instant, all: &[(&str, &str, u64)]) -> BTreeMap<Key, Waiting> {
    all.iter()
        .map(|(name, owner, since)| {
            let pod = HeldPod {
                uid: format!("uid-{name}").into(),
                resource_version: "1".into(),
                owner_kind: if owner.is_empty() { OwnerKind::NoOwner } else { OwnerKind::ReplicaSet },
                owner: (*owner).into(),
                other_gates: Vec::new(),
                finalizers: Vec::new(),
            };
            (key(name), Waiting { pod, since: start + Duration::from_secs(*since) })
        })
        .collect()
}

fn recreated(plan: &Plan) -> Vec<&str> {
    plan.steps
        .iter()
        .map(|step| match step {
            Step::Recreate(key) => &*key.name,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn verdict_depends_on_injection_namespace_and_owner() {
    use FailureMode::{Enabled, Held, Required};
    use Injection::{Answering, Silent, SwitchedOff};
    use Verdict::{Recreate, RemoveGate, Report, Wait};
    let by_owner = |injection, namespace_state| {
        let of = |owner| verdict(injection, namespace_state, owner);
        for kind in OwnerKind::ALL.into_iter().filter(|kind| kind.recreates_pods()) {
            assert_eq!(of(kind), of(OwnerKind::ReplicaSet));
        }
        assert_eq!(of(OwnerKind::Other), of(OwnerKind::NoOwner));
        (of(OwnerKind::ReplicaSet), of(OwnerKind::NoOwner))
    };
    let at = |failure_mode| NamespaceState::OptedIn(failure_mode);
    for (injection, namespace_state, expected) in [
        (Answering, at(Held), (Recreate, Report)),
        (Answering, at(Required), (Recreate, Report)),
        (Answering, at(Enabled), (Recreate, RemoveGate)),
        (Answering, NamespaceState::NotOptedIn, (RemoveGate, RemoveGate)),
        (Answering, NamespaceState::Unknown, (Wait, Wait)),
        (Silent, at(Held), (Wait, Wait)),
        (Silent, at(Required), (Wait, Wait)),
        (Silent, at(Enabled), (RemoveGate, RemoveGate)),
        (Silent, NamespaceState::NotOptedIn, (RemoveGate, RemoveGate)),
        (Silent, NamespaceState::Unknown, (Wait, Wait)),
        (SwitchedOff, at(Held), (RemoveGate, RemoveGate)),
        (SwitchedOff, at(Required), (RemoveGate, RemoveGate)),
        (SwitchedOff, NamespaceState::Unknown, (Wait, Wait)),
    ] {
        assert_eq!(by_owner(injection, namespace_state), expected, "{injection:?} {namespace_state:?}");
    }
}

#[test]
fn pods_are_recreated_once_webhook_responds() {
    let now = Instant::now();
    let mut planner = Planner::new(ReleaseSettings::default());
    let waiting = pods(now, &[("a", "web", 0), ("b", "web", 0), ("c", "db", 0)]);
    assert_eq!(planner.plan(now, Injection::Silent, &waiting, |_| HELD).steps, []);
    let later = now + Duration::from_mins(10);
    let plan = planner.plan(later, Injection::Answering, &waiting, |_| HELD);
    let mut all = recreated(&plan);
    all.sort_unstable();
    assert_eq!(all, ["a", "b", "c"]);
    // The watch has not reported the deletions yet. The pods are not deleted again at once.
    let plan = planner.plan(later + Duration::from_secs(1), Injection::Answering, &waiting, |_| HELD);
    assert_eq!(plan, Plan { steps: vec![], again: Some(later + Duration::from_secs(5)) });
}

#[test]
fn actions_per_second_are_limited() {
    let start = Instant::now();
    let names: Vec<String> = (0..600).map(|number| format!("p{number:03}")).collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), "web", 0)).collect();
    let mut waiting = pods(start, &all);
    let mut planner = Planner::new(ReleaseSettings::default());
    let mut now = start;
    let mut released = Vec::new();
    for _ in 0..10_000 {
        let plan = planner.plan(now, Injection::Answering, &waiting, |_| HELD);
        for name in recreated(&plan) {
            waiting.remove(&key(name));
            released.push(now.duration_since(start));
        }
        let Some(again) = plan.again else { break };
        now = again;
    }
    assert_eq!(released.len(), 600);
    assert!(released.last().unwrap() <= &Duration::from_secs(30), "{:?}", released.last());
    for window in released.windows(41) {
        assert!(window[40].abs_diff(window[0]) >= Duration::from_millis(990), "more than 40 within a second");
    }
}

#[test]
fn owner_with_waiting_pods_backs_off() {
    let start = Instant::now();
    let mut planner = Planner::new(ReleaseSettings::default());
    let mut tried = Vec::new();
    let mut since = 0;
    // Each time the pod is deleted, its owner creates a new one, which waits from the next second on.
    for second in 0..2_000_u64 {
        let name = format!("p{since}");
        let waiting = pods(start, &[(&name, "web", since)]);
        let now = start + Duration::from_secs(second);
        if since <= second && !planner.plan(now, Injection::Answering, &waiting, |_| HELD).steps.is_empty() {
            tried.push(second);
            since = second + 1;
        }
    }
    let pauses: Vec<u64> = tried.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(pauses.get(..6).unwrap(), [11, 21, 41, 81, 161, 301]);
    assert!(pauses.iter().skip(5).all(|pause| *pause == 301), "{pauses:?}");
}

#[test]
fn tests_one_pod_after_back_off() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut planner = Planner::new(ReleaseSettings::default());
    let plan = |planner: &mut Planner, second, all: &[(&str, &str, u64)]| {
        let plan = planner.plan(at(second), Injection::Answering, &pods(start, all), |_| HELD);
        recreated(&plan).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(plan(&mut planner, 0, &[("a", "web", 0), ("b", "web", 0)]), ["a", "b"]);
    let again = [("c", "web", 1), ("d", "web", 1), ("e", "web", 1)];
    assert_eq!(plan(&mut planner, 1, &again), [""; 0]);
    assert_eq!(plan(&mut planner, 10, &again), [""; 0]);
    assert_eq!(plan(&mut planner, 11, &again), ["c"]);
    assert_eq!(plan(&mut planner, 12, &again[1..]), [""; 0]);
    assert_eq!(plan(&mut planner, 16, &again[1..]), ["d", "e"]);
}

#[test]
fn outage_causes_no_back_off() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut planner = Planner::new(ReleaseSettings::default());
    let first = pods(start, &[("a", "web", 0)]);
    assert_eq!(planner.plan(at(0), Injection::Answering, &first, |_| HELD).steps.len(), 1);
    let second = pods(start, &[("b", "web", 20), ("c", "web", 21)]);
    assert_eq!(planner.plan(at(21), Injection::Silent, &second, |_| HELD).steps.len(), 0);
    assert_eq!(planner.plan(at(30), Injection::Answering, &second, |_| HELD).steps.len(), 2);
}

#[test]
fn failing_owner_does_not_delay_others() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut planner = Planner::new(ReleaseSettings::default());
    let one = pods(start, &[("a", "web", 0)]);
    planner.plan(at(0), Injection::Answering, &one, |_| HELD);
    let two = pods(start, &[("b", "web", 1), ("c", "db", 1)]);
    let plan = planner.plan(at(2), Injection::Answering, &two, |_| HELD);
    assert_eq!(recreated(&plan), ["c"]);
}

#[test]
fn pod_without_owner_is_reported_once() {
    let now = Instant::now();
    let mut planner = Planner::new(ReleaseSettings::default());
    let waiting = pods(now, &[("bare", "", 0)]);
    let report = vec![Step::Report(key("bare"))];
    assert_eq!(planner.plan(now, Injection::Answering, &waiting, |_| HELD).steps, report);
    assert_eq!(planner.plan(now, Injection::Answering, &waiting, |_| HELD).steps, []);
    assert_eq!(planner.plan(now, Injection::Answering, &BTreeMap::new(), |_| HELD), Plan::default());
    assert_eq!(
        planner.plan(now, Injection::Answering, &waiting, |_| HELD).steps,
        report,
        "a new pod of the same name is reported again"
    );
}

#[test]
fn unlabelled_namespace_releases_pods_without_webhook() {
    let now = Instant::now();
    let mut planner = Planner::new(ReleaseSettings::default());
    let waiting = pods(now, &[("bare", "", 0), ("web", "web", 0)]);
    let plan = planner.plan(now, Injection::Silent, &waiting, |_| NamespaceState::NotOptedIn);
    assert_eq!(plan.steps, [Step::RemoveGate(key("bare")), Step::RemoveGate(key("web"))]);
}
