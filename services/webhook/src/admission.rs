//! Computes the decision for a parsed review once all lookups that it needs are done.
//!
//! The computation never waits: `Admission::next` runs on the calling thread. If it needs a lookup, it returns a
//! description of the lookup. The caller does the lookup, and then calls `Admission::next` again with the result.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use pillion_api::names::FailureMode;
use pillion_engine::decision::{Decision, ProfileDecision, ProfileOutcome, Reason};
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

/// The arguments of [`LiveNamespace`].
#[derive(Clone, Copy, Debug)]
pub struct NamespaceLookup<'n> {
    /// The namespace's name as the client sent it: not validated, and of any length.
    pub name: &'n str,
    /// The client that sent the review.
    pub client: IpAddr,
    /// A cached result is acceptable only if it was fetched after this time. Set if the API server called the path of a
    /// failure mode other than the one that the snapshot has for the namespace.
    pub after: Option<Instant>,
}

/// Looks up a namespace that is not in the snapshot. Also called if the API server called the path of a failure mode
/// other than the one that the snapshot has for the namespace. The snapshot may be a second old. Returns `Missing` if
/// the cluster has no such namespace, and `Failed` if it cannot be looked up now.
///
/// The router limits the time of each lookup. The function must validate the name and limit the number of lookups, in
/// total and for each client.
pub type LiveNamespace =
    Arc<dyn for<'n> Fn(NamespaceLookup<'n>) -> BoxFuture<'static, Answer<Arc<Namespace>>> + Send + Sync>;

/// Looks up the other objects that a review needs: service accounts, owners, and objects that profiles declare.
///
/// The router limits the time of each call. It calls the function only if a review needs such objects, which is rare.
/// The function caches results, merges concurrent lookups of one object, and limits requests in total and for each
/// client. In its result, objects that it could not fetch are marked as failed.
pub type ReviewLookups = Arc<dyn Fn(Wanted, IpAddr) -> BoxFuture<'static, LookedUp> + Send + Sync>;

/// The limits on requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestSettings {
    /// Maximum number of bytes of one body. A review of an update contains two objects of up to 3 MiB.
    pub body_limit: usize,
    /// Maximum number of bytes of all request bodies together. If a body would exceed it, older incomplete bodies are
    /// evicted, or else its own request gets 503. Large bodies can use only three quarters of this budget, so that
    /// memory remains for small ones.
    pub body_budget: usize,
    /// Maximum time from the end of a request's head to the end of its body.
    pub body_timeout: Duration,
    /// Maximum time of a namespace lookup. Also the maximum time of all other lookups of a review together.
    pub lookup_timeout: Duration,
    /// Limits on concurrent requests and on their time.
    pub overload: OverloadSettings,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            body_limit: 7 * 1024 * 1024,
            body_budget: 64 * 1024 * 1024,
            body_timeout: Duration::from_secs(5),
            lookup_timeout: Duration::from_millis(300),
            overload: OverloadSettings::default(),
        }
    }
}

/// The state and the functions that are needed to decide requests.
#[derive(Clone)]
pub struct Admission {
    /// Profiles and namespaces. The whole snapshot is replaced when the cluster changes.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Looks up namespaces that are missing from the snapshot, or that have a failure mode there that contradicts the
    /// called path. `None`: the snapshot alone is used, and a namespace that is missing from it is treated as missing
    /// from the cluster.
    pub live_namespace: Option<LiveNamespace>,
    /// Looks up other objects that reviews need. `None`: these objects are treated as missing from the cluster.
    pub lookups: Option<ReviewLookups>,
    /// The platform's settings. They are all replaced together when their file changes.
    pub policy: Arc<ArcSwap<Policy>>,
    /// The kill switch.
    pub switch: Switch,
    /// Counts requests and decisions.
    pub metrics: Arc<Metrics>,
    /// The limits on requests.
    pub settings: RequestSettings,
}

impl fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Admission")
            .field("live_namespace", &self.live_namespace.is_some())
            .field("lookups", &self.lookups.is_some())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The response to a review.
#[derive(Debug)]
pub(crate) struct ReviewResponse {
    pub(crate) outcome: RequestOutcome,
    /// Whether a profile was skipped.
    pub(crate) incomplete: bool,
    pub(crate) body: Vec<u8>,
}

/// The context of one request, without its body. A clone belongs to the same request.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) endpoint: Endpoint,
    pub(crate) span: RequestSpan,
    /// The tenant to which metrics attribute the request.
    pub(crate) tenant: Tenant,
    /// The address of the client.
    pub(crate) client: IpAddr,
    /// The time by which the response is due.
    pub(crate) deadline: Deadline,
}

