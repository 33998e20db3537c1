//! The state of the model: the record of the rotation, the versions of the bundle and of the serving certificate, the
//! leaders, the replicas that watch the certificate, and the API servers that watch the bundle.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pillion_control::certificates::rotation::{
    Bundle, Ca, Configuration, Generation, Observed, ProbeSummary, Propagation, Record, Serving, ServingCertificate,
    Settings, Stored, Trigger, next,
};
use pillion_control::certificates::serving_secret::may_replace;
use pillion_control::trust_probe::{ServerOutcome, Silence, fold};

use crate::rotation_model::leader::{Leader, Planner};

pub(crate) const API_SERVERS: usize = 2;
pub(crate) const REPLICAS: usize = 3;
pub(crate) const LEADERS: usize = 2;
/// Number of CAs: enough for two rotations. After a disturbance, the model permits one more.
pub(crate) const GENERATIONS: u32 = 3;

/// A time after all deadlines. No CA of the model has reached its rotation age by then.
const LATE: Timestamp = Timestamp::constant(100 * 24 * 3600, 0);

/// A set of CAs, one bit each. Bit 7 is an unknown certificate.
pub(crate) type Mask = u8;
pub(crate) const FOREIGN_CA: Mask = 1 << 7;

pub(crate) const fn bit(generation: Generation) -> Mask {
    1 << generation.0
}

/// A single disturbance: a change that no leader makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Disturbance {
    BundleEmptied,
    ForeignCaTrusted,
    CertificateLost,
    RecordLost,
    RecordCorrupted,
    RecordRestored,
    /// The epoch of the bundle is raised.
    BundleEpochRaised,
    /// The epoch of the serving certificate is raised.
    CertificateEpochRaised,
    /// The Secret with the serving certificate is restored to its first version.
    CertificateRestored,
    /// The API servers can no longer be listed. One of them is asked, and their number is unknown.
    ApiServersUncounted,
}

impl Disturbance {
    pub(crate) const ALL: [Self; 10] = [
        Self::BundleEmptied,
        Self::ForeignCaTrusted,
        Self::CertificateLost,
        Self::RecordLost,
        Self::RecordCorrupted,
        Self::RecordRestored,
        Self::BundleEpochRaised,
        Self::CertificateEpochRaised,
        Self::CertificateRestored,
        Self::ApiServersUncounted,
    ];
}

/// A version of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BundleVersion {
    /// Whether the bundle has entries, so that API servers call the webhook.
    pub(crate) entries: bool,
    pub(crate) trusted: Mask,
    pub(crate) epoch: u64,
    /// Whether a disturbance emptied the bundle. The rotation does not cause the failures of such a bundle.
    pub(crate) is_external: bool,
    /// Whether a disturbance raised the epoch. A later bundle may then have a lower epoch.
    pub(crate) raised: bool,
}

/// A version of the Secret with the serving certificate. It has no signer if the certificate was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CertificateVersion {
    pub(crate) signer: Option<Generation>,
    pub(crate) epoch: u64,
    /// Whether a disturbance restored this version. The rotation does not cause the failure of a replica that starts
    /// with it.
    pub(crate) restored: bool,
}

/// A replica of the webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Number of versions of the Secret that the replica has seen.
    pub(crate) seen: u32,
    /// The CA of the certificate that the replica serves.
    pub(crate) serves: Option<Generation>,
    /// Whether the replica started with a restored certificate, and still serves a certificate of the same CA.
    pub(crate) misled: bool,
}

/// Functions of the real code. Tests replace one of them with a wrong function, and show that the model then finds a
/// failure.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) planner: Planner,
    /// Summarises the responses of API servers.
    pub(crate) fold: fn(&[ServerOutcome], Option<usize>) -> Propagation,
    /// Whether a certificate of the second CA may replace one of the first.
    pub(crate) may_replace: fn(Generation, Generation) -> bool,
}

impl Rules {
    pub(crate) const CODE: Self =
        Self { planner: next, fold: |outcomes, servers| fold(outcomes, servers), may_replace };

    pub(crate) fn planned_by(planner: Planner) -> Self {
        Self { planner, ..Self::CODE }
    }
}

impl Replica {
    /// Returns the replica after it saw this version of the Secret. A missing certificate does not replace the last
    /// valid one.
    pub(crate) fn sees(self, version: u32, certificate: Option<CertificateVersion>, rules: Rules) -> Self {
        let seen = Self { seen: version, ..self };
        let Some((offered, restored)) =
            certificate.and_then(|certificate| Some((certificate.signer?, certificate.restored)))
        else {
            return seen;
        };
        match self.serves {
            Some(served) if !(rules.may_replace)(served, offered) => seen,
            Some(served) => Self { serves: Some(offered), misled: self.misled && served == offered, ..seen },
            None => Self { serves: Some(offered), misled: restored, ..seen },
        }
    }
}

