//! One reconciliation: observes the objects, decides the next step, and executes it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::PostParams;
use pillion_api::webhook_configuration;
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;
use tracing::{info, warn};

use super::connectivity::{ApiServerCheck, CheckResult, ConnectivityCheck, LIMIT, NO_RESPONSES, RoundResponses, Stage};
use super::objects::{ObjectClients, Objects, Observations};
use super::{Inputs, Outputs, ReconcileError, RotatorMetrics, Settings, report};
use crate::certificates::ca::{CaMaterial, EPOCH_ANNOTATION, IssueError, Issuing, KnownCas};
use crate::certificates::rotation::{
    self, Blocked, Configuration, Generation, Observed, Phase, Propagation, Record, Repair, Step, Trigger,
};
use crate::leader::{FIELD_MANAGER, LeaderContext};
use crate::probe::{self, Expected, ProbeRound};
use crate::trust_probe::Identity;
use crate::webhook_config::live::Versions;
use crate::webhook_config::{self, Live, Rules, Target};

/// The action after a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An object was written: reconcile again.
    Again,
    /// There is nothing to write.
    Wait {
        /// The reason.
        blocked: Blocked,
        /// When the wait ends at the latest; `None` to wait until the observed state changes.
        until: Option<Timestamp>,
    },
}

/// Reconciles, and keeps the state of this leader.
pub(super) struct Reconciler {
    leading: LeaderContext,
    clients: ObjectClients,
    settings: Settings,
    metrics: RotatorMetrics,
    pub(super) inputs: Inputs,
    pub(super) outputs: Outputs,
    /// Whether the webhooks were disabled at the last reconciliation. If the `ConfigMap` now has an unknown value, this
    /// state is kept.
    disabled: bool,
    /// The CA that can no longer sign: it has expired or expires too soon, or its name constraints do not permit the
    /// release's names.
    unable: Option<Generation>,
    /// The versions of the configurations, and when this leader first saw them.
    unchanged_since: (Versions, Instant),
    /// Unknown certificates that must remain trusted, even if they were removed from the configuration meanwhile.
    kept_unknown: Vec<CertificateDer<'static>>,
    /// When to renew the trust probe's certificate.
    trust_probe_renewal: Timestamp,
    /// State of the connectivity check.
    check: ConnectivityCheck,
    /// Whether the connectivity check has timed out, and this was not reported yet.
    check_timed_out: bool,
}

impl Reconciler {
    pub(super) fn new(
        leading: LeaderContext,
        settings: Settings,
        metrics: RotatorMetrics,
        inputs: Inputs,
        outputs: Outputs,
    ) -> Self {
        let clients = ObjectClients::new(leading.client.clone(), &leading.release);
        Self {
            leading,
            clients,
            settings,
            metrics,
            inputs,
            outputs,
            disabled: false,
            unable: None,
            unchanged_since: (Versions::new(), Instant::now()),
            kept_unknown: Vec::new(),
            trust_probe_renewal: Timestamp::MIN,
            check: ConnectivityCheck::Due,
            check_timed_out: false,
        }
    }

    /// Maximum time between two reconciliations.
    pub(super) const fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Clears the values for other tasks and resets the metrics, when leadership ends.
    pub(super) fn end(&self) {
        self.outputs.clear();
        self.metrics.reset();
    }

    /// Whether the connectivity check has timed out since the last call.
    pub(super) const fn check_timed_out(&mut self) -> bool {
        std::mem::replace(&mut self.check_timed_out, false)
    }

