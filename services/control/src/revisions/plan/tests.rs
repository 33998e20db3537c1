use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pillion_api::kinds::UpgradeStatus;
use pillion_api::profile::RolloutStep;
use pillion_engine::profile::Part;

use super::*;

/// The inputs of a test case.
struct Case {
    accepted: Option<Accepted>,
    diagnostics: Option<Vec<Diagnostic>>,
    bounds: Option<RevisionBounds>,
    status: ProfileStatus,
    /// The revision to publish, the one that is rolled back, and the time of the request.
    rollback: Option<(&'static str, Option<&'static str>, Option<&'static str>)>,
    existing: BTreeMap<Box<str>, Timestamp>,
    parents: BTreeSet<Box<str>>,
    conflict: Option<Conflict>,
    verdict: Option<Verdict>,
    highest: RolloutStrategy,
}

impl Case {
    /// Creates a profile whose latest generation compiles to the revision `accepted`; `None` if none compiles.
    /// `existing` has the existing revisions, oldest first.
    fn new(accepted: Option<&str>, existing: &[&str]) -> Self {
        let created = |number: usize| Timestamp::from_second(i64::try_from(number).unwrap()).unwrap();
        Self {
            accepted: accepted.map(|revision| Accepted {
                revision: revision.into(),
                activation: Activation::Requested,
                rollout: None,
            }),
            diagnostics: None,
            bounds: None,
            status: ProfileStatus::default(),
            rollback: None,
            existing: existing.iter().enumerate().map(|(n, revision)| (Box::from(*revision), created(n))).collect(),
            parents: BTreeSet::new(),
            conflict: None,
            verdict: None,
            highest: RolloutStrategy::Restart,
        }
    }

    fn published(mut self, revision: &str, promoted: Option<&str>) -> Self {
        self.status.revision = Some(revision.to_owned());
        self.status.accepted_revision = Some(revision.to_owned());
        self.status.activation = Some(Activation::Requested);
        self.status.promoted_revision = promoted.map(str::to_owned);
        self
    }

    fn rollout(mut self, percent: u8) -> Self {
        let rollout = Rollout { percent: Some(percent), ..Rollout::default() };
        if let Some(accepted) = &mut self.accepted {
            accepted.rollout = Some(rollout);
        }
        self
    }

    fn broken(mut self) -> Self {
        let fault = Diagnostic { path: "spec.x".into(), message: "is wrong".into(), help: None, part: Part::Value };
        self.diagnostics = Some(vec![fault]);
        self
    }

    fn plan(&self) -> Plan {
        self.plan_keeping(10)
    }

    fn plan_keeping(&self, keep: usize) -> Plan {
        let request = self.rollback.map(|(to, from, time)| RollbackRequest {
            to: to.into(),
            from: from.map(Box::from),
            requested_at: time.map(Box::from),
        });
        let observed = Observed {
            uncovered: None,
            generation: Some(7),
            is_namespaced: false,
            accepted: self.accepted.clone(),
            rejected: self.diagnostics.as_deref(),
            bounds: self.bounds,
            status: &self.status,
            rollback: request.as_ref(),
            existing: &self.existing,
            bounded_by_parent: &self.parents,
            namespaces: 3,
            conflict: self.conflict.as_ref(),
            verdict: self.verdict.as_ref(),
        };
        let limits = RolloutLimits { platform: self.highest, ..RolloutLimits::default() };
        plan(&observed, PlanSettings { keep, limits })
    }

    /// Returns the published revision, the promoted revision, and the percentage of the rollout.
    fn result(&self) -> (Option<String>, Option<String>, Option<u8>) {
        let status = self.plan().status.expect("a status to write");
        let percent = status.rollout.as_ref().and_then(|rollout| rollout.percent);
        (status.revision, status.promoted_revision, percent)
    }

