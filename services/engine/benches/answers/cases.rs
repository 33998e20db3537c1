//! The benchmark cases of the engine and their limits, shared by the benchmark and the tests of instructions and
//! allocations.

use std::sync::Arc;

use pillion_api::names::FailureMode;
use pillion_engine::decision::ProfileOutcome;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

/// A review for a pod of a Deployment, captured from a real API server: 7.5 KB.
const CAPTURED: &str = include_str!("../../tests/reviews/create-deployment-pod.json");

const LOG_SHIPPER: &str = include_str!("../profiles/log-shipper.json");
const LOG_COLLECTOR: &str = include_str!("../profiles/log-collector.json");
const TRACE_AGENT: &str = include_str!("../profiles/trace-agent.json");
const SECRET_AGENT: &str = include_str!("../profiles/secret-agent.json");
const ENV_ENTRIES: &str = include_str!("../profiles/env-entries.json");

/// A sidecar with a volume and an annotation, without expressions.
const STATIC: &[&str] = &[LOG_SHIPPER];
/// Profiles with ten expressions in total: parameters, a variable, a condition, environment variables for each
/// container, and mounts for each volume.
const EXPRESSIONS: &[&str] = &[LOG_COLLECTOR, TRACE_AGENT, SECRET_AGENT];
const TWO: &[&str] = &[LOG_SHIPPER, SECRET_AGENT];

/// A benchmark case: a set of profiles, and the review of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// One static profile on the captured pod.
    One,
    /// Three profiles with ten expressions on the captured pod.
    Three,
    /// Five environment variables that reference others, added to a container with 1,000 variables.
    Env,
    /// One static profile on a pod of 218 KB.
    Large,
    /// One static profile on a pod of 428 KB.
    TwiceAsLarge,
    /// Two profiles, both applied.
    Two,
    /// The profiles of [`Self::Two`] among 2,000 profiles.
    Many,
}

/// The maximum cost of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// The number of instructions, as a multiple of those that parse the same body with `serde_json` into `IgnoredAny`.
    pub(crate) scans: f64,
    pub(crate) allocations: u64,
}

impl Case {
    pub(crate) const ALL: [Self; 7] =
        [Self::One, Self::Three, Self::Env, Self::Large, Self::TwiceAsLarge, Self::Two, Self::Many];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "one static profile",
            Self::Three => "three profiles, ten expressions",
            Self::Env => "pod of 1,000 env entries",
            Self::Large => "pod of 218 KB",
            Self::TwiceAsLarge => "pod of 428 KB",
            Self::Two => "two profiles",
            Self::Many => "two profiles of 2,000",
        }
    }

    pub(crate) const fn gate(self) -> Gate {
        let (scans, allocations) = match self {
            Self::One => (1.5, 26),
            Self::Three => (4.2, 115),
            Self::Env => (3.0, 90),
            Self::Large | Self::TwiceAsLarge => (1.0, 26),
            Self::Two | Self::Many => (2.5, 60),
        };
        Gate { scans, allocations }
    }

    pub(crate) fn work(self) -> Work {
        let (body, profiles) = match self {
            Self::One => (CAPTURED.into(), compiled(STATIC)),
            Self::Three => (CAPTURED.into(), compiled(EXPRESSIONS)),
            Self::Env => (with_env(1_000, 24), compiled(&[ENV_ENTRIES])),
            Self::Large => (with_env(1_000, 180), compiled(STATIC)),
            Self::TwiceAsLarge => (with_env(2_000, 180), compiled(STATIC)),
            Self::Two => (CAPTURED.into(), compiled(TWO)),
            Self::Many => (CAPTURED.into(), compiled(TWO).into_iter().chain(others(1_998)).collect()),
        };
        let applied = match self {
            Self::Three => 3,
            Self::Two | Self::Many => 2,
            Self::One | Self::Env | Self::Large | Self::TwiceAsLarge => 1,
        };
        let namespace = Review::parse(&body).unwrap().namespace().to_owned();
        let snapshot = Snapshot::new(ProfileSet::new(profiles))
            .with_namespace(&namespace, Some(Namespace::opted_in(FailureMode::Enabled)));
        let work = Work { body, snapshot };
        // This call also fills the snapshot's cache for the namespace, so that later measurements exclude that cost.
        assert_eq!(work.applied(), applied, "{self:?} applies an unexpected number of profiles");
        work
    }
}

/// A request, and the snapshot for its decision.
pub(crate) struct Work {
    pub(crate) body: Vec<u8>,
    snapshot: Snapshot,
}

impl Work {
    /// Processes the request like the webhook does: from the complete request body to the response body.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let review = Review::parse(&self.body).unwrap();
        let facts = Facts { namespace: self.snapshot.namespace(review.namespace()), ..Facts::default() };
        let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), &self.snapshot, &facts).unwrap();
        review.respond(&decided)
    }

    /// Returns the number of applied profiles.
    fn applied(&self) -> usize {
        let review = Review::parse(&self.body).unwrap();
        let facts = Facts { namespace: self.snapshot.namespace(review.namespace()), ..Facts::default() };
        let decided = review.decide(Endpoint::FailureMode(FailureMode::Enabled), &self.snapshot, &facts).unwrap();
        let profiles = decided.decision.profiles.iter();
        profiles.filter(|profile| profile.outcome == ProfileOutcome::Applied).count()
    }

    /// Parses the body and stores nothing. The number of instructions of this function is the unit of cost.
    pub(crate) fn scan(&self) {
        serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).unwrap();
    }

    /// Returns the number of allocations of [`Self::answer`].
    pub(crate) fn allocations(&self) -> u64 {
        allocation_counter::measure(|| drop(self.answer())).count_total
    }
}

/// Returns the captured review with `variables` additional environment variables, each with a value of `length` bytes.
fn with_env(variables: usize, length: usize) -> Vec<u8> {
    let mut review: Json = serde_json::from_str(CAPTURED).unwrap();
    let env = review["request"]["object"]["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    let value = "x".repeat(length);
    env.extend((0..variables).map(|number| json!({"name": format!("VARIABLE_{number}"), "value": value})));
    serde_json::to_vec(&review).unwrap()
}

/// Compiles cluster profiles from manifests.
fn compiled(texts: &[&str]) -> Vec<Arc<CompiledProfile>> {
    let objects = texts.iter().map(|text| serde_json::from_str::<Json>(text).unwrap());
    objects.map(|object| profile(object["metadata"]["name"].as_str().unwrap(), &object["spec"])).collect()
}

/// Returns profiles that no pod requests.
fn others(count: usize) -> impl Iterator<Item = Arc<CompiledProfile>> {
    (0..count).map(|number| {
        let spec = json!({
            "requestedBy": {"annotation": format!("example.com/inject-{number}")},
            "template": {"metadata": {"labels": {"injected": "yes"}}},
        });
        profile(&format!("other-{number}"), &spec)
    })
}

fn profile(name: &str, spec: &Json) -> Arc<CompiledProfile> {
    let spec = serde_json::from_value(spec.clone()).unwrap();
    Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap_or_else(|wrong| panic!("{name}: {wrong:?}")))
}