    /// Observes the objects and makes at most one write.
    pub(super) async fn reconcile(&mut self) -> Result<Next, ReconcileError> {
        let release = Arc::clone(&self.leading.release);
        let lifetimes = &self.settings.lifetimes;
        let mut objects = Objects::read(&self.clients, &release, lifetimes, &self.inputs.clock, self.disabled).await?;
        self.disabled = objects.live.disabled;
        let unchanged_for = self.unchanged_for(&objects.live);
        self.record_unknown(&objects);
        let expected = self.expected(&objects);
        let stage = Stage::of(&objects.configuration, &objects.live, &release);
        self.check = self.check.after(stage, Instant::now());
        let asked = self.question(&objects);
        let responses = RoundResponses::of(self.inputs.responses.borrow_and_update().as_ref(), asked);
        // The responses to the connectivity check do not show whether API servers trust the newest CA.
        let propagation = if self.check.is_running() { NO_RESPONSES } else { responses };
        self.end_check(responses);
        let question = self.question(&objects);
        self.serve_trust_probe(question, &objects)?;
        let endpoints = match &expected {
            Some(expected) => ProbeRound::of(self.inputs.found.borrow_and_update().as_ref(), expected),
            None => probe::NO_RESULTS,
        };
        let observations = Observations { endpoints, propagation, unable: self.unable, unchanged_for };
        let seen = objects.observed(&release, observations);
        if let Some(highest) = seen.forged() {
            self.ignore_forged_epochs(highest, &mut objects);
        }
        let seen = seen.without_forged_epochs().into_owned();
        replace(&self.outputs.expected, expected);
        replace(&self.outputs.question, question);

        let record = seen.record.get();
        let renewal =
            seen.serving.get().and_then(|serving| serving.certificate).map(|certificate| certificate.renew_at);
        self.metrics.set_state(seen.now, record, renewal);
        let step = rotation::next(&self.settings.rotation, &seen);
        if let Step::Wait { blocked, until } = step {
            let (blocked, until) = match (blocked, self.check) {
                (Blocked::Idle, ConnectivityCheck::Since(since)) => {
                    let left = LIMIT.saturating_sub(since.elapsed());
                    (Blocked::ConnectivityCheck, Timestamp::now().checked_add(left).ok())
                }
                _ => (blocked, until),
            };
            self.metrics.set_blocked(Some(blocked));
            let target = self.target(&objects, &seen).map(Arc::new);
            replace(&self.outputs.target, target);
            return Ok(Next::Wait { blocked, until });
        }
        if let Step::WriteBundle { repair: Repair::Damaged | Repair::Foreign, .. } = step {
            // Another client may damage the bundle repeatedly, so the task that corrects drift writes it, with pauses.
            let target = self.wanted(&step, &objects)?;
            replace(&self.outputs.target, target.map(Arc::new));
            self.metrics.set_blocked(Some(Blocked::Repair));
            return Ok(Next::Wait { blocked: Blocked::Repair, until: None });
        }
        self.metrics.set_blocked(None);
        let name = name(&step);
        let done = self.perform(&step, &objects, &seen).await;
        if let (Step::WriteServingCertificate { signer, .. }, Err(ReconcileError::Issue(error))) = (&step, &done) {
            self.record_unable(*signer, error);
        }
        self.metrics.count_step(
            name,
            match &done {
                Ok(()) => "ok",
                Err(error) if error.is_conflict() => "conflict",
                Err(_) => "error",
            },
        );
        done.map(|()| Next::Again)
    }

    async fn perform(&self, step: &Step, objects: &Objects, seen: &Observed) -> Result<(), ReconcileError> {
        match step {
            Step::Wait { .. } => Ok(()),
            Step::NewCa { generation, trigger } => self.new_ca(*generation, *trigger, objects, seen).await,
            Step::Advance(record) => self.advance(record.clone(), objects).await,
            Step::WriteServingCertificate { signer, epoch } => {
                self.write_serving_certificate(*signer, *epoch, objects).await
            }
            Step::Claim { epoch } => {
                let LeaderContext { client, release, .. } = &self.leading;
                webhook_config::claim(client, release, &objects.live, *epoch)
                    .await
                    .map_err(ReconcileError::Configuration)?;
                info!(epoch, "the webhook configuration is claimed; its entries are added when endpoints respond");
                Ok(())
            }
            Step::WriteBundle { repair, .. } => match self.wanted(step, objects)? {
                Some(target) => self.write_bundle(target, *repair, objects).await,
                None => Ok(()),
            },
        }
    }