/// The results of the lookups that were done so far for a review.
#[derive(Debug, Default)]
pub(crate) struct LookupResults {
    namespace: Answer<Arc<Namespace>>,
    objects: Option<LookedUp>,
}

/// A lookup that a decision needs.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The namespace of this name. If `contradicts` is true, the snapshot has the namespace, but with a failure mode
    /// other than that of the path that the API server called. Otherwise the snapshot lacks the namespace.
    Namespace { name: Box<str>, contradicts: bool },
    /// Objects other than namespaces.
    Objects(Wanted),
}

/// The next step for a review.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this response to the API server.
    Respond(ReviewResponse),
    /// Do this lookup, and call [`Admission::next`] again.
    Lookup(Lookup),
}

/// The maximum age of a cached namespace if the failure mode in the snapshot differs from that of the called path.
/// Replicas and the controller may see different opt-in labels for a while. Without a cache, each pod in such a
/// namespace would cost a request to the API server.
const CONTRADICTION_FRESH_FOR: Duration = Duration::from_secs(1);

impl Admission {
    /// Decides a review, or returns a lookup that the decision needs. Requests each lookup at most once. The span
    /// `resolve` covers the lookups and ends when the decision begins.
    ///
    /// Returns an error if the engine fails, or if the lookup of a namespace failed that the failure mode requires.
    pub(crate) fn next(
        &self,
        context: &RequestContext,
        snapshot: &Snapshot,
        review: &Review<'_>,
        results: &mut LookupResults,
        resolve: &mut Span,
    ) -> Result<Next, Refusal> {
        let endpoint = context.endpoint;
        if self.switch.is_off() {
            *resolve = Span::none();
            let decided = Decided { decision: Decision::skipped(Reason::SwitchedOff), patch: None };
            // On the API server's paths, the failure mode follows from the path, so the namespace is not needed.
            let decided = review.without_gate(endpoint, &Facts::default(), decided).map_err(Refusal::Internal)?;
            return Ok(Next::Respond(self.respond(context, review, &decided)));
        }
        let in_snapshot = snapshot.namespace(review.namespace());
        context.tenant.set_namespace(review.namespace(), in_snapshot.is_some());
        let contradicts = in_snapshot.as_ref().is_some_and(|namespace| contradicts(endpoint, namespace));
        // Without live lookups, the snapshot is used even if it contradicts the path.
        let in_snapshot = in_snapshot.filter(|_| !contradicts || self.live_namespace.is_none());
        let namespace = match (in_snapshot, &results.namespace) {
            (Some(namespace), _) => Some(namespace),
            (None, Answer::Found(looked_up)) => Some(Arc::clone(looked_up)),
            // Profiles cannot be selected without the namespace, and this failure mode requires all of them. So the
            // request is rejected with 503: another replica may have the namespace, and otherwise the API server
            // applies `failurePolicy`.
            (None, Answer::Failed(_)) if needs_namespace(endpoint) => return Err(Refusal::Shed(Shed::Namespace)),
            // Cluster-scoped objects have no namespace.
            (None, Answer::NotRequested) if self.live_namespace.is_some() && !review.namespace().is_empty() => {
                let name = review.namespace().into();
                return Ok(Next::Lookup(Lookup::Namespace { name, contradicts }));
            }
            (None, _) => None,
        };
        let policy = self.policy.load();
        let mut facts = Facts {
            namespace,
            guardrails: policy.guardrails.clone(),
            deadline: Some(context.deadline.0.into_std()),
            ..Facts::default()
        };
        if let Some(looked_up) = results.objects.take() {
            facts.looked_up = looked_up;
        } else {
            let wanted = resolve.in_scope(|| review.needs(endpoint, snapshot, &facts));
            if !wanted.is_empty() {
                if self.lookups.is_some() {
                    return Ok(Next::Lookup(Lookup::Objects(wanted)));
                }
                facts.looked_up = wanted.answered(&Answer::Missing);
            }
        }
        facts.looked_up.cluster.clone_from(&policy.cluster);
        *resolve = Span::none();
        let mut steps = context.span.steps();
        let decided = review.decide_observed(endpoint, snapshot, &facts, &mut steps).map_err(Refusal::Internal)?;
        drop(steps);
        Ok(Next::Respond(self.respond(context, review, &decided)))
    }