/// An object with its versions: from the oldest one that a replica or an API server still uses to the newest one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object<T> {
    /// Number of earlier versions, which were dropped.
    pub(crate) base: u32,
    pub(crate) versions: Vec<T>,
}

impl<T: Copy> Object<T> {
    pub(crate) fn newest(&self) -> Option<T> {
        self.versions.last().copied()
    }

    pub(crate) fn version(&self) -> u32 {
        self.base + self.versions.len() as u32
    }

    /// Returns the version with this number, counted from 1. `None` if it was dropped or does not exist yet.
    pub(crate) fn seen(&self, version: u32) -> Option<T> {
        self.versions.get((version.checked_sub(self.base + 1)?) as usize).copied()
    }

    pub(crate) fn push(&mut self, version: T) {
        self.versions.push(version);
    }

    /// Drops versions that no replica or API server uses any more.
    pub(crate) fn forget(&mut self, oldest_seen: u32) {
        let gone = oldest_seen.saturating_sub(self.base + 1) as usize;
        let gone = gone.min(self.versions.len().saturating_sub(1));
        self.versions.drain(..gone);
        self.base += gone as u32;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pub(crate) record: Stored<Record>,
    pub(crate) record_version: u32,
    /// The record of epoch 2, as a backup.
    pub(crate) backup: Option<Record>,
    pub(crate) bundle: Object<BundleVersion>,
    pub(crate) certificate: Object<CertificateVersion>,
    /// Number of versions of the bundle that each API server has seen.
    pub(crate) api_servers: [u32; API_SERVERS],
    /// Whether the last API server is paused.
    pub(crate) stopped: bool,
    pub(crate) replicas: [Replica; REPLICAS],
    /// The first serving certificate, as a backup.
    pub(crate) certificate_backup: Option<CertificateVersion>,
    /// Whether the API servers cannot be listed.
    pub(crate) uncounted: bool,
    pub(crate) leaders: [Leader; LEADERS],
    pub(crate) highest: u32,
    pub(crate) disturbances_left: u8,
}

impl ModelState {
    /// Creates an empty cluster.
    pub(crate) fn new() -> Self {
        Self {
            record: Stored::Missing,
            record_version: 0,
            backup: None,
            bundle: Object { base: 0, versions: Vec::new() },
            certificate: Object { base: 0, versions: Vec::new() },
            api_servers: [0; API_SERVERS],
            stopped: false,
            replicas: [Replica::default(); REPLICAS],
            certificate_backup: None,
            uncounted: false,
            leaders: [const { Leader::Idle }; LEADERS],
            highest: 0,
            disturbances_left: 1,
        }
    }

    pub(crate) fn trusted_by(&self, api_server: usize) -> Option<BundleVersion> {
        self.bundle.seen(self.api_servers[api_server])
    }

    pub(crate) fn is_stopped(&self, api_server: usize) -> bool {
        self.stopped && api_server + 1 == API_SERVERS
    }

    /// Whether every running API server has seen this version of the bundle.
    pub(crate) fn have_seen(&self, version: u32) -> bool {
        (0..API_SERVERS).all(|api_server| self.is_stopped(api_server) || self.api_servers[api_server] >= version)
    }

    /// Describes an API server that would call a replica without trusting it. `None` if there is no such API server.
    pub(crate) fn broken_trust(&self) -> Option<String> {
        for api_server in (0..API_SERVERS).filter(|api_server| !self.is_stopped(*api_server)) {
            let Some(bundle) = self.trusted_by(api_server).filter(|bundle| !bundle.is_external && bundle.entries)
            else {
                continue;
            };
            for (replica, Replica { serves, misled, .. }) in self.replicas.iter().enumerate() {
                let Some(signer) = serves.filter(|_| !misled) else { continue };
                if bundle.trusted & bit(signer) == 0 {
                    return Some(format!(
                        "API server {api_server} trusts {:#b}, and replica {replica} serves a serving certificate of {}",
                        bundle.trusted, signer.0
                    ));
                }
            }
        }
        None
    }

    /// Describes the versions of the bundle if an outdated leader wrote one for an earlier epoch.
    pub(crate) fn went_backwards(&self) -> Option<String> {
        let pairs = self.bundle.versions.windows(2);
        let back =
            pairs.into_iter().any(|pair| !pair[1].is_external && !pair[0].raised && pair[1].epoch < pair[0].epoch);
        back.then(|| format!("the bundle went backwards: {:?}", self.bundle.versions))
    }

    pub(crate) fn at_rest(&self) -> bool {
        let Stored::Is(record) = &self.record else { return false };
        let (Some(active), None, Some(bundle)) = (record.active, record.next, self.bundle.newest()) else {
            return false;
        };
        bundle.trusted == bit(active.generation)
            && self.replicas.iter().all(|replica| replica.serves == Some(active.generation))
    }