    fn after(mut self, plan: &Plan) -> Self {
        self.status = plan.status.clone().unwrap();
        self
    }
}

fn all(revision: &str) -> (Option<String>, Option<String>, Option<u8>) {
    (Some(revision.to_owned()), Some(revision.to_owned()), None)
}

fn some(newest: &str, promoted: Option<&str>, percent: u8) -> (Option<String>, Option<String>, Option<u8>) {
    (Some(newest.to_owned()), promoted.map(str::to_owned), Some(percent))
}

#[test]
fn revision_is_created_before_status_names_it() {
    let plan = Case::new(Some("b"), &["a"]).published("a", Some("a")).plan();
    assert_eq!(plan, Plan { create: true, dry_run: false, status: None, events: Vec::new(), delete: Vec::new() });
    assert_eq!(Case::new(Some("b"), &["a", "b"]).published("a", Some("a")).result(), all("b"));
}

#[test]
fn desired_status_is_not_written_again() {
    let first = Case::new(Some("a"), &["a"]).plan();
    let status = first.status.clone().unwrap();
    assert_eq!((status.observed_generation, status.namespaces_matched), (Some(7), Some(3)));
    assert_eq!(status.activation, Some(Activation::Requested));
    assert_eq!(status.revisions, ["a"]);
    let case = Case::new(Some("a"), &["a"]).after(&first);
    assert_eq!(
        case.plan(),
        Plan { create: false, dry_run: true, status: None, events: Vec::new(), delete: Vec::new() }
    );
    // A condition that another client wrote does not change the plan.
    let mut case = case;
    let mut foreign = case.status.conditions[0].clone();
    foreign.type_ = "Theirs".to_owned();
    case.status.conditions.push(foreign);
    assert_eq!(case.plan().status, None);
}

#[test]
fn conflict_changes_only_its_condition() {
    let first = Case::new(Some("a"), &["a"]).plan();
    let mut case = Case::new(Some("a"), &["a"]).after(&first);
    case.conflict = Some(Conflict::AmbiguousRequest { key: "example.com/inject".into(), others: vec!["other".into()] });
    let plan = case.plan();
    let status = plan.status.clone().unwrap();
    let condition = status.conditions.iter().find(|condition| condition.type_ == CONFLICTED).unwrap();
    assert_eq!((&*condition.status, &*condition.reason), ("True", "AmbiguousRequest"));
    assert!(condition.message.contains("example.com/inject could mean this profile or other"), "{}", condition.message);
    assert_eq!((plan.events.len(), status.revision.as_deref(), &*status.conditions[1].status), (0, Some("a"), "True"));
    let mut case = case.after(&plan);
    assert_eq!(case.plan().status, None, "the conflict is written once");
    case.conflict = None;
    assert_eq!(case.plan().status.unwrap().conditions[2].reason, "NoConflict");
}

#[test]
fn broken_generation_changes_no_publication() {
    // The plan is the same if only the status names the accepted revision.
    for accepted in [Some("a"), None] {
        let case = Case::new(accepted, &["a"]).published("a", Some("a")).broken();
        assert_eq!(case.result(), all("a"), "{accepted:?}");
        let plan = case.plan();
        let status = plan.status.as_ref().unwrap();
        let found: Vec<_> = status.conditions.iter().map(|c| (&*c.type_, &*c.status, &*c.reason)).collect();
        assert_eq!(
            found,
            [
                ("Accepted", "False", "Invalid"),
                ("Ready", "False", "LastAccepted"),
                ("Conflicted", "False", "NoConflict")
            ]
        );
        assert_eq!(status.conditions[0].message, "spec.x: is wrong");
        assert_eq!(status.activation, Some(Activation::Requested), "the activation of the accepted revision is kept");
        assert!(
            matches!(plan.events.as_slice(), [ProfileEvent::Rejected(text)] if text.contains("spec.x") && text.contains("revision a"))
        );
        // Each generation is reported once, even if the leader changes.
        assert_eq!(case.after(&plan).plan().events, []);
    }
    let never = Case::new(None, &[]).broken().plan().status.unwrap();
    assert_eq!((never.revision, &*never.conditions[1].status), (None, "False"));
}

#[test]
fn broken_text_keeps_active_rollout() {
    for accepted in [Some("b"), None] {
        let mut case = Case::new(accepted, &["a", "b"]).published("b", Some("a")).broken();
        case.status.rollout = Some(Rollout { percent: Some(10), ..Rollout::default() });
        assert_eq!(case.result(), some("b", Some("a"), 10), "{accepted:?}");
    }
}

#[test]
fn withdrawn_permission_ends_publication() {
    let mut case = Case::new(None, &["a"]).published("a", Some("a")).broken();
    case.bounds = Some(RevisionBounds::Parent);
    assert_eq!(case.result(), (None, None, None));
    case.bounds = Some(RevisionBounds::Tenant);
    assert_eq!(case.result(), all("a"));
}

#[test]
fn profile_bounded_by_parent_has_no_rollout() {
    let case = || {
        let mut case = Case::new(Some("b"), &["a", "b"]).published("a", Some("a"));
        case.bounds = Some(RevisionBounds::Parent);
        case.parents = ["a", "b"].map(Box::from).into();
        case
    };
    let mut rolled_back = case();
    rolled_back.rollback = Some(("a", None, None));
    for case in [case(), case().rollout(0), case().rollout(0).broken(), rolled_back] {
        assert_eq!(case.result(), all("b"));
        let plan = case.plan();
        assert_eq!(plan.status.unwrap().revisions, ["b"], "no older revision is kept");
        assert_eq!(plan.delete, ["a".into()]);
    }
    // If the profile adds fields of its own, the limits of namespaced profiles apply to it. The earlier revision, which
    // only its parent bounded, must not remain published.
    let own = |rollback| {
        let mut case = Case::new(Some("b"), &["a", "b"]).published("a", Some("a")).rollout(0);
        case.bounds = Some(RevisionBounds::Tenant);
        case.parents = [Box::from("a")].into();
        case.rollback = rollback;
        case
    };
    for case in [own(None), own(Some(("a", None, None)))] {
        assert_eq!(case.result(), some("b", None, 0));
        assert_eq!(case.plan().status.unwrap().revisions, ["b"]);
    }
}

#[test]
fn deleted_promoted_revision_stays_in_status() {
    let mut case = Case::new(Some("b"), &["b"]).published("b", Some("a")).rollout(10);
    case.status.rollout = Some(Rollout { percent: Some(10), ..Rollout::default() });
    assert_eq!(case.result(), some("b", Some("a"), 10), "replicas that have the revision continue to serve it");
    let after = case.plan();
    assert_eq!(after.status.as_ref().unwrap().revisions, ["b"]);
    assert!(after.status.as_ref().unwrap().conditions[1].message.contains("which was deleted"));
    assert_eq!(case.after(&after).plan().status, None);
}

#[test]
fn rollout_keeps_promoted_revision_until_complete() {
    let with = |status: &(Option<String>, Option<String>, Option<u8>), accepted: &str, percent| {
        let mut case = Case::new(Some(accepted), &["a", "b", "c"]).rollout(percent);
        (case.status.revision, case.status.promoted_revision) = (status.0.clone(), status.1.clone());
        case.result()
    };
    let first = with(&(None, None, None), "a", 10);
    assert_eq!(first, some("a", None, 10), "pods outside of the rollout get no revision");
    let whole = with(&first, "a", 100);
    assert_eq!(whole, all("a"));
    let tenth = with(&whole, "b", 10);
    assert_eq!(tenth, some("b", Some("a"), 10));
    let half = with(&tenth, "b", 50);
    assert_eq!(half, some("b", Some("a"), 50));
    let other = with(&half, "c", 50);
    assert_eq!(other, some("c", Some("a"), 50), "an incomplete rollout does not promote its revision");
    assert_eq!(with(&other, "a", 50), all("a"), "the promoted revision needs no rollout");
    assert_eq!(with(&other, "c", 100), all("c"));

    let mut selected = Case::new(Some("b"), &["a", "b"]).published("a", Some("a"));
    let selector = serde_json::from_value(serde_json::json!({"matchLabels": {"canary": "yes"}})).unwrap();
    selected.accepted.as_mut().unwrap().rollout =
        Some(Rollout { namespace_selector: Some(selector), ..Rollout::default() });
    let status = selected.plan().status.unwrap();
    assert_eq!((status.promoted_revision.as_deref(), status.rollout.is_some()), (Some("a"), true));
}

#[test]
fn rollback_ends_when_new_text_is_accepted() {
    let case = |accepted, to, from| {
        let mut case = Case::new(Some(accepted), &["aa11", "bb22", "cc33"]).published("bb22", Some("bb22")).rollout(10);
        case.rollback = Some((to, from, None));
        case
    };
    let rolled = case("bb22", "aa", Some("bb22"));
    assert_eq!(rolled.result(), all("aa11"), "a rollback ignores the rollout");
    let plan = rolled.plan();
    let status = plan.status.as_ref().unwrap();
    assert_eq!((status.accepted_revision.as_deref(), &*status.conditions[1].reason), (Some("bb22"), "RolledBack"));
    assert!(matches!(plan.events.as_slice(), [ProfileEvent::RolledBack(text)] if text.contains("aa11")));

    assert_eq!(
        case("cc33", "aa11", Some("bb22")).result(),
        some("cc33", Some("bb22"), 10),
        "a spec that is accepted later ends the rollback"
    );
    assert_eq!(case("cc33", "aa11", None).result(), all("aa11"), "without `rollback-from`, the rollback has no end");
    for unknown in ["dd", "", "a1"] {
        let case = case("bb22", unknown, Some("bb22"));
        let status = case.plan().status.unwrap();
        assert_eq!(status.revision.as_deref(), Some("bb22"), "{unknown}");
        assert!(status.conditions[1].message.contains("rollback-to"), "{:?}", status.conditions[1]);
    }
    let mut ambiguous = Case::new(Some("ab11"), &["aa11", "ab11"]).published("ab11", Some("ab11"));
    ambiguous.rollback = Some(("a", None, None));
    assert_eq!(ambiguous.result(), all("ab11"));
}

#[test]
fn keeps_latest_and_used_revisions() {
    let names: Vec<String> = (0..8).map(|number| format!("r{number}")).collect();
    let existing: Vec<&str> = names.iter().map(String::as_str).collect();
    let plan = Case::new(Some("r7"), &existing).published("r7", Some("r1")).rollout(10).plan_keeping(3);
    assert_eq!(plan.status.unwrap().revisions, ["r7", "r6", "r5", "r1"]);
    let delete: Vec<_> = plan.delete.iter().map(|revision| &**revision).collect();
    assert_eq!(delete, ["r4", "r3", "r2", "r0"]);
    // An older revision that is published again is the last published one.
    let plan = Case::new(Some("r0"), &existing).published("r7", Some("r7")).plan_keeping(3);
    assert_eq!(plan.status.unwrap().revisions, ["r0", "r7", "r6"]);
}

/// Accepts specs and requests rollbacks one after the other, each with the status after the previous step.
struct CaseSequence {
    case: Case,
}

impl CaseSequence {
    fn new() -> Self {
        Self { case: Case::new(Some("a"), &["a", "b", "c", "d"]) }
    }