    async fn new_ca(
        &self,
        generation: Generation,
        trigger: Option<Trigger>,
        objects: &Objects,
        seen: &Observed,
    ) -> Result<(), ReconcileError> {
        let new = self.issuing(objects.time.now).ca(generation)?;
        let record = Record::with(new.facts, trigger, seen);
        let phase = record.phase;
        let known = objects.ca.with(record, Some(new))?;
        let mut secret = known.secret(&self.leading.release, objects.record.as_ref())?;
        if let Some(request) = objects.request.as_ref().filter(|request| Some(request.trigger()) == trigger) {
            request.fulfil(&mut secret);
        }
        self.put(secret, objects.record.is_some()).await?;
        if let Some(fault) = &objects.ca.fault {
            warn!(%fault, "the record of the rotation was damaged");
        }
        trigger.inspect(|trigger| self.metrics.count_rotation(*trigger));
        info!(ca = generation.0, trigger = trigger.map(Trigger::as_str), phase = phase.as_str(), "a new CA is created");
        Ok(())
    }

    async fn advance(&self, record: Record, objects: &Objects) -> Result<(), ReconcileError> {
        let (phase, epoch) = (record.phase, record.epoch);
        let known = objects.ca.with(record, None)?;
        let secret = known.secret(&self.leading.release, objects.record.as_ref())?;
        self.put(secret, objects.record.is_some()).await?;
        if phase == Phase::Stable {
            info!(epoch, "the rotation is complete");
        } else {
            info!(phase = phase.as_str(), epoch, "the rotation advances");
        }
        Ok(())
    }

    async fn write_serving_certificate(
        &self,
        signer: Generation,
        epoch: u64,
        objects: &Objects,
    ) -> Result<(), ReconcileError> {
        let known = objects.known().ok_or(ReconcileError::NoRecord)?;
        let release = &self.leading.release;
        let certificate = known.sign(signer, &release.server_names(), self.issuing(objects.time.now))?;
        let secret = certificate.secret(release, epoch, objects.serving_secret.as_ref());
        self.put(secret, objects.serving_secret.is_some()).await?;
        info!(ca = signer.0, not_after = %certificate.not_after, renew_at = %certificate.renew_at, "a new serving certificate is written");
        Ok(())
    }

    async fn write_bundle(&self, target: Target, repair: Repair, objects: &Objects) -> Result<(), ReconcileError> {
        let LeaderContext { client, release, .. } = &self.leading;
        webhook_config::write(client, release, &objects.live, &target).await.map_err(ReconcileError::Configuration)?;
        let epoch = target.epoch;
        replace(&self.outputs.target, Some(Arc::new(target)));
        if repair == Repair::Create {
            let checks_connectivity = self.check.is_wanted();
            info!(
                epoch,
                checks_connectivity, "the webhook configuration has entries: API servers call the webhooks from now on"
            );
        } else {
            info!(epoch, "the CA bundle is written");
        }
        Ok(())
    }

    /// Returns the webhook configurations that a step writes; `None` if it writes none.
    fn wanted(&self, step: &Step, objects: &Objects) -> Result<Option<Target>, ReconcileError> {
        let Step::WriteBundle { cas, keep_unknown, epoch, .. } = step else { return Ok(None) };
        let known = objects.known().ok_or(ReconcileError::NoRecord)?;
        self.target_with(objects, known, cas, *keep_unknown, *epoch).map(Some)
    }

    /// Returns the desired webhook configurations while the rotation has nothing to write. `None` while they have no
    /// entries, without a readable record, or if a trusted CA is missing.
    fn target(&self, objects: &Objects, seen: &Observed) -> Option<Target> {
        let Configuration::Present(bundle) = &seen.configuration else { return None };
        let known = objects.known()?;
        let record = known.record();
        let trusted: Vec<_> = record.trusted().collect();
        self.target_with(objects, known, &trusted, record.keeps_unknown(), bundle.epoch).ok()
    }