    pub(crate) fn forget(&mut self) {
        let oldest = self.api_servers.iter().copied().min().unwrap_or(0);
        self.bundle.forget(oldest);
        let oldest = self.replicas.iter().map(|replica| replica.seen).min().unwrap_or(0);
        self.certificate.forget(oldest);
    }
}

/// A leader's observation of objects, endpoints and API servers, before it reads the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) bundle: Option<BundleVersion>,
    pub(crate) bundle_version: u32,
    pub(crate) certificate: Option<CertificateVersion>,
    pub(crate) certificate_version: u32,
    pub(crate) record_version: u32,
    certificates: [Option<Generation>; REPLICAS],
    trusts: [Option<Mask>; API_SERVERS],
    uncounted: bool,
}

impl Reading {
    pub(crate) fn of(world: &ModelState) -> Self {
        let trusts = std::array::from_fn(|api_server| {
            let bundle = world.trusted_by(api_server).map_or(0, |bundle| bundle.trusted);
            (!world.is_stopped(api_server)).then_some(bundle)
        });
        Self {
            bundle: world.bundle.newest(),
            bundle_version: world.bundle.version(),
            certificate: world.certificate.newest(),
            certificate_version: world.certificate.version(),
            record_version: world.record_version,
            certificates: world.replicas.map(|replica| replica.serves),
            trusts,
            uncounted: world.uncounted,
        }
    }

    /// Returns the complete observation, with the record. `late` says whether all deadlines have passed, and `asked`
    /// whether a rotation is requested.
    pub(crate) fn with_record(
        &self,
        world: &ModelState,
        (rules, settings): (Rules, &Settings),
        late: bool,
        asked: bool,
    ) -> Observed {
        let record = world.record.clone();
        let known = record.get();
        let cas: Vec<_> =
            known.into_iter().flat_map(|record| [record.active, record.next]).flatten().map(|a| a.generation).collect();
        let all = cas.iter().fold(0, |mask, generation| mask | bit(*generation));
        let newest = cas.iter().copied().max();
        let now = if late { LATE } else { Timestamp::UNIX_EPOCH };
        let configuration = self.bundle.map_or(Configuration::Absent, |bundle| {
            if !bundle.entries {
                return Configuration::Empty { epoch: bundle.epoch };
            }
            Configuration::Present(Bundle {
                cas: cas.iter().copied().filter(|a| bundle.trusted & bit(*a) != 0).collect::<BTreeSet<_>>(),
                uniform: bundle.trusted != 0,
                unknown: bundle.trusted & !all != 0,
                epoch: bundle.epoch,
                written: Timestamp::UNIX_EPOCH,
            })
        });
        let serving = self.certificate.map_or(Stored::Missing, |certificate| {
            let signer = certificate.signer.map(|signer| cas.iter().copied().find(|known| *known == signer));
            Stored::Is(Serving {
                certificate: signer.map(|signer| ServingCertificate { signer, renew_at: Timestamp::MAX }),
                epoch: certificate.epoch,
            })
        });
        let trusted = self.bundle.filter(|bundle| bundle.entries).map_or(all, |bundle| bundle.trusted);
        let newest_bit = newest.map_or(0, bit);
        let served: Vec<_> = self.certificates.iter().flatten().collect();
        let all_newest = served.len() == REPLICAS && served.iter().all(|certificate| Some(**certificate) == newest);
        let answer = |trusts: &Option<Mask>| match trusts {
            Some(trusts) if trusts & newest_bit != 0 => ServerOutcome::Proven,
            Some(_) => ServerOutcome::Behind,
            None => ServerOutcome::Silent(Silence::Timeout),
        };
        // Without a list, the configured address is asked, and one API server responds.
        let (reached, number) = if self.uncounted { (1, None) } else { (API_SERVERS, Some(API_SERVERS)) };
        let answers: Vec<_> = self.trusts.iter().take(reached).map(answer).collect();
        Observed {
            now,
            clock_agrees: true,
            configuration,
            serving,
            endpoints: ProbeSummary {
                answering: served.iter().filter(|certificate| trusted & bit(***certificate) != 0).count(),
                rounds: if all_newest { settings.rounds } else { 0 },
                is_other_ca_served: served.iter().any(|certificate| Some(**certificate) != newest),
                untrusted: served.iter().any(|certificate| all & bit(**certificate) == 0),
                unreachable: REPLICAS - served.len(),
            },
            propagation: (rules.fold)(&answers, number),
            requested: asked.then_some(Trigger::Requested),
            highest: (world.highest > 0).then_some(Generation(world.highest)),
            record,
        }
    }
}

/// Returns the CA with this number, which never expires.
pub(crate) fn ca(generation: Generation) -> Ca {
    Ca { generation, created: Timestamp::UNIX_EPOCH, not_after: Timestamp::MAX, has_key: true }
}
