//! The facts for `doctor`, gathered before anything is judged.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pillion_api::opt_in::OptIn;
use pillion_control::Release;
use pillion_control::informer::cluster_listing::Stored;
use pillion_control::informer::text::Broken;
use pillion_control::probe::Probed;

use crate::finding::ObjectRef;
use crate::installation::Unread;

/// A fact that could not be read. [`Facts::unread`] has the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotRead;

/// All facts. `None` means that a fact could not be read; `unread` has the reason.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) release: Release,
    pub(crate) now: Timestamp,
    pub(crate) opt_in: OptIn,
    /// Whether the API server serves the CRDs.
    pub(crate) has_definitions: bool,
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    pub(crate) switch: Result<Option<ConfigMap>, NotRead>,
    /// The addresses behind the Service, each with its readiness.
    pub(crate) endpoints: Option<Vec<(String, bool)>>,
    pub(crate) serving: Result<Option<Secret>, NotRead>,
    /// The result of probing each endpoint from here.
    pub(crate) probed: Vec<Probed>,
    pub(crate) canary: Canary,
    /// The labels and annotations by which pods and namespaces request profiles.
    pub(crate) request_keys: Vec<String>,
    /// RBAC permissions of the service accounts: account, permission, and whether it is granted.
    pub(crate) rights: Vec<(String, String, bool)>,
    /// Service accounts that are missing.
    pub(crate) missing_accounts: Vec<String>,
    /// Namespaces and their labels.
    pub(crate) namespaces: Vec<(String, BTreeMap<String, String>)>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) broken: Vec<Broken>,
    pub(crate) lease: Result<Option<Lease>, NotRead>,
    /// The images of the release's pods: pod and image.
    pub(crate) images: Vec<(String, String)>,
    pub(crate) unread: Unread,
}

/// The result of creating pods by dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Canary {
    /// No pod was created, for this reason.
    NotTried(String),
    /// How many were created and how many came back unchanged, and the API server's messages for those it rejected.
    Tried { namespace: String, profile: String, tries: usize, untouched: usize, refused: Vec<String> },
}

pub(super) fn service(facts: &Facts) -> ObjectRef {
    ObjectRef::new("Service", Some(facts.release.namespace()), facts.release.service())
}

/// Whether a webhook entry calls the release's Service.
pub(super) fn is_ours(entry: &MutatingWebhook, release: &Release) -> bool {
    let service = entry.client_config.service.as_ref();
    service.is_some_and(|service| service.name == release.service() && service.namespace == release.namespace())
}