    fn target_with(
        &self,
        objects: &Objects,
        known: &KnownCas,
        cas: &[Generation],
        keep_unknown: bool,
        epoch: u64,
    ) -> Result<Target, ReconcileError> {
        let unknown = if keep_unknown { self.kept_unknown.as_slice() } else { &[] };
        let bundle = known.bundle(cas, unknown)?;
        let rules = self.inputs.rules.borrow().clone().unwrap_or_else(|| Rules::of_live(&objects.live));
        let checks_connectivity = self.check.is_wanted();
        let settings = webhook_configuration::Settings { checks_connectivity, ..self.settings.webhooks.clone() };
        Ok(Target::new(settings, rules, bundle.into_bytes(), epoch))
    }

    /// Ends the connectivity check if it has a result.
    fn end_check(&mut self, responses: Propagation) {
        let Some(result) = self.check.result(responses, Instant::now()) else { return };
        self.check = ConnectivityCheck::Over;
        let Propagation { proven, behind, silent } = responses;
        self.metrics.count_step("check_connectivity", if result == CheckResult::Late { "error" } else { "ok" });
        match result {
            CheckResult::Proven => {
                info!(
                    proven,
                    "every API server reached a replica: from now on, pods are rejected if no replica responds"
                );
            }
            CheckResult::Partly => info!(
                proven,
                behind,
                silent,
                ?LIMIT,
                "not every API server is known to reach a replica: from now on, pods are rejected anyway if no \
                 replica responds"
            ),
            CheckResult::Late => {
                self.check_timed_out = true;
                warn!(behind, silent, ?LIMIT, "{}", report::UNREACHED);
            }
        }
    }

    /// Returns the check that should run against the API servers: the connectivity check while it runs, otherwise the
    /// rotation's trust probe.
    fn question(&self, objects: &Objects) -> Option<ApiServerCheck> {
        match &objects.configuration {
            Configuration::Present(bundle) if self.check.is_running() => {
                Some(ApiServerCheck::Replica { epoch: bundle.epoch })
            }
            _ => question(objects),
        }
    }

    /// Returns how long this leader has seen the configurations unchanged. Uses a monotonic clock, since the time in
    /// the configurations' annotation is from the writer's clock.
    fn unchanged_for(&mut self, live: &Live) -> Duration {
        let versions = live.versions();
        if self.unchanged_since.0 != versions {
            self.unchanged_since = (versions, Instant::now());
        }
        self.unchanged_since.1.elapsed()
    }

    /// Removes forged epochs from the webhook configurations in `objects`: those above `highest`, the highest epoch
    /// that the rotation can have written. Also logs and counts them.
    fn ignore_forged_epochs(&self, highest: u64, objects: &mut Objects) {
        let manager = objects.live.remove_forged_epochs(highest);
        self.metrics.count_forged_epoch();
        warn!(
            highest,
            manager,
            "another client wrote a higher {} than the rotation's into an object of the rotation: it is ignored and \
             overwritten",
            EPOCH_ANNOTATION
        );
    }

    /// Records that a CA failed to sign, if a retry cannot succeed.
    fn record_unable(&mut self, signer: Generation, error: &IssueError) {
        if error.is_final() && self.unable != Some(signer) {
            warn!(ca = signer.0, %error, "the CA can no longer sign: it must be replaced");
            self.unable = Some(signer);
        }
    }

    fn record_unknown(&mut self, objects: &Objects) {
        match objects.known() {
            Some(known) if known.record().keeps_unknown() => {
                let new = objects.unknown.iter().filter(|unknown| !self.kept_unknown.contains(unknown));
                let new: Vec<_> = new.cloned().collect();
                self.kept_unknown.extend(new);
            }
            Some(_) => self.kept_unknown.clear(),
            None => {}
        }
    }

