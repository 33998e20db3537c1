//! Decides a review that has been read, as soon as everything that it needs is known.
//!
//! Computing and waiting are separate. `Admission::next` computes, on the thread that calls it. If it needs a lookup,
//! it returns that as data, and the caller calls it again with the result.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use pillion_api::names::InjectionLevel;
use pillion_engine::decision::{Decision, ProfileDecision, Reason};
use pillion_engine::lookup::{Answer, LookedUp, Wanted};
use pillion_engine::review::{Decided, Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, Snapshot};
use tokio::time::{Instant, timeout};
use tracing::Span;

use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::metrics::{Metrics, RequestOutcome, Tenant};
use crate::overload::{Deadline, OverloadSettings, Shed};
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::switch::Switch;
use crate::trace::RequestSpan;

/// The look-up of one namespace.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceLookup<'n> {
    /// Whatever a client wrote, of any length.
    pub name: &'n str,
    /// The client that sent the review.
    pub client: IpAddr,
    /// An answer that was given before this moment will not do: it contradicts what the API server calls.
    pub after: Option<Instant>,
}

/// Looks a namespace up where it is known for certain, because the snapshot does not know it: it may be a second old.
/// Missing: it is not known there either. Failed: it cannot be looked up now.
///
/// The router bounds the time of one look-up. The function has to make sure that the name can be one, and to bound the
/// look-ups' number, in all and for each client.
pub type LiveNamespace =
    Arc<dyn for<'n> Fn(NamespaceLookup<'n>) -> BoxFuture<'static, Answer<Arc<Namespace>>> + Send + Sync>;

/// Looks up what a review of this client wants besides its namespace: service accounts, owners, objects that profiles declare.
///
/// The router bounds the time of it, and asks only where something is wanted, which is seldom. The function remembers answers,
/// takes calls for the same object together, bounds the requests in all and for each client, and says of what could not be
/// had that it failed.
pub type LookUps = Arc<dyn Fn(Wanted, IpAddr) -> BoxFuture<'static, LookedUp> + Send + Sync>;

/// The limits of one request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestSettings {
    /// Bytes of a body. A review of an update holds two objects of up to 3 MiB.
    pub body_limit: usize,
    /// Bytes that the bodies of all requests may take together; what would be more is answered with 503. Large bodies
    /// leave a quarter of it to small ones.
    pub body_budget: usize,
    /// From the end of a request's head to the end of its body.
    pub body_timeout: Duration,
    /// How long the look-up of a namespace may take, and all that a review wants besides.
    pub live_timeout: Duration,
    /// How many requests there may be at one time, and how long they may take.
    pub overload: OverloadSettings,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            body_limit: 7 * 1024 * 1024,
            body_budget: 64 * 1024 * 1024,
            body_timeout: Duration::from_secs(5),
            live_timeout: Duration::from_millis(300),
            overload: OverloadSettings::default(),
        }
    }
}

/// What requests are answered with.
#[derive(Clone)]
pub struct Admission {
    /// Profiles and namespaces, replaced as a whole by whoever watches the cluster.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The look-up of namespaces that the snapshot does not know, if there is one.
    pub live_namespace: Option<LiveNamespace>,
    /// The look-ups that reviews want. Without it nothing is found.
    pub look_ups: Option<LookUps>,
    /// What the platform says, replaced as a whole by whoever reads its file.
    pub policy: Arc<ArcSwap<Policy>>,
    /// Whether anything is decided at all.
    pub switch: Switch,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
    /// The limits.
    pub settings: RequestSettings,
}

impl fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Admission")
            .field("live_namespace", &self.live_namespace.is_some())
            .field("look_ups", &self.look_ups.is_some())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A review's answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) outcome: RequestOutcome,
    pub(crate) body: Vec<u8>,
}

/// What has been looked up for a review so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    namespace: Answer<Arc<Namespace>>,
    looked_up: Option<LookedUp>,
}

/// What a review needs next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing: this is the answer.
    Answer(Answered),
    /// The namespace of this name. The snapshot does not know it, or what it knows contradicts the path that was called.
    Namespace { name: Box<str>, contradicts: bool },
    /// These look-ups.
    LookUps(Wanted),
}

