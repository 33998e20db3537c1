//! What a turn reads. The record is read before and after the others: what it says and what they are is of one moment, or it
//! is read again.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};
use rustls_pki_types::CertificateDer;

use super::asked::Wish;
use super::turn::TurnError;
use crate::authority::serving::Judging;
use crate::authority::{AuthoritySecret, Known, Lifetimes, ServingSecret, identity};
use crate::configuration::{self, Live};
use crate::release::Release;
use crate::rotation::{Configuration, Endpoints, Generation, Observed, Propagation, Record, Stored};

/// The objects of one moment.
#[derive(Debug)]
pub(super) struct Objects {
    /// The Secret with the record, for its `resourceVersion`.
    pub(super) record: Option<Secret>,
    /// What is in it.
    pub(super) authority: AuthoritySecret,
    /// The Secret with the leaf, for its `resourceVersion`.
    pub(super) leaf: Option<Secret>,
    /// What is in it.
    pub(super) serving: ServingSecret,
    /// The webhook configurations.
    pub(super) live: Live,
    /// What a person asks for.
    pub(super) wish: Option<Wish>,
    /// By what time all this was judged.
    pub(super) now: Timestamp,
}

/// Where they are.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) client: Client,
    pub(super) secrets: Api<Secret>,
    leases: Api<Lease>,
}

impl Place {
    pub(super) fn new(client: Client, release: &Release) -> Self {
        let (secrets, leases) = (
            Api::namespaced(client.clone(), release.namespace()),
            Api::namespaced(client.clone(), release.namespace()),
        );
        Self { client, secrets, leases }
    }
}

impl Objects {
    /// Reads all, as they are now and not as some cache has them.
    pub(super) async fn read(
        place: &Place,
        release: &Release,
        lifetimes: &Lifetimes,
        disarmed: bool,
    ) -> Result<Self, TurnError> {
        let secret = async |name: String| place.secrets.get_opt(&name).await.map_err(TurnError::Read);
        let record = secret(release.authority_secret()).await?;
        let leaf = secret(release.serving_secret()).await?;
        let live = configuration::observe(&place.client, release, disarmed).await.map_err(TurnError::Read)?;
        let lease = place.leases.get_opt(&release.lease()).await.map_err(TurnError::Read)?;
        let after = secret(release.authority_secret()).await?;
        let version = |secret: &Option<Secret>| secret.as_ref().map(|secret| (secret.uid(), secret.resource_version()));
        if version(&record) != version(&after) {
            return Err(TurnError::Changed);
        }
        let now = Timestamp::now();
        let authority = AuthoritySecret::read(record.as_ref(), release);
        let judging = Judging { release, known: authority.stored.get(), lifetimes, now };
        let serving = ServingSecret::read(leaf.as_ref(), judging);
        let wish = Wish::of(lease.as_ref(), record.as_ref());
        Ok(Self { record, authority, leaf, serving, live, wish, now })
    }

    /// The record with its material, if it can be read.
    pub(super) fn known(&self) -> Option<&Known> {
        self.authority.stored.get()
    }

    /// Whose authority a certificate is, DER.
    pub(super) fn know(&self, certificate: &[u8]) -> Option<Generation> {
        self.known()?.generation_of(&CertificateDer::from(certificate))
    }

    /// The webhook configuration, as the rotation sees it.
    pub(super) fn configuration(&self) -> Configuration {
        self.live.configuration(&|certificate| self.know(certificate))
    }

    /// Certificates in it of nobody who is known.
    pub(super) fn unknown(&self) -> Vec<CertificateDer<'static>> {
        let unknown = self.live.unknown(&|certificate| self.know(certificate));
        unknown.into_iter().map(CertificateDer::from).collect()
    }

    /// The record; the key of an authority that cannot sign is as good as lost.
    fn record_without(&self, unable: Option<Generation>) -> Stored<Record> {
        let mut record = self.authority.record();
        if let Stored::Is(Record { active: Some(active), .. }) = &mut record
            && Some(active.generation) == unable
        {
            active.has_key = false;
        }
        record
    }

    /// All that the next step depends on. `unable`: an authority that could not sign.
    pub(super) fn observed(
        &self,
        release: &Release,
        endpoints: Endpoints,
        propagation: Propagation,
        clock_agrees: bool,
        unable: Option<Generation>,
    ) -> Observed {
        let claimed = self.unknown().iter().filter_map(|unknown| identity::claimed(release, unknown)).max();
        Observed {
            now: self.now,
            clock_agrees,
            record: self.record_without(unable),
            serving: self.serving.stored.clone(),
            configuration: self.configuration(),
            endpoints,
            propagation,
            asked: self.wish.as_ref().map(Wish::trigger),
            highest: self.authority.highest.max(self.serving.highest).max(claimed),
        }
    }
}
