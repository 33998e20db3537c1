//! Reads and describes the objects of an installation, for `explain`, `doctor`, `status` and `rollout`.

use std::fmt;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::opt_in_of;
use pillion_control::Release;
use pillion_control::informer::cluster_listing::{self, ClusterListing};
use pillion_engine::snapshot::Snapshot;

use crate::config::{Overrides, WebhookPolicy, read};

/// A part of the installation that commands read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Configurations,
    Endpoints,
    Switch,
    /// The webhook's policy, with its guardrails.
    Policy,
    ServingSecret,
    Lease,
    Namespaces,
    Rights,
    Profiles(cluster_listing::Part),
}

/// The parts that could not be read, each with the reason.
pub(crate) type Unread = Vec<(Part, String)>;

impl Part {
    /// Whether findings about pods are unreliable without this part.
    pub(crate) const fn is_needed(&self) -> bool {
        matches!(self, Self::Profiles(_) | Self::Namespaces)
    }

    /// Whether this part is a list of profiles.
    pub(crate) const fn is_of_profiles(&self) -> bool {
        matches!(
            self,
            Self::Profiles(cluster_listing::Part::ClusterProfiles | cluster_listing::Part::NamespaceProfiles)
        )
    }
}

impl From<cluster_listing::Part> for Part {
    fn from(part: cluster_listing::Part) -> Self {
        match part {
            cluster_listing::Part::Namespaces => Self::Namespaces,
            part @ (cluster_listing::Part::ClusterProfiles | cluster_listing::Part::NamespaceProfiles) => {
                Self::Profiles(part)
            }
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Configurations => "webhook configurations",
            Self::Endpoints => "the webhook's endpoints",
            Self::Switch => "the kill switch",
            Self::Policy => "the policy of the webhook, with its guardrails",
            Self::ServingSecret => "the serving Secret",
            Self::Lease => "the controllers' Lease",
            Self::Namespaces => "namespaces",
            Self::Rights => "RBAC permissions of service accounts",
            Self::Profiles(part) => part.as_str(),
        })
    }
}

/// Marks a value that could not be read. [`Unread`] has the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotRead;

/// The objects that `explain` and `doctor` both evaluate.
pub(crate) struct Installation {
    /// All webhook configurations; `None` if they could not be read.
    pub(crate) configurations: Option<Vec<MutatingWebhookConfiguration>>,
    /// The opt-in labels: those in the release's webhook configuration, else those in the policy, else the default.
    pub(crate) opt_in: OptIn,
    pub(crate) policy: Option<WebhookPolicy>,
    pub(crate) listing: ClusterListing,
    /// The profiles and namespaces of the listing, limited by the policy's guardrails.
    pub(crate) snapshot: Snapshot,
    pub(crate) slices: Option<Vec<EndpointSlice>>,
    pub(crate) switch: Result<Option<ConfigMap>, NotRead>,
    /// Parts that could not be read, except those of `listing`.
    pub(crate) unread: Unread,
}

impl Installation {
    /// Reads an installation. If there is a `namespace`, the listing contains only this namespace and the profiles that
    /// may match in it. A `given` policy replaces the webhook's policy in the cluster.
    pub(crate) async fn read(
        client: &Client,
        release: &Release,
        namespace: Option<&str>,
        given: Option<&WebhookPolicy>,
    ) -> Self {
        let mut unread = Vec::new();
        let policy = match given {
            Some(policy) => Some(policy.clone()),
            None => policy(client, release, &mut unread).await,
        };
        let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
        let configurations = configurations.list(&ListParams::default()).await;
        let configurations = kept(configurations, Part::Configurations, &mut unread).map(|list| list.items);
        let opt_in = own_configuration(configurations.as_deref(), release).and_then(opt_in_of);
        let opt_in = opt_in.unwrap_or_else(|| policy.as_ref().map(WebhookPolicy::opt_in).unwrap_or_default());
        let listing = cluster_listing::read(client, namespace, &opt_in).await;
        let guardrails = policy.as_ref().map(|policy| policy.guardrails.clone()).unwrap_or_default();
        let snapshot = Snapshot::clone(&listing.snapshot).with_guardrails(guardrails);
        let slices = slices(client, release, &mut unread).await;
        let switch = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await;
        let switch = kept(switch, Part::Switch, &mut unread).ok_or(NotRead);
        Self { configurations, opt_in, policy, listing, snapshot, slices, switch, unread }
    }
}

/// Returns the webhook configuration that the controller writes; `None` if it does not exist or could not be read.
pub(crate) fn own_configuration<'c>(
    configurations: Option<&'c [MutatingWebhookConfiguration]>,
    release: &Release,
) -> Option<&'c MutatingWebhookConfiguration> {
    configurations?.iter().find(|one| one.metadata.name.as_deref() == Some(release.configuration()))
}

/// Returns the value. On an error, returns `None`, and adds the part with the error to `unread`.
pub(crate) fn kept<T>(found: kube::Result<T>, part: Part, unread: &mut Unread) -> Option<T> {
    found.map_err(|error| unread.push((part, describe_error(error)))).ok()
}

/// Formats an error: the API server's message, or else the error with its causes.
fn describe_error(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => crate::output::causes(&error.into()),
    }
}

/// Returns the endpoint slices of the webhook's Service; `None` if they could not be read.
pub(crate) async fn slices(client: &Client, release: &Release, unread: &mut Unread) -> Option<Vec<EndpointSlice>> {
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", release.service()));
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), release.namespace()).list(&of_service).await;
    kept(slices, Part::Endpoints, unread).map(|list| list.items)
}

/// Returns the addresses in the slices, each with its readiness.
pub(crate) fn endpoints(slices: &[EndpointSlice]) -> Vec<(String, bool)> {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).flat_map(|endpoint| {
        let is_ready = endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready.unwrap_or(true));
        endpoint.addresses.iter().map(move |address| (address.clone(), is_ready))
    });
    endpoints.collect()
}

/// Returns the webhook's policy from the ConfigMap of the chart; `None` if the policy is missing, invalid or
/// unreadable.
pub(crate) async fn policy(client: &Client, release: &Release, unread: &mut Unread) -> Option<WebhookPolicy> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), release.namespace());
    let name = format!("{}-webhook", release.name());
    let map = kept(maps.get_opt(&name).await, Part::Policy, unread)??;
    let text = map.data?.remove("policy.yaml")?;
    match read::from_text(std::path::Path::new("policy.yaml"), &text, &Overrides::default()) {
        Ok(policy) => Some(policy),
        Err(problems) => {
            unread.push((Part::Policy, format!("ConfigMap {name}: {}", read::lines(&problems))));
            None
        }
    }
}

/// Returns the `kubectl` command that sets `key` in the release's ConfigMap to `word`.
pub(crate) fn switching(release: &Release, key: &str, word: &str) -> String {
    format!(
        "kubectl -n {} patch configmap {} -p '{{\"data\":{{\"{key}\":\"{word}\"}}}}'",
        release.namespace(),
        release.switch()
    )
}