    /// Logs, traces and counts a decision, and returns its response.
    fn respond(&self, context: &RequestContext, review: &Review<'_>, decided: &Decided) -> ReviewResponse {
        context.span.decided(&decided.decision);
        self.metrics.decided(&decided.decision, review.dry_run());
        if let Some(patch) = &decided.patch {
            self.metrics.patched(patch.len());
        }
        log(context.endpoint, review, decided);
        let body = context.span.serialise().in_scope(|| review.respond(decided));
        let skipped = |profile: &ProfileDecision| profile.outcome == ProfileOutcome::Skipped;
        ReviewResponse {
            outcome: RequestOutcome::Decided(decided.decision.outcome),
            incomplete: decided.decision.profiles.iter().any(skipped),
            body,
        }
    }

    /// Does the lookup that [`Admission::next`] requested, within the deadline. Stores the result in `results`.
    pub(crate) async fn look_up(&self, lookup: Lookup, context: &RequestContext, results: &mut LookupResults) {
        match lookup {
            Lookup::Namespace { name, contradicts } => {
                results.namespace = self.look_up_namespace(&name, contradicts, context).await;
            }
            Lookup::Objects(wanted) => {
                results.objects = Some(self.look_up_objects(wanted, context.client, context.deadline).await);
            }
        }
    }

    async fn look_up_namespace(
        &self,
        name: &str,
        contradicts: bool,
        context: &RequestContext,
    ) -> Answer<Arc<Namespace>> {
        let Some(look_up) = &self.live_namespace else { return Answer::Missing };
        let limit = self.settings.lookup_timeout.min(context.deadline.remaining());
        let after = contradicts.then(|| Instant::now().checked_sub(CONTRADICTION_FRESH_FOR)).flatten();
        let result = timeout(limit, look_up(NamespaceLookup { name, client: context.client, after })).await;
        if result.is_err() {
            // Clients can cause this with every request, so it is not logged as a warning here. The lookup function
            // logs warnings at a limited rate.
            tracing::debug!(
                namespace = %Bounded(name, LOGGED_BYTES),
                timeout = ?limit,
                "the lookup of a namespace timed out"
            );
        }
        result.unwrap_or_else(|_| Answer::Failed("no response in time".into()))
    }

    /// Looks up objects, within the deadline. If the lookup times out, marks all objects as failed.
    pub(crate) async fn look_up_objects(&self, wanted: Wanted, client: IpAddr, deadline: Deadline) -> LookedUp {
        let Some(lookups) = &self.lookups else { return wanted.answered(&Answer::Missing) };
        let limit = self.settings.lookup_timeout.min(deadline.remaining());
        match timeout(limit, lookups(wanted.clone(), client)).await {
            Ok(looked_up) => looked_up,
            Err(_) => wanted.answered(&Answer::Failed("no response in time".into())),
        }
    }
}

/// Returns whether the failure mode of the path that the API server called differs from that of the namespace in the
/// snapshot. If so, the namespace's labels have changed, and either the snapshot or the API server is stale.
fn contradicts(endpoint: Endpoint, namespace: &Namespace) -> bool {
    match endpoint {
        Endpoint::FailureMode(failure_mode) | Endpoint::ValidateFailureMode(failure_mode) => {
            namespace.failure_mode() != Some(failure_mode)
        }
        Endpoint::Any | Endpoint::Validate => false,
    }
}

/// Returns whether a request on this path cannot be decided without the namespace. This applies to the failure modes
/// `required` and `held`, in which no pod may start without its sidecars.
const fn needs_namespace(endpoint: Endpoint) -> bool {
    match endpoint {
        Endpoint::FailureMode(failure_mode) | Endpoint::ValidateFailureMode(failure_mode) => {
            !matches!(failure_mode, FailureMode::Enabled)
        }
        Endpoint::Any | Endpoint::Validate => false,
    }
}

/// Logs one line for each decision: the subject and the reason, but never the object, which can hold secrets.
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

/// Formats the decision on each profile for the log: `nginx@3f2a=applied/injected team-a/x@91bc=skipped/name_taken`.
struct Profiles<'d>(&'d [ProfileDecision]);

impl fmt::Display for Profiles<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, decision) in self.0.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let (name, revision) = (decision.profile.name(), decision.profile.revision());
            let (outcome, reason) = (decision.outcome.as_str(), decision.reason);
            write!(formatter, "{space}{name}@{revision}={outcome}/{reason}")?;
        }
        Ok(())
    }
}