    /// While the rotation checks whether API servers trust a CA, makes the trust probe serve a certificate of this CA.
    /// Otherwise, the trust probe serves none.
    fn serve_trust_probe(&mut self, question: Option<ApiServerCheck>, objects: &Objects) -> Result<(), ReconcileError> {
        let Some((ApiServerCheck::Trust { newest, .. }, known)) = question.zip(objects.known()) else {
            self.outputs.trust_probe.show(None);
            return Ok(());
        };
        if self.outputs.trust_probe.shows() != Some(newest) {
            self.outputs.trust_probe.show(None);
        } else if objects.time.now < self.trust_probe_renewal {
            return Ok(());
        }
        // With a wrong clock, the certificate would not be valid yet, or would have expired.
        if objects.time.agrees {
            let names = self.leading.release.trust_probe_names();
            let certificate = match known.sign(newest, &names, self.issuing(objects.time.now)) {
                Err(error) if error.is_final() => {
                    self.record_unable(newest, &error);
                    return Ok(());
                }
                signed => signed?,
            };
            let identity = Identity::new(newest, certificate.pem().as_bytes(), certificate.key().pem().as_bytes())?;
            self.outputs.trust_probe.show(Some(identity));
            self.trust_probe_renewal = certificate.renew_at;
        }
        Ok(())
    }

    /// Returns the requirements for probing endpoints. While no API server calls the webhook, the bundle in the
    /// requirements is empty.
    fn expected(&self, objects: &Objects) -> Option<Arc<Expected>> {
        let known = objects.known()?;
        let record = known.record();
        let ca =
            |ca: &CaMaterial| probe::KnownCa { generation: ca.facts.generation, certificate: ca.certificate().clone() };
        let newest = record.next.or(record.active).map(|newest| newest.generation);
        let bundle = Self::bundle(objects, known);
        let cas = known.cas().map(ca).collect();
        Expected::of(&self.leading.release, cas, newest, bundle, record.certificate_epoch).map(Arc::new)
    }

    /// Returns the known CA certificates that every webhook entry trusts, and the unknown certificates in any entry.
    /// Empty while the configuration has no entries.
    fn bundle(objects: &Objects, known: &KnownCas) -> Vec<CertificateDer<'static>> {
        let Configuration::Present(bundle) = &objects.configuration else { return Vec::new() };
        let trusted = |ca: &&CaMaterial| bundle.cas.contains(&ca.facts.generation);
        let ours = known.cas().filter(trusted).map(|ca| ca.certificate().clone());
        ours.chain(objects.unknown.iter().cloned()).collect()
    }

    /// Returns the inputs for creating certificates at this time.
    fn issuing(&self, now: Timestamp) -> Issuing<'_> {
        Issuing { release: &self.leading.release, lifetimes: &self.settings.lifetimes, now }
    }

    /// Writes a Secret. If `exists`, replaces the Secret, otherwise creates it. Fails if the Secret has changed since
    /// it was read.
    async fn put(&self, secret: Secret, exists: bool) -> Result<(), ReconcileError> {
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let name = secret.name_any();
        let written = if exists {
            self.clients.secrets.replace(&name, &parameters, &secret).await
        } else {
            self.clients.secrets.create(&parameters, &secret).await
        };
        match written {
            Ok(_) => Ok(()),
            // The Secret was changed, deleted or created since it was read.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(ReconcileError::Changed),
            Err(source) => Err(ReconcileError::Secret { name, source }),
        }
    }
}

/// Returns the trust probe that the rotation waits for. `None` if it waits for none, or if the configuration is not in
/// its desired state.
fn question(objects: &Objects) -> Option<ApiServerCheck> {
    let record = objects.known()?.record();
    if !matches!(record.phase, Phase::Expanded | Phase::Contracted) {
        return None;
    }
    let newest = record.next?.generation;
    let Configuration::Present(bundle) = &objects.configuration else { return None };
    let rotation::Bundle { cas, epoch, written, .. } = bundle;
    let is_wanted = cas.contains(&newest) && *epoch >= record.bundle_epoch;
    is_wanted.then_some(ApiServerCheck::Trust { newest, epoch: *epoch, written: *written })
}

/// Sends the value if it differs from the last one.
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
        Step::NewCa { .. } => "create_ca",
        Step::Advance(_) => "advance",
        Step::Claim { .. } => "claim",
        Step::WriteServingCertificate { .. } => "write_certificate",
        Step::WriteBundle { .. } => "write_ca_bundle",
        Step::Wait { .. } => "wait",
    }
}
