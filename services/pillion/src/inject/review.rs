//! Decides with the engine by an AdmissionReview, as the API server would send it.

use std::sync::Arc;

use anyhow::Context;
use pillion_api::names::{INJECT_LABEL, InjectionLevel};
use pillion_engine::decision::{Decision, Reason};
use pillion_engine::lookup::Answer;
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use serde_json::{Value, json};

use super::known::{self, KnownObjects};
use super::objects::Place;
use super::simulated_cluster::SimulatedCluster;
use crate::trial;

/// Decides a pod of a manifest, with the known objects for lookups.
pub(crate) fn decide(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Decided> {
    let name = place.namespace.as_deref().unwrap_or_else(|| simulated.default_namespace());
    let (_, endpoint) = simulated.namespace(name);
    ask(document, place, simulated, known, endpoint)
}

/// Validates an injected pod with its profiles.
pub(crate) fn validate(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
) -> anyhow::Result<Decided> {
    ask(document, place, simulated, known, Endpoint::Validate)
}

fn ask(
    document: &Value,
    place: &Place,
    simulated: &SimulatedCluster,
    known: &KnownObjects,
    endpoint: Endpoint,
) -> anyhow::Result<Decided> {
    let name = place.namespace.as_deref().unwrap_or_else(|| simulated.default_namespace());
    let (namespace, _) = simulated.namespace(name);
    let pod = place.pod(document, name);
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT_LABEL)).and_then(Value::as_str);
    if namespace.level() == Some(InjectionLevel::Enabled) && label == Some("false") {
        // The webhook's object selector excludes such pods.
        return Ok(Decided { decision: Decision::skipped(Reason::OptedOut), patch: None });
    }
    let body = serde_json::to_vec(&envelope(&pod, name)).context("the review cannot be written")?;
    let review = Review::parse(&body).context("it is not an object that can be reviewed")?;
    // A file has no `managedFields`; its record was written by an earlier run of this command.
    let mut facts = Facts { namespace: Some(namespace), record_trust: RecordTrust::AsFound, ..Facts::default() };
    let wanted = review.needs(endpoint, simulated.snapshot(), &facts);
    facts.looked_up = known::answer(known, wanted, document, place);
    facts.looked_up.cluster = simulated.cluster();
    review.decide(endpoint, simulated.snapshot(), &facts).context("it cannot be decided on")
}

/// Answers a saved review. Returns the response as JSON, and the decision.
pub(crate) fn answer(body: &[u8], simulated: &SimulatedCluster) -> anyhow::Result<(String, Decided)> {
    let review = Review::parse(body).context("this is not an AdmissionReview")?;
    let (namespace, endpoint) = simulated.namespace(review.namespace());
    let mut facts = Facts { namespace: Some(Arc::clone(&namespace)), ..Facts::default() };
    // Without a cluster, all lookups miss.
    facts.looked_up = review.needs(endpoint, simulated.snapshot(), &facts).answered(&Answer::Missing);
    facts.looked_up.cluster = simulated.cluster();
    let decided = review.decide(endpoint, simulated.snapshot(), &facts).context("it cannot be decided on")?;
    let response = String::from_utf8(review.respond(&decided)).context("the answer is not text")?;
    Ok((response, decided))
}

/// Returns the review that the API server sends when a pod is created.
fn envelope(pod: &Value, namespace: &str) -> Value {
    let user = json!({"username": "pillion-inject"});
    trial::review(pod, namespace, &user)
}