/// What all parts of one decision share.
pub(crate) struct Case<'c> {
    pub(crate) endpoint: Endpoint,
    /// One state of the cluster from the first part to the last.
    pub(crate) snapshot: &'c Snapshot,
    pub(crate) span: &'c RequestSpan,
    /// Whose it is, for who counts that.
    pub(crate) tenant: &'c Tenant,
    /// When it has to be answered.
    pub(crate) deadline: Deadline,
}

/// On whose behalf something is looked up, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookUpTerms {
    pub(crate) client: IpAddr,
    pub(crate) deadline: Deadline,
}

/// How old an answer may be that settles a contradiction. Each pod of a namespace would cost a request otherwise, where
/// replicas are told of other opt-in labels than the controller.
const CONTRADICTION_FRESH_FOR: Duration = Duration::from_secs(1);

impl Admission {
    /// Decides about a review, or says what is needed for it. That is asked for at most once each. `resolve` is the span of
    /// finding that out, and ends where the decision begins.
    pub(crate) fn next(
        &self,
        case: &Case<'_>,
        review: &Review<'_>,
        known: &mut Known,
        resolve: &mut Span,
    ) -> Result<Next, Refusal> {
        let Case { endpoint, snapshot, span, tenant, deadline } = *case;
        if self.switch.is_off() {
            *resolve = Span::none();
            let decided = Decided { decision: Decision::skipped(Reason::SwitchedOff), patch: None };
            // The path says the level: what is known of the namespace does not matter.
            let decided = review.without_gate(endpoint, &Facts::default(), decided).map_err(Refusal::Fault)?;
            return Ok(Next::Answer(self.answer(case, review, &decided)));
        }
        let in_snapshot = snapshot.namespace(review.namespace());
        tenant.found(review.namespace(), in_snapshot.is_some());
        let contradicts = in_snapshot.as_ref().is_some_and(|namespace| contradicts(endpoint, namespace));
        // Where nothing can be looked up, what is known is all there is.
        let in_snapshot = in_snapshot.filter(|_| !contradicts || self.live_namespace.is_none());
        let namespace = match (in_snapshot, &known.namespace) {
            (Some(namespace), _) => Some(namespace),
            (None, Answer::Found(looked_up)) => Some(Arc::clone(looked_up)),
            // What profiles select by is not known, and the level asks for all of them: `failurePolicy` decides, unless another
            // replica, or this one in a second, knows it.
            (None, Answer::Failed(_)) if needs_namespace(endpoint) => return Err(Refusal::Shed(Shed::Namespace)),
            // Objects of the cluster's own have no namespace.
            (None, Answer::NotAsked) if self.live_namespace.is_some() && !review.namespace().is_empty() => {
                return Ok(Next::Namespace { name: review.namespace().into(), contradicts });
            }
            (None, _) => None,
        };
        let policy = self.policy.load();
        let mut facts = Facts {
            namespace,
            guardrails: policy.guardrails.clone(),
            deadline: Some(deadline.0.into_std()),
            ..Facts::default()
        };
        if let Some(looked_up) = known.looked_up.take() {
            facts.looked_up = looked_up;
        } else {
            let wanted = resolve.in_scope(|| review.needs(endpoint, snapshot, &facts));
            if !wanted.is_empty() {
                if self.look_ups.is_some() {
                    return Ok(Next::LookUps(wanted));
                }
                facts.looked_up = wanted.answered(&Answer::Missing);
            }
        }
        facts.looked_up.cluster.clone_from(&policy.cluster);
        *resolve = Span::none();
        let mut steps = span.steps();
        let decided = review.decide_observed(endpoint, snapshot, &facts, &mut steps).map_err(Refusal::Fault)?;
        drop(steps);
        Ok(Next::Answer(self.answer(case, review, &decided)))
    }

    /// Tells what was decided to all who want to know it.
    fn answer(&self, case: &Case<'_>, review: &Review<'_>, decided: &Decided) -> Answered {
        let Case { endpoint, span, .. } = *case;
        span.decided(&decided.decision);
        self.metrics.decided(&decided.decision, review.dry_run());
        if let Some(patch) = &decided.patch {
            self.metrics.patch_bytes.observe_bytes(patch.len());
        }
        log(endpoint, review, decided);
        let body = span.serialise().in_scope(|| review.respond(decided));
        Answered { outcome: RequestOutcome::Decided(decided.decision.outcome), body }
    }

