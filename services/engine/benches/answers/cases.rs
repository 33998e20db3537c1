//! The work that the engine is measured by, and what each piece of it may cost. The benchmark, the gates on instructions
//! and the gates on allocations all take it from here.

use std::sync::Arc;

use pillion_api::names::InjectionLevel;
use pillion_engine::decision::ProfileOutcome;
use pillion_engine::profile::{CompiledProfile, ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use serde_json::{Value as Json, json};

/// A captured review of a real API server: a Deployment's pod, 7.5 KB.
const CAPTURED: &str = include_str!("../../tests/reviews/create-deployment-pod.json");

const LOG_SHIPPER: &str = include_str!("../profiles/log-shipper.json");
const LOG_COLLECTOR: &str = include_str!("../profiles/log-collector.json");
const TRACE_AGENT: &str = include_str!("../profiles/trace-agent.json");
const SECRET_AGENT: &str = include_str!("../profiles/secret-agent.json");
const ENV_ENTRIES: &str = include_str!("../profiles/env-entries.json");

/// A sidecar with its volume and an annotation, without any expression.
const STATIC: &[&str] = &[LOG_SHIPPER];
/// Ten expressions: parameters, a variable, a condition, environment of each container, mounts for each volume.
const EXPRESSIONS: &[&str] = &[LOG_COLLECTOR, TRACE_AGENT, SECRET_AGENT];
const TWO: &[&str] = &[LOG_SHIPPER, SECRET_AGENT];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// One static profile on the captured pod.
    One,
    /// Three profiles with ten expressions on the captured pod.
    Three,
    /// Five entries that refer to others, for a container that has a thousand.
    Env,
    /// One static profile on a pod of 218 KB.
    Large,
    /// The same on one that is twice as large.
    TwiceAsLarge,
    /// Two profiles that apply.
    Two,
    /// The same two among two thousand.
    Many,
}

/// What an answer may cost at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// Instructions, in those of one pass of `serde_json` over the same body that keeps nothing.
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
            .with_namespace(&namespace, Some(Namespace::opted_in(InjectionLevel::Enabled)));
        let work = Work { body, snapshot };
        // This also finds what is found once for a namespace.
        assert_eq!(work.applied(), applied, "{self:?} would measure something else");
        work
    }
}

/// A request and what it is decided by.
pub(crate) struct Work {
    pub(crate) body: Vec<u8>,
    snapshot: Snapshot,
}

impl Work {
    /// What the webhook does with a request between its last byte and the first of the answer.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let review = Review::parse(&self.body).unwrap();
        let facts = Facts { namespace: self.snapshot.namespace(review.namespace()), ..Facts::default() };
        let decided = review.decide(Endpoint::Level(InjectionLevel::Enabled), &self.snapshot, &facts).unwrap();
        review.respond(&decided)
    }

    /// How many profiles are applied.
    fn applied(&self) -> usize {
        let review = Review::parse(&self.body).unwrap();
        let facts = Facts { namespace: self.snapshot.namespace(review.namespace()), ..Facts::default() };
        let decided = review.decide(Endpoint::Level(InjectionLevel::Enabled), &self.snapshot, &facts).unwrap();
        let profiles = decided.decision.profiles.iter();
        profiles.filter(|profile| profile.outcome == ProfileOutcome::Applied).count()
    }

    /// The unit: one pass over the body that keeps nothing.
    pub(crate) fn scan(&self) {
        serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).unwrap();
    }

    /// How often an answer asks for memory.
    pub(crate) fn allocations(&self) -> u64 {
        allocation_counter::measure(|| drop(self.answer())).count_total
    }
}

/// The captured review with more environment variables, whose values are of such a length.
fn with_env(variables: usize, length: usize) -> Vec<u8> {
    let mut review: Json = serde_json::from_str(CAPTURED).unwrap();
    let env = review["request"]["object"]["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    let value = "x".repeat(length);
    env.extend((0..variables).map(|number| json!({"name": format!("VARIABLE_{number}"), "value": value})));
    serde_json::to_vec(&review).unwrap()
}

/// Cluster profiles as `kubectl` would apply them.
fn compiled(texts: &[&str]) -> Vec<Arc<CompiledProfile>> {
    let objects = texts.iter().map(|text| serde_json::from_str::<Json>(text).unwrap());
    objects.map(|object| profile(object["metadata"]["name"].as_str().unwrap(), &object["spec"])).collect()
}

/// Profiles that nobody asks for.
fn others(count: usize) -> impl Iterator<Item = Arc<CompiledProfile>> {
    (0..count).map(|number| {
        let spec = json!({
            "request": {"annotation": format!("example.com/inject-{number}")},
            "template": {"metadata": {"labels": {"injected": "yes"}}},
        });
        profile(&format!("other-{number}"), &spec)
    })
}

fn profile(name: &str, spec: &Json) -> Arc<CompiledProfile> {
    let spec = serde_json::from_value(spec.clone()).unwrap();
    Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap_or_else(|wrong| panic!("{name}: {wrong:?}")))
}
