//! The facts for an explanation, gathered from a cluster or from files before anything is judged.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::audit::{NamespaceAge, Silence};
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::text::Broken;
use pillion_engine::audit::Injected;
use pillion_engine::lookup::LookedUp;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;
use serde_json::Value;

use crate::finding::ObjectRef;
use crate::installation::Unread;

/// The facts that all questions of one run share.
#[derive(Debug)]
pub(crate) struct ExplainFacts {
    pub(crate) release: Release,
    pub(crate) opt_in: OptIn,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The namespace in question.
    pub(crate) namespace: NamespaceFacts,
    /// All webhook configurations; `None` if they could not be read.
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    /// The profiles as stored. Empty for profiles from files.
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    /// Set if injection is switched off: `, by MANAGER`, or empty if unknown.
    pub(crate) switched_off: Option<String>,
    /// The times at which the webhook did not answer, as far as known.
    pub(crate) silences: Silences,
    /// Facts that could not be read.
    pub(crate) unread: Unread,
    /// The cluster facts of the platform's policy.
    pub(crate) cluster: Option<Arc<OwnedTape>>,
    /// Whether the facts come from a cluster, and not from files.
    pub(crate) is_live: bool,
}

/// The facts about one namespace.
#[derive(Debug, Default)]
pub(crate) struct NamespaceFacts {
    pub(crate) name: String,
    /// `None` if it does not exist, or could not be read.
    pub(crate) found: Option<Arc<Namespace>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) age: NamespaceAge,
}

/// The times at which the webhook did not answer, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silences {
    /// When the webhook configuration was created. Before, the API server did not call the webhook.
    pub(crate) registered: Option<i64>,
    /// The number of ready endpoints.
    pub(crate) ready: Option<usize>,
    /// When the set of ready endpoints last changed.
    pub(crate) endpoints_changed: Option<i64>,
    /// When injection was switched off.
    pub(crate) off_since: Option<i64>,
}

/// The origin of a question's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A pod in the cluster.
    Stored,
    /// A future pod, from a workload's template or a file.
    Template,
    /// The object of a saved AdmissionReview.
    Review,
    /// A generic pod of a namespace, without requests for profiles.
    Anybody,
}

/// An object to explain.
#[derive(Debug)]
pub(crate) struct Question {
    /// The reference of the object.
    pub(crate) object: ObjectRef,
    pub(crate) origin: Origin,
    /// The review to decide: that of the pod as its author wrote it.
    pub(crate) review: Value,
    /// The pod as stored, if it exists.
    pub(crate) found: Option<Value>,
    /// Whether the creating user is unknown, so that the review's `userInfo` is a placeholder.
    pub(crate) is_user_guessed: bool,
    /// The lookups for the review.
    pub(crate) looked_up: LookedUp,
    /// The topmost workload among its owners, or the workload that has the template.
    pub(crate) workload: Option<Value>,
    /// The service account, and whether it exists. `None`: not looked up.
    pub(crate) account: Option<(String, bool)>,
}

impl Question {
    /// Returns the pod as its author wrote it.
    pub(crate) fn pod(&self) -> &Value {
        self.review.pointer("/request/object").unwrap_or(&Value::Null)
    }

    /// Returns the pod as stored, if it exists.
    pub(crate) fn as_found(&self) -> Option<OwnedTape> {
        OwnedTape::parse(self.found.as_ref()?.to_string()).ok()
    }

    /// Whether the stored pod has an injection record that Pillion wrote.
    pub(crate) fn is_injected(&self) -> bool {
        let injected = self.as_found().map(|pod| pillion_engine::audit::read(pod.root()).injected);
        matches!(injected, Some(Injected::Profiles(profiles)) if !profiles.is_empty())
    }

    /// Whether the stored pod has ended, or is being deleted.
    pub(crate) fn has_ended(&self) -> bool {
        self.found.as_ref().is_some_and(|found| {
            let phase = found.pointer("/status/phase").and_then(Value::as_str);
            found.pointer("/metadata/deletionTimestamp").is_some() || matches!(phase, Some("Succeeded" | "Failed"))
        })
    }

    /// Returns the creation time in seconds since 1970, or 0 if unknown.
    pub(crate) fn created(&self) -> i64 {
        let text = self.found.as_ref().and_then(|pod| pod.pointer("/metadata/creationTimestamp")?.as_str());
        text.and_then(|text| text.parse::<jiff::Timestamp>().ok()).map_or(0, jiff::Timestamp::as_second)
    }
}

impl Silences {
    /// Returns why the webhook may not have answered at this time.
    pub(crate) fn at(&self, time: i64) -> Option<Silence> {
        if self.off_since.is_some_and(|since| since <= time) {
            return Some(Silence::SwitchedOff);
        }
        let before_registered = self.registered.is_some_and(|registered| time < registered);
        (before_registered || self.ready == Some(0)).then_some(Silence::Away)
    }
}