    /// Looks up what is needed, as far as it is to be had in time; the answer if nothing is.
    pub(crate) async fn fetch(&self, next: Next, known: &mut Known, terms: LookUpTerms) -> Option<Answered> {
        match next {
            Next::Answer(answered) => return Some(answered),
            Next::Namespace { name, contradicts } => {
                known.namespace = self.look_up(&name, contradicts, terms).await;
            }
            Next::LookUps(wanted) => known.looked_up = Some(self.look_up_all(wanted, terms).await),
        }
        None
    }

    /// A namespace that the snapshot does not know, if it is to be found in time.
    async fn look_up(&self, name: &str, contradicts: bool, terms: LookUpTerms) -> Answer<Arc<Namespace>> {
        let Some(look_up) = &self.live_namespace else { return Answer::Missing };
        let LookUpTerms { client, deadline } = terms;
        let limit = self.settings.live_timeout.min(deadline.left());
        let after = contradicts.then(|| Instant::now().checked_sub(CONTRADICTION_FRESH_FOR)).flatten();
        let found = timeout(limit, look_up(NamespaceLookup { name, client, after })).await;
        if found.is_err() {
            // A client can bring this about with each request: whoever gives the function tells of it, now and then.
            tracing::debug!(
                namespace = %Bounded(name, LOGGED_BYTES),
                timeout = ?limit,
                "a namespace that is not known yet could not be looked up in time"
            );
        }
        found.unwrap_or_else(|_| Answer::Failed("no answer in time".into()))
    }

    /// What a review wants, as far as it is to be had in time.
    pub(crate) async fn look_up_all(&self, wanted: Wanted, terms: LookUpTerms) -> LookedUp {
        let Some(look_ups) = &self.look_ups else { return wanted.answered(&Answer::Missing) };
        let LookUpTerms { client, deadline } = terms;
        let limit = self.settings.live_timeout.min(deadline.left());
        match timeout(limit, look_ups(wanted.clone(), client)).await {
            Ok(looked_up) => looked_up,
            Err(_) => wanted.answered(&Answer::Failed("no answer in time".into())),
        }
    }
}

/// Whether the API server calls this path for another kind of namespace than the one that is known: then its labels changed,
/// and the snapshot or the API server has not seen it yet.
fn contradicts(endpoint: Endpoint, namespace: &Namespace) -> bool {
    match endpoint {
        Endpoint::Level(level) | Endpoint::ValidateLevel(level) => namespace.level() != Some(level),
        Endpoint::Any | Endpoint::Validate => false,
    }
}

/// Whether nothing is to be decided without the namespace: where a pod must not be without what is meant for it.
const fn needs_namespace(endpoint: Endpoint) -> bool {
    match endpoint {
        Endpoint::Level(level) | Endpoint::ValidateLevel(level) => !matches!(level, InjectionLevel::Enabled),
        Endpoint::Any | Endpoint::Validate => false,
    }
}

/// One line for each decision: who and why, and never the object, which can hold secrets.
fn log(endpoint: Endpoint, review: &Review<'_>, decided: &Decided) {
    let decision = &decided.decision;
    tracing::debug!(
        endpoint = endpoint.as_str(),
        namespace = %Bounded(review.namespace(), LOGGED_BYTES),
        name = %Bounded(&review.object_name().unwrap_or_default(), LOGGED_BYTES),
        uid = %Bounded(review.uid(), LOGGED_BYTES),
        dry_run = review.dry_run(),
        outcome = decision.outcome.as_str(),
        reason = decision.reason.as_str(),
        profiles = %Profiles(&decision.profiles),
        "decided"
    );
}

/// What was decided about each profile, for the log: `nginx@3f2a=applied/injected team-a/x@91bc=skipped/name_taken`.
struct Profiles<'d>(&'d [ProfileDecision]);

impl fmt::Display for Profiles<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, decided) in self.0.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let (name, revision) = (decided.profile.name(), decided.profile.revision());
            let (outcome, reason) = (decided.outcome.as_str(), decided.reason);
            write!(formatter, "{space}{name}@{revision}={outcome}/{reason}")?;
        }
        Ok(())
    }
}
