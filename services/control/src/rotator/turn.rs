//! One turn: what is there, what is to be done, and that it is done.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::PostParams;
use rustls_pki_types::CertificateDer;
use tracing::{info, warn};

use super::objects::{Objects, Place};
use super::question::{Answered, Question};
use super::{RotatorMetrics, Settings, Wires};
use crate::authority::{Known, MakeError, Making, MissingAuthority, SystemRandomness};
use crate::canary::Identity;
use crate::canary::server::IdentityError;
use crate::configuration::{self, Rules, Target, WriteError};
use crate::leading::{FIELD_MANAGER, Leading};
use crate::probe::{self, Expected, Found};
use crate::rotation::{self, Blocked, Configuration, Generation, Observed, Phase, Record, Repair, Step, Trigger};

/// What comes after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Something was written: look again.
    Again,
    /// There is nothing to write.
    Wait {
        /// Why.
        blocked: Blocked,
        /// When time alone changes it.
        until: Option<Timestamp>,
    },
}

/// Why a turn came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    /// Something changed while it was read, or before it was written.
    #[error("an object of the rotation was changed by somebody else")]
    Changed,
    /// It took too long.
    #[error("the API server did not answer within {0:?}")]
    Late(std::time::Duration),
    /// Something cannot be read.
    #[error("an object of the rotation cannot be read")]
    Read(#[source] kube::Error),
    /// A Secret cannot be written.
    #[error("the Secret {name} cannot be written")]
    Secret {
        /// Which one.
        name: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// A configuration cannot be written.
    #[error(transparent)]
    Configuration(WriteError),
    /// No certificate can be made.
    #[error("no certificate can be made")]
    Make(#[from] MakeError),
    /// The record speaks of an authority that is not there.
    #[error(transparent)]
    Missing(#[from] MissingAuthority),
    /// The canary cannot show what was made for it.
    #[error("the canary has nothing to show")]
    Canary(#[from] IdentityError),
    /// There is no record, though the step is one that needs it.
    #[error("the record of the rotation cannot be read")]
    NoRecord,
    /// The record cannot be written down.
    #[error("the record of the rotation makes no text")]
    Text(#[from] serde_json::Error),
}

impl TurnError {
    /// Whether looking again will do.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Changed | Self::Configuration(WriteError::Changed | WriteError::Behind { .. } | WriteError::NotEmpty)
        )
    }
}

/// Makes turns.
pub(super) struct Turn {
    leading: Leading,
    place: Place,
    settings: Settings,
    metrics: RotatorMetrics,
    /// What the `ConfigMap` said last, for when it says neither.
    disarmed: bool,
    /// The authority that could not sign when it was asked to: it has ended, or was made for other names.
    unable: Option<Generation>,
    /// Who is trusted and not known, while that has to stay: also what somebody took out of the configuration since.
    strangers: Vec<CertificateDer<'static>>,
    /// When the leaf that the canary shows is to be made anew.
    canary_renewal: Timestamp,
}

impl Turn {
    pub(super) fn new(leading: Leading, settings: Settings, metrics: RotatorMetrics) -> Self {
        let place = Place::new(leading.client.clone(), &leading.release);
        Self {
            leading,
            place,
            settings,
            metrics,
            disarmed: false,
            unable: None,
            strangers: Vec::new(),
            canary_renewal: Timestamp::MIN,
        }
    }

    /// One turn.
    pub(super) async fn make(&mut self, wires: &mut Wires) -> Result<Next, TurnError> {
        let release = Arc::clone(&self.leading.release);
        let objects = Objects::read(&self.place, &release, &self.settings.lifetimes, self.disarmed).await?;
        self.disarmed = objects.live.disarmed;
        self.note_strangers(&objects);
        let expected = self.expected(&objects);
        let question = question(&objects);
        self.show(question, &objects, wires)?;
        let endpoints = match &expected {
            Some(expected) => Found::of(wires.found.borrow_and_update().as_ref(), expected),
            None => probe::fold::UNKNOWN,
        };
        let propagation = Answered::to(wires.answered.borrow_and_update().as_ref(), question);
        let seen = objects.observed(&release, endpoints, propagation, wires.clock.agrees(), self.unable);
        replace(&wires.expected, expected);
        replace(&wires.question, question);

        let record = seen.record.get();
        let renewal = seen.serving.get().and_then(|serving| serving.leaf).map(|leaf| leaf.renew_at);
        self.metrics.looked(seen.now, record, renewal);
        let step = rotation::next(&self.settings.rotation, &seen);
        if let Step::Wait { blocked, until } = step {
            self.metrics.waits(Some(blocked));
            let target = self.target(&objects, &seen, wires).map(Arc::new);
            replace(&wires.target, target);
            return Ok(Next::Wait { blocked, until });
        }
        if let Step::WriteBundle { repair: Repair::Damaged | Repair::Foreign, .. } = step {
            // Whoever damaged it may do so again and again: that is paced by who repairs.
            let target = self.wanted(&step, &objects, wires)?;
            replace(&wires.target, target.map(Arc::new));
            self.metrics.waits(Some(Blocked::Repair));
            return Ok(Next::Wait { blocked: Blocked::Repair, until: None });
        }
        self.metrics.waits(None);
        let name = name(&step);
        let done = self.perform(&step, &objects, &seen, wires).await;
        if let (Step::WriteLeaf { signer, .. }, Err(TurnError::Make(error))) = (&step, &done)
            && error.is_final()
        {
            warn!(authority = signer.0, %error, "the authority cannot sign any more: there will be a new one");
            self.unable = Some(*signer);
        }
        self.metrics.did(
            name,
            match &done {
                Ok(()) => "ok",
                Err(error) if error.is_conflict() => "conflict",
                Err(_) => "error",
            },
        );
        done.map(|()| Next::Again)
    }

    async fn perform(&self, step: &Step, objects: &Objects, seen: &Observed, wires: &Wires) -> Result<(), TurnError> {
        match step {
            Step::Wait { .. } => Ok(()),
            Step::NewAuthority { generation, trigger } => {
                self.new_authority(*generation, *trigger, objects, seen).await
            }
            Step::Advance(record) => self.advance(record.clone(), objects).await,
            Step::WriteLeaf { signer, epoch } => self.write_leaf(*signer, *epoch, objects).await,
            Step::Claim { epoch } => {
                let Leading { client, release, .. } = &self.leading;
                configuration::claim(client, release, &objects.live, *epoch).await.map_err(TurnError::Configuration)?;
                info!(epoch, "the webhook configuration is claimed; it is filled when endpoints answer");
                Ok(())
            }
            Step::WriteBundle { repair, .. } => match self.wanted(step, objects, wires)? {
                Some(target) => self.write_bundle(target, *repair, objects, wires).await,
                None => Ok(()),
            },
        }
    }

    async fn new_authority(
        &self,
        generation: Generation,
        trigger: Option<Trigger>,
        objects: &Objects,
        seen: &Observed,
    ) -> Result<(), TurnError> {
        let fresh = self.making(objects.now, |making| making.authority(generation, &[]))?;
        let record = Record::with(fresh.facts, trigger, seen);
        let phase = record.phase;
        let known = objects.authority.with(record, Some(fresh))?;
        let mut secret = known.secret(&self.leading.release, objects.record.as_ref())?;
        if let Some(wish) = objects.wish.as_ref().filter(|wish| Some(wish.trigger()) == trigger) {
            wish.fulfil(&mut secret);
        }
        self.put(secret, objects.record.is_some()).await?;
        if let Some(fault) = &objects.authority.fault {
            warn!(%fault, "the record of the rotation was damaged");
        }
        trigger.inspect(|trigger| self.metrics.began(*trigger));
        info!(
            authority = generation.0,
            trigger = trigger.map(Trigger::as_str),
            phase = phase.as_str(),
            "a new authority is made"
        );
        Ok(())
    }

    async fn advance(&self, record: Record, objects: &Objects) -> Result<(), TurnError> {
        let (phase, epoch) = (record.phase, record.epoch);
        let known = objects.authority.with(record, None)?;
        let secret = known.secret(&self.leading.release, objects.record.as_ref())?;
        self.put(secret, objects.record.is_some()).await?;
        if phase == Phase::Stable {
            info!(epoch, "the rotation is through");
        } else {
            info!(phase = phase.as_str(), epoch, "the rotation goes on");
        }
        Ok(())
    }

    async fn write_leaf(&self, signer: Generation, epoch: u64, objects: &Objects) -> Result<(), TurnError> {
        let known = objects.known().ok_or(TurnError::NoRecord)?;
        let release = &self.leading.release;
        let leaf = self.making(objects.now, |making| known.sign(signer, &release.server_names(), making))?;
        let secret = leaf.secret(release, epoch, objects.leaf.as_ref());
        self.put(secret, objects.leaf.is_some()).await?;
        info!(authority = signer.0, not_after = %leaf.not_after, renew_at = %leaf.renew_at, "a new certificate is to be served");
        Ok(())
    }

    async fn write_bundle(
        &self,
        target: Target,
        repair: Repair,
        objects: &Objects,
        wires: &Wires,
    ) -> Result<(), TurnError> {
        let Leading { client, release, .. } = &self.leading;
        configuration::write(client, release, &objects.live, &target).await.map_err(TurnError::Configuration)?;
        let epoch = target.epoch;
        replace(&wires.target, Some(Arc::new(target)));
        if repair == Repair::Create {
            info!(epoch, "the webhook configuration is filled: API servers call from now on");
        } else {
            info!(epoch, "API servers are told whom to trust");
        }
        Ok(())
    }

    /// How a step wants the configurations to be.
    fn wanted(&self, step: &Step, objects: &Objects, wires: &Wires) -> Result<Option<Target>, TurnError> {
        let Step::WriteBundle { authorities, keep_unknown, epoch, .. } = step else { return Ok(None) };
        let known = objects.known().ok_or(TurnError::NoRecord)?;
        self.filled(objects, known, authorities, *keep_unknown, *epoch, wires).map(Some)
    }

    /// How the configurations ought to be while nothing is to be written for the rotation's sake.
    fn target(&self, objects: &Objects, seen: &Observed, wires: &Wires) -> Option<Target> {
        let Configuration::Present(bundle) = &seen.configuration else { return None };
        let known = objects.known()?;
        let record = known.record();
        let trusted: Vec<_> = record.trusted().collect();
        self.filled(objects, known, &trusted, record.keeps_unknown(), bundle.epoch, wires).ok()
    }

    fn filled(
        &self,
        objects: &Objects,
        known: &Known,
        authorities: &[Generation],
        keep_unknown: bool,
        epoch: u64,
        wires: &Wires,
    ) -> Result<Target, TurnError> {
        let besides = if keep_unknown { self.strangers.as_slice() } else { &[] };
        let bundle = known.bundle(authorities, besides)?;
        let rules = wires.rules.borrow().clone().unwrap_or_else(|| Rules::of_live(&objects.live));
        Ok(Target::new(self.settings.webhooks.clone(), rules, bundle.into_bytes(), epoch))
    }

    fn note_strangers(&mut self, objects: &Objects) {
        match objects.known() {
            Some(known) if known.record().keeps_unknown() => {
                let fresh = objects.unknown().into_iter().filter(|unknown| !self.strangers.contains(unknown));
                let fresh: Vec<_> = fresh.collect();
                self.strangers.extend(fresh);
            }
            Some(_) => self.strangers.clear(),
            None => {}
        }
    }

    /// Has the canary show a leaf of the authority that is asked about, for as long as somebody is asked.
    fn show(&mut self, question: Option<Question>, objects: &Objects, wires: &Wires) -> Result<(), TurnError> {
        let Some((Question { newest, .. }, known)) = question.zip(objects.known()) else {
            wires.canary.show(None);
            return Ok(());
        };
        if wires.canary.shows() != Some(newest) || objects.now >= self.canary_renewal {
            let names = self.leading.release.canary_names();
            let leaf = self.making(objects.now, |making| known.sign(newest, &names, making))?;
            let identity = Identity::new(newest, leaf.pem().as_bytes(), leaf.key().pem().as_bytes())?;
            wires.canary.show(Some(identity));
            self.canary_renewal = leaf.renew_at;
        }
        Ok(())
    }

    /// What endpoints are judged by. While no API server calls, the bundle is empty.
    fn expected(&self, objects: &Objects) -> Option<Arc<Expected>> {
        let known = objects.known()?;
        let record = known.record();
        let authority = |authority: &crate::authority::AuthorityMaterial| probe::Known {
            generation: authority.facts.generation,
            certificate: authority.certificate().clone(),
        };
        let newest = record.next.or(record.active).map(|newest| newest.generation);
        let bundle = Self::bundle(objects, known);
        let authorities = known.authorities().map(authority).collect();
        Expected::of(&self.leading.release, authorities, newest, bundle, record.leaf_epoch).map(Arc::new)
    }

    /// Whom every entry trusts.
    fn bundle(objects: &Objects, known: &Known) -> Vec<CertificateDer<'static>> {
        let Configuration::Present(bundle) = objects.configuration() else { return Vec::new() };
        let trusted =
            |authority: &&crate::authority::AuthorityMaterial| bundle.authorities.contains(&authority.facts.generation);
        let ours = known.authorities().filter(trusted).map(|authority| authority.certificate().clone());
        ours.chain(objects.unknown()).collect()
    }

    /// Makes something now.
    fn making<T>(
        &self,
        now: Timestamp,
        make: impl FnOnce(&mut Making<'_>) -> Result<T, MakeError>,
    ) -> Result<T, TurnError> {
        let (release, lifetimes) = (&*self.leading.release, &self.settings.lifetimes);
        Ok(make(&mut Making { release, lifetimes, now, random: &mut SystemRandomness })?)
    }

    /// Writes a Secret, guarded by what was read.
    async fn put(&self, secret: Secret, is_there: bool) -> Result<(), TurnError> {
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let name = secret.name_any();
        let written = if is_there {
            self.place.secrets.replace(&name, &parameters, &secret).await
        } else {
            self.place.secrets.create(&parameters, &secret).await
        };
        match written {
            Ok(_) => Ok(()),
            // Changed or gone since it was read, or there although it was not.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(TurnError::Changed),
            Err(source) => Err(TurnError::Secret { name, source }),
        }
    }
}

/// What is to be asked: only while a rotation waits for the answer, and when the configuration is as it is wanted.
fn question(objects: &Objects) -> Option<Question> {
    let record = objects.known()?.record();
    if !matches!(record.phase, Phase::Expanded | Phase::Contracted) {
        return None;
    }
    let newest = record.next?.generation;
    let Configuration::Present(bundle) = objects.configuration() else { return None };
    let rotation::Bundle { authorities, epoch, written, .. } = bundle;
    (authorities.contains(&newest) && epoch >= record.bundle_epoch).then_some(Question { newest, epoch, written })
}

/// Tells others, if it is anything new.
fn replace<T: PartialEq>(sender: &tokio::sync::watch::Sender<T>, value: T) {
    sender.send_if_modified(|known| {
        let differs = *known != value;
        if differs {
            *known = value;
        }
        differs
    });
}

const fn name(step: &Step) -> &'static str {
    match step {
        Step::NewAuthority { .. } => "new_authority",
        Step::Advance(_) => "advance",
        Step::Claim { .. } => "claim",
        Step::WriteLeaf { .. } => "write_leaf",
        Step::WriteBundle { .. } => "write_bundle",
        Step::Wait { .. } => "wait",
    }
}
