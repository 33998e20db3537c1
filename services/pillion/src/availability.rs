//! Findings about an installation that injects nothing: no replica is ready, the webhook is not registered, or an
//! administrator disabled injection or the webhooks. `explain`, `doctor` and `status` report the same findings.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::Api;
use pillion_control::Release;
use pillion_control::webhook_config::switch::{INJECTION_KEY, WEBHOOKS_KEY};

use crate::finding::{Code, Finding, ObjectRef};
use crate::installation::switching;

/// The Deployment of the webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebhookDeployment {
    /// The Deployment could not be read.
    Unknown,
    /// No Deployment has the name that the release uses.
    Missing,
    /// The desired number of replicas.
    Replicas(i32),
}

impl WebhookDeployment {
    /// Reads the Deployment of a release.
    pub(crate) async fn read(client: &Client, release: &Release) -> Self {
        let deployments = Api::<Deployment>::namespaced(client.clone(), release.namespace());
        match deployments.get_opt(&name(release)).await {
            Ok(Some(found)) => Self::Replicas(found.spec.replicas.unwrap_or(1)),
            Ok(None) => Self::Missing,
            Err(_) => Self::Unknown,
        }
    }
}

fn name(release: &Release) -> String {
    format!("{}-webhook", release.name())
}

/// Returns a finding if no replica is ready. `endpoints` contains the addresses behind the Service, each with whether
/// it is ready. The remedy depends on the state of the Deployment.
pub(crate) fn no_ready_replica(
    release: &Release,
    endpoints: &[(String, bool)],
    deployment: WebhookDeployment,
) -> Option<Finding> {
    if endpoints.iter().any(|(_, is_ready)| *is_ready) {
        return None;
    }
    let (namespace, name) = (release.namespace(), name(release));
    let (message, remedy) = match deployment {
        WebhookDeployment::Replicas(0) => (
            format!("no webhook replica is ready: Deployment {name} is scaled to 0"),
            format!("kubectl -n {namespace} scale deployment {name} --replicas=2"),
        ),
        WebhookDeployment::Missing if endpoints.is_empty() => (
            format!("no webhook replica is ready: there is no Deployment {name}, so the release is not installed"),
            "install the release, or name the installed one with --release NAMESPACE/NAME".to_owned(),
        ),
        WebhookDeployment::Replicas(wanted) => (
            format!("no webhook replica is ready (0 of {wanted})"),
            format!(
                "kubectl -n {namespace} describe pods -l app.kubernetes.io/instance={},app.kubernetes.io/component=webhook",
                release.name()
            ),
        ),
        WebhookDeployment::Missing | WebhookDeployment::Unknown => (
            format!("no webhook replica is ready (0 of {})", endpoints.len()),
            format!("kubectl -n {namespace} get pods,events shows why"),
        ),
    };
    let object = ObjectRef::new("Service", Some(namespace), release.service());
    Some(Finding::new(Code::NoReadyReplica, object, message).remedy(remedy))
}

/// Returns the finding that the API server does not call Pillion, because no webhook configuration registers it.
pub(crate) fn not_registered(release: &Release) -> Finding {
    let object = ObjectRef::new("MutatingWebhookConfiguration", None, release.configuration());
    Finding::new(Code::NotRegistered, object, "no webhook configuration makes the API server call Pillion for pods")
}

/// Returns the finding that injection is disabled. `by` is the field manager that disabled it, if known.
pub(crate) fn injection_disabled(release: &Release, by: Option<&str>) -> Finding {
    let message = format!("injection is disabled for the whole cluster{}", author(by));
    Finding::new(Code::SwitchedOff, switch(release), message).remedy(switching(release, INJECTION_KEY, "enabled"))
}

/// Returns the finding that an administrator removed the webhook configurations. `by` is the field manager that removed
/// them, if known.
pub(crate) fn webhooks_disabled(release: &Release, by: Option<&str>) -> Finding {
    let message = format!("the webhook configurations were removed{}", author(by));
    Finding::new(Code::WebhooksDisabled, switch(release), message).remedy(switching(release, WEBHOOKS_KEY, "enabled"))
}

/// Returns a reference to the ConfigMap of the kill switch.
pub(crate) fn switch(release: &Release) -> ObjectRef {
    ObjectRef::new("ConfigMap", Some(release.namespace()), release.switch())
}

fn author(by: Option<&str>) -> String {
    by.map(|by| format!(", by {by}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_restores_replicas() {
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let found = |endpoints: &[(&str, bool)], deployment| {
            let endpoints: Vec<_> = endpoints.iter().map(|(address, is)| ((*address).to_owned(), *is)).collect();
            no_ready_replica(&release, &endpoints, deployment).map(|finding| (finding.message, finding.remedy))
        };
        assert_eq!(found(&[("a", true), ("b", false)], WebhookDeployment::Replicas(2)), None);
        // Ready replicas are enough, even if they belong to another Deployment.
        assert_eq!(found(&[("a", true)], WebhookDeployment::Missing), None);
        for (endpoints, deployment, message, remedy) in [
            (&[][..], WebhookDeployment::Replicas(0), "scaled to 0", "scale deployment pillion-webhook --replicas=2"),
            (&[], WebhookDeployment::Missing, "the release is not installed", "install the release"),
            (&[], WebhookDeployment::Replicas(2), "(0 of 2)", "describe pods -l app.kubernetes.io/instance=pillion"),
            (&[("a", false)], WebhookDeployment::Missing, "(0 of 1)", "get pods,events"),
            (&[("a", false)], WebhookDeployment::Unknown, "(0 of 1)", "get pods,events"),
        ] {
            let (said, do_) = found(endpoints, deployment).unwrap();
            assert!(said.contains(message) && do_.contains(remedy), "{said}: {do_}");
        }
    }
}
