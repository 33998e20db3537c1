//! The facts for an explanation, gathered from a cluster or from files before anything is judged.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::audit::{NamespaceAge, Silence};
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::profiles::Broken;
use pillion_engine::audit::Injected;
use pillion_engine::json::OwnedTape;
use pillion_engine::lookup::LookedUp;
use pillion_engine::snapshot::{Namespace, Snapshot};
use serde_json::Value;

use crate::finding::ObjectRef;
use crate::installation::Unread;

/// What all questions of one run have in common.
#[derive(Debug)]
pub(crate) struct ExplainFacts {
    pub(crate) release: Release,
    pub(crate) opt_in: OptIn,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The namespace that is asked about.
    pub(crate) namespace: NamespaceFacts,
    /// All webhook configurations; `None` if they could not be read.
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    /// The profiles as they are stored. Of files there are none beside what compiles.
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    /// Whether injection is switched off, and who did it.
    pub(crate) switched_off: Option<String>,
    /// Since when nobody, or nobody who does anything, answers: `None` where that is not known.
    pub(crate) silences: Silences,
    /// What could not be read.
    pub(crate) unread: Unread,
    /// What the platform says of the cluster.
    pub(crate) cluster: Option<Arc<OwnedTape>>,
    /// Whether it is of a cluster, and not of files alone.
    pub(crate) is_live: bool,
}

/// What is known of one namespace.
#[derive(Debug, Default)]
pub(crate) struct NamespaceFacts {
    pub(crate) name: String,
    /// `None` if it is not there, or could not be read.
    pub(crate) found: Option<Arc<Namespace>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) age: NamespaceAge,
}

/// What is known of the times when nobody answered, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silences {
    /// When the webhook configuration was created; before, nobody was called.
    pub(crate) registered: Option<i64>,
    /// How many endpoints are ready.
    pub(crate) ready: Option<usize>,
    /// When what is ready last changed.
    pub(crate) endpoints_changed: Option<i64>,
    /// Since when it is switched off.
    pub(crate) off_since: Option<i64>,
}

/// How the object of a question came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A pod that is in the cluster.
    Stored,
    /// A pod that would be made: of a workload's template, or of a file.
    Template,
    /// The object of a saved AdmissionReview.
    Review,
    /// Any pod of a namespace: one that asks for nothing.
    Anybody,
}

/// One thing that is asked about.
#[derive(Debug)]
pub(crate) struct Question {
    /// What it is called.
    pub(crate) object: ObjectRef,
    pub(crate) origin: Origin,
    /// The review that is decided on: that of the pod as its author wrote it.
    pub(crate) review: Value,
    /// The pod as it was found, if it is there.
    pub(crate) found: Option<Value>,
    /// Whether nobody knows who creates it: the review's `userInfo` is anybody's.
    pub(crate) is_user_guessed: bool,
    /// What is looked up for it.
    pub(crate) looked_up: LookedUp,
    /// The workload at the top of its owners, or the one that has the template.
    pub(crate) workload: Option<Value>,
    /// Whether its service account is there; `None` if nobody looked.
    pub(crate) account: Option<(String, bool)>,
}

impl Question {
    /// The pod as its author wrote it.
    pub(crate) fn pod(&self) -> &Value {
        self.review.pointer("/request/object").unwrap_or(&Value::Null)
    }

    /// The pod as it is, where it is there.
    pub(crate) fn as_found(&self) -> Option<OwnedTape> {
        OwnedTape::parse(self.found.as_ref()?.to_string()).ok()
    }

    /// Whether the pod that is there has a record of Pillion's own.
    pub(crate) fn is_injected(&self) -> bool {
        let injected = self.as_found().map(|pod| pillion_engine::audit::read(pod.root()).injected);
        matches!(injected, Some(Injected::Profiles(profiles)) if !profiles.is_empty())
    }

    /// Whether the pod that is there has ended, or is about to.
    pub(crate) fn has_ended(&self) -> bool {
        self.found.as_ref().is_some_and(|found| {
            let phase = found.pointer("/status/phase").and_then(Value::as_str);
            found.pointer("/metadata/deletionTimestamp").is_some() || matches!(phase, Some("Succeeded" | "Failed"))
        })
    }

    /// When it was created, in seconds since 1970; 0 if it is not known.
    pub(crate) fn created(&self) -> i64 {
        let text = self.found.as_ref().and_then(|pod| pod.pointer("/metadata/creationTimestamp")?.as_str());
        text.and_then(|text| text.parse::<jiff::Timestamp>().ok()).map_or(0, jiff::Timestamp::as_second)
    }
}

impl Silences {
    /// Why nobody may have answered then.
    pub(crate) fn at(&self, time: i64) -> Option<Silence> {
        if self.off_since.is_some_and(|since| since <= time) {
            return Some(Silence::SwitchedOff);
        }
        let before_registered = self.registered.is_some_and(|registered| time < registered);
        (before_registered || self.ready == Some(0)).then_some(Silence::Away)
    }
}
