//! Reads the objects for a reconciliation. The record is read before and after the other objects. If it has changed
//! meanwhile, the reconciliation starts again, so that the objects are consistent with one another.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};
use rustls_pki_types::CertificateDer;

use super::ReconcileError;
use super::request::RotationRequest;
use crate::certificates::ca::{CaSecret, KnownCas, Lifetimes, claimed_generation};
use crate::certificates::clock::{Clock, Reading};
use crate::certificates::rotation::{Configuration, Generation, Observed, ProbeSummary, Propagation, Record, Stored};
use crate::certificates::serving_secret::{ServingInputs, ServingSecret};
use crate::leader::FIELD_MANAGER;
use crate::release::Release;
use crate::webhook_config::{self, Live};

/// The objects of the rotation, in a consistent state.
#[derive(Debug)]
pub(super) struct Objects {
    /// The Secret with the record, for its metadata.
    pub(super) record: Option<Secret>,
    /// The contents of the Secret with the record.
    pub(super) ca: CaSecret,
    /// The Secret with the serving certificate, for its metadata.
    pub(super) serving_secret: Option<Secret>,
    /// The contents of the Secret with the serving certificate.
    pub(super) serving: ServingSecret,
    /// The webhook configurations.
    pub(super) live: Live,
    /// The state of the webhook configurations for the rotation.
    pub(super) configuration: Configuration,
    /// Unknown certificates in the webhook configurations.
    pub(super) unknown: Vec<CertificateDer<'static>>,
    /// The administrator's request for a rotation, if there is one that is not fulfilled yet.
    pub(super) request: Option<RotationRequest>,
    /// The time at which the objects were read, and whether the clock can be trusted.
    pub(super) time: Reading,
}

/// Inputs of the next step that are not read from the objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observations {
    /// Results of probing the endpoints.
    pub(super) endpoints: ProbeSummary,
    /// Results of the checks of the API servers.
    pub(super) propagation: Propagation,
    /// The CA that failed to sign, if any.
    pub(super) unable: Option<Generation>,
    /// How long this leader has seen the webhook configurations unchanged.
    pub(super) unchanged_for: Duration,
}

/// Clients for reading and writing the objects.
#[derive(Clone)]
pub(super) struct ObjectClients {
    pub(super) client: Client,
    pub(super) secrets: Api<Secret>,
    leases: Api<Lease>,
}

impl ObjectClients {
    pub(super) fn new(client: Client, release: &Release) -> Self {
        let (secrets, leases) = (
            Api::namespaced(client.clone(), release.namespace()),
            Api::namespaced(client.clone(), release.namespace()),
        );
        Self { client, secrets, leases }
    }
}

impl Objects {
    /// Reads all objects from the API server, not from a cache. `disabled` says whether the webhooks are treated as
    /// disabled if the `ConfigMap` has an unknown value.
    pub(super) async fn read(
        clients: &ObjectClients,
        release: &Release,
        lifetimes: &Lifetimes,
        clock: &Clock,
        disabled: bool,
    ) -> Result<Self, ReconcileError> {
        let secret = async |name: String| clients.secrets.get_opt(&name).await.map_err(ReconcileError::Read);
        let record = secret(release.ca_secret()).await?;
        let serving_secret = secret(release.serving_secret()).await?;
        let live = webhook_config::observe(&clients.client, release, disabled).await.map_err(ReconcileError::Read)?;
        let lease = clients.leases.get_opt(&release.lease()).await.map_err(ReconcileError::Read)?;
        let after = secret(release.ca_secret()).await?;
        let version = |secret: &Option<Secret>| secret.as_ref().map(|secret| (secret.uid(), secret.resource_version()));
        if version(&record) != version(&after) {
            return Err(ReconcileError::Changed);
        }
        let time = clock.read();
        let ca = CaSecret::read(record.as_ref(), release);
        let known = ca.stored.get();
        let serving =
            ServingSecret::read(serving_secret.as_ref(), ServingInputs { release, known, lifetimes, now: time.now });
        let know = |certificate: &[u8]| known?.generation_of(&CertificateDer::from(certificate));
        let configuration = live.configuration(&know);
        let unknown = live.unknown(&know).into_iter().map(CertificateDer::from).collect();
        let request = RotationRequest::of(lease.as_ref(), record.as_ref());
        Ok(Self { record, ca, serving_secret, serving, live, configuration, unknown, request, time })
    }