    /// Accepts a spec as this revision. Returns the served revision and the kept ones.
    fn accept(&mut self, revision: &str) -> (String, Vec<String>) {
        self.case.accepted =
            Some(Accepted { revision: revision.into(), rollout: None, activation: Activation::Requested });
        self.settle()
    }

    fn roll_back(
        &mut self,
        to: &'static str,
        from: Option<&'static str>,
        time: Option<&'static str>,
    ) -> (String, Vec<String>) {
        self.case.rollback = Some((to, from, time));
        self.settle()
    }

    /// Plans until nothing is left to write, since the written status is an input of the next plan.
    fn settle(&mut self) -> (String, Vec<String>) {
        for _ in 0..4 {
            let Some(status) = self.case.plan().status else { break };
            self.case.status = status;
        }
        assert_eq!(self.case.plan().status, None, "each plan changes the status again");
        (self.case.status.revision.clone().unwrap(), self.case.status.revisions.clone())
    }
}

fn served(revision: &str, kept: &[&str]) -> (String, Vec<String>) {
    (revision.to_owned(), kept.iter().map(|&kept| kept.to_owned()).collect())
}

#[test]
fn ended_rollback_does_not_begin_again() {
    let mut story = CaseSequence::new();
    for text in ["a", "b", "c"] {
        story.accept(text);
    }
    assert_eq!(story.roll_back("b", Some("c"), Some("t1")), served("b", &["c", "b", "a", "d"]));
    let status = &story.case.status;
    assert_eq!(status.rollback().map(|rollback| (rollback.to, rollback.from)), Some(("b", "c")));
    assert_eq!(status.conditions[1].message, "rolled back from c: all workloads get revision b");
    // A broken edit does not end the rollback.
    let mut broken = Case { status: story.case.status.clone(), ..Case::new(Some("c"), &["a", "b", "c", "d"]) }.broken();
    broken.rollback = story.case.rollback;
    assert_eq!(broken.plan().status.unwrap().revision.as_deref(), Some("b"));

    assert_eq!(story.accept("d"), served("d", &["d", "b", "c", "a"]));
    // The author applies the rolled-back spec again while the annotations are still present. The ended rollback does
    // not start again.
    assert_eq!(story.accept("c"), served("c", &["c", "d", "b", "a"]));
    assert_eq!((story.case.status.rollback(), story.case.status.ended_rollback.as_deref()), (None, Some("b c t1")));
    // The next request for the same revisions is a new one.
    assert_eq!(story.roll_back("b", Some("c"), Some("t2")).0, "b");
    assert_eq!(story.case.status.ended_rollback, None);
}

#[test]
fn revisions_are_in_order_of_publication() {
    let mut story = CaseSequence::new();
    for text in ["a", "b", "c"] {
        story.accept(text);
    }
    // The second rollback in a row goes further back than the first.
    assert_eq!(story.roll_back("b", Some("c"), Some("t1")).1[..3], ["c", "b", "a"]);
    assert_eq!(story.roll_back("a", Some("c"), Some("t2")), served("a", &["c", "b", "a", "d"]));
    assert_eq!(story.accept("d"), served("d", &["d", "a", "c", "b"]), "the previously active revision is second");
    // The next leader has the order from the status, and not from the times of creation.
    assert_eq!(story.accept("b"), served("b", &["b", "d", "a", "c"]));
    // Without `rollback-from`, a spec that is accepted meanwhile is not published, but kept as the latest revision.
    let mut story = CaseSequence::new();
    story.accept("a");
    story.accept("b");
    story.case.existing.remove("c");
    story.roll_back("a", None, None);
    story.case.status.revisions.retain(|revision| revision != "d");
    assert_eq!(story.accept("d"), served("a", &["d", "b", "a"]));
}

#[test]
fn event_names_revision_and_end_of_rollback() {
    let mut story = CaseSequence::new();
    story.accept("a");
    story.accept("b");
    story.roll_back("a", Some("b"), None);
    story.case.accepted = Some(Accepted { revision: "c".into(), rollout: None, activation: Activation::Requested });
    let expected = "revision c is published instead of a; this ends the rollback";
    assert_eq!(story.case.plan().events, [ProfileEvent::Published(expected.to_owned())]);
}

#[test]
fn unlisted_revision_of_same_second_is_latest() {
    let mut case = Case::new(Some("a"), &["a", "b", "c"]);
    case.existing.values_mut().for_each(|created| *created = Timestamp::UNIX_EPOCH);
    case.status.revisions = vec!["c".to_owned(), "b".to_owned()];
    assert_eq!(case.plan().status.unwrap().revisions, ["a", "c", "b"]);
}

#[test]
fn summary_of_errors_is_bounded() {
    let fault = |number: usize| Diagnostic {
        path: format!("spec.x[{number}]"),
        message: "é".repeat(300),
        help: None,
        part: Part::Value,
    };
    let text = summary(&(0..100).map(fault).collect::<Vec<_>>());
    assert!(text.len() < MESSAGE_BYTES + 50 && text.ends_with("more"), "{}", text.len());
    let long = Diagnostic { message: "é".repeat(5_000), ..fault(0) };
    assert!(summary(&[long]).len() <= MESSAGE_BYTES);
}

/// Returns the status and the reason of the condition for the dry run, and whether its message contains `message`.
fn condition_of_dry_run(status: &ProfileStatus, message: &str) -> (String, String, bool) {
    let found = status.conditions.iter().find(|condition| condition.type_ == VALID).expect("the condition");
    (found.status.clone(), found.reason.clone(), found.message.contains(message))
}

#[test]
fn dry_run_result_is_reported_once() {
    let of = |state: &str, reason: &str| (state.to_owned(), reason.to_owned(), true);
    let first = Case::new(Some("a"), &["a"]).plan();
    assert!(first.dry_run, "publication does not wait for the dry run: {first:?}");
    assert_eq!(condition_of_dry_run(first.status.as_ref().unwrap(), "revision a"), of("Unknown", "Pending"));

    let mut case = Case::new(Some("a"), &["a"]).after(&first);
    case.verdict = Some(Verdict::Rejected("spec.containers[1].name: Invalid value".to_owned()));
    let rejected = case.plan();
    assert!(!rejected.dry_run);
    let status = rejected.status.as_ref().unwrap();
    assert_eq!(condition_of_dry_run(status, "revision a: spec.containers[1].name"), of("False", "DryRun"));
    assert_eq!(status.revision.as_deref(), Some("a"), "a rejected revision is published too");
    assert!(
        matches!(rejected.events.as_slice(), [ProfileEvent::Invalid(text)] if text.contains("spec.containers[1].name"))
    );

    // The next leader reads the result in the status.
    let mut case = case.after(&rejected);
    case.verdict = None;
    let idle = Plan { create: false, dry_run: false, status: None, events: Vec::new(), delete: Vec::new() };
    assert_eq!(case.plan(), idle);

    // The stored result is not used for another revision.
    let (accepted, existing) = (Some("b"), ["a", "b"]);
    let mut case = Case { status: case.status, ..Case::new(accepted, &existing) };
    let next = case.plan();
    assert!(next.dry_run);
    assert_eq!(condition_of_dry_run(next.status.as_ref().unwrap(), "revision b"), of("Unknown", "Pending"));
    case = case.after(&next);
    case.verdict = Some(Verdict::NotApplicable("a condition".to_owned()));
    let unknown = case.plan();
    assert!(!unknown.dry_run && unknown.events.is_empty());
    assert_eq!(condition_of_dry_run(unknown.status.as_ref().unwrap(), "a condition"), of("Unknown", "NotApplicable"));
}

#[test]
fn dry_run_without_response_is_retried() {
    let first = Case::new(Some("a"), &["a"]).plan();
    let mut case = Case::new(Some("a"), &["a"]).after(&first);
    case.verdict = Some(Verdict::NotRequested("forbidden".to_owned()));
    let plan = case.plan();
    assert!(plan.dry_run && plan.events.is_empty());
    let mut case = case.after(&plan);
    assert!(case.plan().dry_run && case.plan().status.is_none(), "the status is written once");
    case.verdict = None;
    assert!(case.plan().dry_run && case.plan().status.is_none(), "the next leader does not write it again");
    case.verdict = Some(Verdict::Valid);
    let plan = case.plan();
    assert!(!plan.dry_run);
    assert_eq!(condition_of_dry_run(plan.status.as_ref().unwrap(), "accepts").0, "True");

    // Without an accepted revision, no dry run is needed.
    let never = Case::new(None, &[]).broken().plan();
    assert!(!never.dry_run && never.status.unwrap().conditions.iter().all(|condition| condition.type_ != VALID));
}

#[test]
fn running_pods_are_upgraded_before_promotion() {
    let mut case = Case::new(Some("b"), &["a", "b"]).published("a", Some("a"));
    let strategy = Some(RolloutStrategy::InPlace);
    case.accepted.as_mut().unwrap().rollout = Some(Rollout { strategy, ..Rollout::default() });
    let mut without_controller = Case { highest: RolloutStrategy::OnCreate, ..case };
    assert_eq!(without_controller.result(), all("b"));
    let plan = without_controller.plan().status.unwrap();
    let ready = plan.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
    assert!(
        ready.message.ends_with("has no effect, because of the chart's value rollout.inPlace"),
        "{}",
        ready.message
    );

    without_controller.highest = RolloutStrategy::InPlace;
    let mut case = without_controller;
    assert_eq!(case.result(), some("b", Some("a"), 0));
    let published = case.plan().status.unwrap();
    assert_eq!(published.rollout.as_ref().unwrap().strategy, None, "older replicas do not know the field");
    case.status = published;
    let since = Time(Timestamp::UNIX_EPOCH);
    let mut upgrade = UpgradeStatus::new("b", Some("a"), UpgradePhase::SteppedBack, since);
    for phase in [UpgradePhase::SteppedBack, UpgradePhase::Baking, UpgradePhase::Halted] {
        upgrade.phase = phase;
        case.status.upgrade = Some(upgrade.clone());
        assert_eq!(case.plan().status, None, "{phase:?} changes nothing, and the field of another writer is kept");
    }
    // Completion of another revision's rollout promotes nothing.
    upgrade.phase = UpgradePhase::Complete;
    case.status.upgrade = Some(UpgradeStatus { revision: "a".to_owned(), ..upgrade.clone() });
    assert_eq!(case.plan().status, None);
    case.status.upgrade = Some(upgrade);
    assert_eq!(case.result(), all("b"));
    // Another revision is accepted before the promotion is written.
    let mut next = Case::new(Some("c"), &["a", "b", "c"]);
    next.accepted.as_mut().unwrap().rollout = Some(Rollout { strategy, ..Rollout::default() });
    next.status = case.status;
    assert_eq!(next.result(), some("c", Some("b"), 0));
    // Pods that replace evicted ones get the revision, in the share of the step. After a failure, no new pod does.
    let strategy = Some(RolloutStrategy::Restart);
    let steps = vec![RolloutStep { percent: 5, bake_seconds: None, pause: None }];
    next.accepted.as_mut().unwrap().rollout = Some(Rollout { strategy, steps, ..Rollout::default() });
    next.highest = RolloutStrategy::InPlace;
    let plan = next.plan().status.unwrap();
    let ready = plan.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
    assert!(
        ready.message.ends_with("acts as InPlace, because of the chart's value rollout.restart"),
        "{}",
        ready.message
    );
    assert_eq!(next.result(), some("c", Some("b"), 0));
    next.highest = RolloutStrategy::Restart;
    assert_eq!(next.result(), some("c", Some("b"), 0), "the task has not begun the rollout");
    next.status = next.plan().status.unwrap();
    for (phase, step, percent) in [
        (UpgradePhase::Upgrading, 0, 5),
        (UpgradePhase::Baking, 0, 5),
        (UpgradePhase::Upgrading, 1, 100),
        (UpgradePhase::SteppingBack, 1, 0),
        (UpgradePhase::Halted, 0, 0),
    ] {
        let since = Time(Timestamp::UNIX_EPOCH);
        let upgrade = UpgradeStatus { step, ..UpgradeStatus::new("c", Some("b"), phase, since) };
        next.status.upgrade = Some(upgrade);
        if percent == 0 {
            assert_eq!(next.plan().status, None, "{phase:?}: the share stays 0");
        } else {
            assert_eq!(next.result(), some("c", Some("b"), percent), "{phase:?} {step}");
        }
    }
    // The platform no longer allows rollouts: the failed revision is not promoted.
    next.highest = RolloutStrategy::OnCreate;
    assert_eq!(next.result(), some("c", Some("b"), 0));
    let plan = next.plan().status.unwrap();
    let ready = plan.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
    assert!(ready.message.contains("the strategy Restart is suspended"), "{}", ready.message);
    // The first revision of a profile is served at once.
    let strategy = Some(RolloutStrategy::InPlace);
    let mut first = Case::new(Some("a"), &["a"]);
    first.accepted.as_mut().unwrap().rollout = Some(Rollout { strategy, ..Rollout::default() });
    assert_eq!(first.result(), all("a"));
}
