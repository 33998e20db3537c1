//! The facts for `doctor`, gathered before anything is judged.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::profiles::Broken;
use pillion_control::probe::Probed;

use crate::finding::ObjectRef;
use crate::installation::Unread;

/// It could not be read; why stands in [`Facts::unread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotRead;

/// All of it. What is `None` could not be read, and stands in `unread`.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) release: Release,
    pub(crate) now: Timestamp,
    pub(crate) opt_in: OptIn,
    /// Whether the API server knows the definitions.
    pub(crate) has_definitions: bool,
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    pub(crate) switch: Result<Option<ConfigMap>, NotRead>,
    /// The addresses behind the Service, and whether each is ready.
    pub(crate) endpoints: Option<Vec<(String, bool)>>,
    pub(crate) serving: Result<Option<Secret>, NotRead>,
    /// What each endpoint serves, as seen from here.
    pub(crate) probed: Vec<Probed>,
    pub(crate) canary: Canary,
    /// The labels and annotations by which pods and namespaces ask for profiles.
    pub(crate) request_keys: Vec<String>,
    /// What the service accounts may do: account, what, and whether it may.
    pub(crate) rights: Vec<(String, String, bool)>,
    /// Service accounts that are not there.
    pub(crate) missing_accounts: Vec<String>,
    /// Namespaces and their labels.
    pub(crate) namespaces: Vec<(String, BTreeMap<String, String>)>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    pub(crate) lease: Result<Option<Lease>, NotRead>,
    /// The images that the release's pods run: pod and image.
    pub(crate) images: Vec<(String, String)>,
    pub(crate) unread: Unread,
}

/// What became of pods that were asked for by dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Canary {
    /// None was, for this reason.
    NotTried(String),
    /// So many were; those that came back as they were, and what the API server said of those that it refused.
    Tried { namespace: String, profile: String, tries: usize, untouched: usize, refused: Vec<String> },
}

pub(super) fn service(facts: &Facts) -> ObjectRef {
    ObjectRef::new("Service", Some(facts.release.namespace()), facts.release.service())
}

/// Whether an entry leads to the release.
pub(super) fn is_ours(entry: &MutatingWebhook, release: &Release) -> bool {
    let service = entry.client_config.service.as_ref();
    service.is_some_and(|service| service.name == release.service() && service.namespace == release.namespace())
}