    /// Returns the record with its CAs, if it is readable.
    pub(super) fn known(&self) -> Option<&KnownCas> {
        self.ca.stored.get()
    }

    /// Returns the record for the rotation, with two corrections. The key of `unable`, a CA that failed to sign, is
    /// treated as lost. If the clock of the record's writer was behind the API server's, the phase begins when the
    /// record was written. A write time far in the future is ignored: one API server's clock may be wrong, and the
    /// phase would last until that time.
    fn record(&self, unable: Option<Generation>) -> Stored<Record> {
        let mut record = self.ca.record();
        if let Stored::Is(record) = &mut record {
            for ca in record.active.iter_mut().chain(&mut record.next) {
                ca.has_key &= Some(ca.generation) != unable;
            }
            let written = self.record.as_ref().and_then(|secret| written(secret, self.time.latest));
            record.since = written.map_or(record.since, |at| at.max(record.since));
        }
        record
    }

    /// Returns the configuration for the rotation. Its write time is replaced with the time when this leader first saw
    /// the current version.
    fn configuration(&self, unchanged_for: Duration) -> Configuration {
        let mut configuration = self.configuration.clone();
        if let Configuration::Present(bundle) = &mut configuration {
            bundle.written = self.time.now.checked_sub(unchanged_for).unwrap_or(self.time.now);
        }
        configuration
    }

    /// Returns the inputs of the next step.
    pub(super) fn observed(&self, release: &Release, observations: Observations) -> Observed {
        let Observations { endpoints, propagation, unable, unchanged_for } = observations;
        let claimed = self.unknown.iter().filter_map(|unknown| claimed_generation(release, unknown)).max();
        Observed {
            now: self.time.now,
            clock_agrees: self.time.agrees,
            record: self.record(unable),
            serving: self.serving.stored.clone(),
            configuration: self.configuration(unchanged_for),
            endpoints,
            propagation,
            requested: self.request.as_ref().map(RotationRequest::trigger),
            highest: self.ca.highest.max(self.serving.highest).max(claimed),
        }
    }
}

/// Returns when the controller last wrote the Secret, by the API server's clock. Times after `latest` are ignored.
/// `None` if `managedFields` has no time of the controller up to `latest`.
fn written(secret: &Secret, latest: Timestamp) -> Option<Timestamp> {
    let entries = secret.metadata.managed_fields.iter().flatten();
    let ours = entries.filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER));
    ours.filter_map(|entry| Some(entry.time.as_ref()?.0)).filter(|at| *at <= latest).max()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};

    use super::*;

    #[test]
    fn write_time_is_by_api_servers_clock() {
        let entry = |manager: &str, second| ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            time: Some(Time(Timestamp::from_second(second).unwrap())),
            ..ManagedFieldsEntry::default()
        };
        let mut secret = Secret::default();
        let second = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(written(&secret, second(100)), None);
        secret.metadata.managed_fields =
            Some(vec![entry(FIELD_MANAGER, 5), entry("kubectl-edit", 9), entry(FIELD_MANAGER, 7)]);
        assert_eq!(written(&secret, second(100)), Some(second(7)));
        assert_eq!(written(&secret, second(7)), Some(second(7)));
        assert_eq!(written(&secret, second(6)), Some(second(5)), "a time that is ahead of all clocks is ignored");
        assert_eq!(written(&secret, second(4)), None);
    }
}
