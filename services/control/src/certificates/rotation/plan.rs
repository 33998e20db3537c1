//! Chooses the next step.
//!
//! Deviations from the state that the phase requires are corrected first. The bundle is corrected before the serving
//! certificate, since no replica may serve an untrusted certificate. The phase may end only when both are correct.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{
    Blocked, Bundle, Ca, Configuration, Generation, Observed, Phase, Propagation, Record, Repair, Serving, Step,
    Stored, Trigger,
};

/// Durations of the rotation. Tests scale them down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Age at which a CA is replaced. The default is half of the default lifetime of a CA.
    pub rotate_after: Duration,
    /// How long to wait for API servers without a result after the bundle was changed.
    pub propagation_timeout: Duration,
    /// Number of consecutive rounds of probes that must find a certificate of the newest CA on every endpoint.
    pub rounds: u32,
    /// How long the old CA remains trusted after these rounds.
    pub overlap: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rotate_after: Duration::from_hours(24 * 365 / 2),
            propagation_timeout: Duration::from_mins(2),
            rounds: 3,
            overlap: Duration::from_hours(24),
        }
    }
}

/// Returns the next step.
///
/// The leader must read the record before and after the other objects, and start again if it changed. Each write must
/// require the `resourceVersion` that was read. Only probes after the last change of the bundle and of the serving
/// certificate count.
#[must_use]
pub fn next(settings: &Settings, seen: &Observed) -> Step {
    let seen = &*seen.without_forged_epochs();
    let record = match &seen.record {
        Stored::Is(record) if !is_record_restored(record, seen) => record,
        _ => return recover(seen),
    };
    let plan = Plan { settings, seen, record };
    plan.repair().unwrap_or_else(|| plan.advance())
}

/// Whether an object was written for a later epoch than the record's. If so, the record was restored to an older
/// version, for example from a backup. The leader has checked that the record did not change while the objects were
/// read, so a newer record cannot explain the epoch.
fn is_record_restored(record: &Record, seen: &Observed) -> bool {
    newest_epoch(seen).is_some_and(|epoch| epoch > record.epoch)
}

fn newest_epoch(seen: &Observed) -> Option<u64> {
    let configuration = match &seen.configuration {
        Configuration::Absent | Configuration::WebhooksDisabled => None,
        Configuration::Empty { epoch } => Some(*epoch),
        Configuration::Present(bundle) => Some(bundle.epoch),
    };
    configuration.max(seen.serving.get().map(|serving| serving.epoch))
}

/// Maximum lead of an object's epoch over the record's epoch. A restored record is never this many writes behind, so a
/// higher epoch is forged. The limit also keeps forged epochs from exhausting the numbers.
const MAX_EPOCH_LEAD: u64 = 1 << 32;

impl Observed {
    /// Returns the highest epoch that the controller can have written, if an object has a higher one. Another client
    /// wrote that epoch into the annotation, so it is ignored. `None` if no epoch is forged.
    ///
    /// If an older version of the record was restored from a backup, the objects also have higher epochs than the
    /// record. Usually, CAs that this record does not require are then trusted, or sign certificates. If all objects
    /// match the record, the higher epoch is ignored, whether it is forged or not.
    #[must_use]
    pub fn forged(&self) -> Option<u64> {
        let newest = newest_epoch(self)?;
        let own = self.record.get().map(|record| record.epoch);
        let highest = own.unwrap_or_default();
        let is_forged = newest > highest.saturating_add(MAX_EPOCH_LEAD)
            || self.record.get().is_some_and(|record| newest > record.epoch && self.matches(record));
        // Without a record, any epoch up to the limit is accepted.
        is_forged.then_some(own.unwrap_or(MAX_EPOCH_LEAD))
    }

    /// Whether only CAs of this record are trusted and sign certificates. If so, the record can be used, and missing
    /// parts can be written.
    fn matches(&self, record: &Record) -> bool {
        let wanted: BTreeSet<_> = record.trusted().collect();
        let trusts = self
            .configuration
            .bundle()
            .is_none_or(|bundle| bundle.cas.is_subset(&wanted) && (!bundle.unknown || record.keeps_unknown()));
        let signer = |ca: Option<Ca>| ca.map(|ca| ca.generation);
        let signs = self.serving.get().and_then(|serving| serving.certificate).is_none_or(|certificate| {
            let is_late = record.phase == Phase::Switched && certificate.signer == signer(record.active);
            certificate.signer == signer(record.signer()) || is_late
        });
        trusts && signs
    }

    /// Returns the state with forged epochs set to 0, which is older than every epoch.
    #[must_use]
    pub fn without_forged_epochs(&self) -> Cow<'_, Self> {
        let Some(highest) = self.forged() else { return Cow::Borrowed(self) };
        let mut without_forged_epochs = self.clone();
        let epochs = [
            match &mut without_forged_epochs.configuration {
                Configuration::Absent | Configuration::WebhooksDisabled => None,
                Configuration::Empty { epoch } => Some(epoch),
                Configuration::Present(bundle) => Some(&mut bundle.epoch),
            },
            match &mut without_forged_epochs.serving {
                Stored::Is(serving) => Some(&mut serving.epoch),
                Stored::Missing | Stored::Corrupt => None,
            },
        ];
        for epoch in epochs.into_iter().flatten().filter(|epoch| **epoch > highest) {
            *epoch = 0;
        }
        Cow::Owned(without_forged_epochs)
    }
}

/// Returns the next step if there is no usable record. The CAs of the lost record can neither sign nor be recognized.
/// Their certificates are kept in the bundle, and a new CA is added.
fn recover(seen: &Observed) -> Step {
    if !seen.clock_agrees {
        return Step::Wait { blocked: Blocked::Clock, until: None };
    }
    let is_first = seen.configuration.bundle().is_none() && matches!(seen.record, Stored::Missing);
    Step::NewCa { generation: next_generation(seen), trigger: (!is_first).then_some(Trigger::Lost) }
}

/// Returns a number that no CA has had.
fn next_generation(seen: &Observed) -> Generation {
    Generation(seen.highest.map_or(1, |Generation(highest)| highest.saturating_add(1)))
}

impl Record {
    /// Builds the record to write with a CA that was created for [`Step::NewCa`].
    #[must_use]
    pub fn with(ca: Ca, trigger: Option<Trigger>, seen: &Observed) -> Self {
        let seen = &*seen.without_forged_epochs();
        let known = seen.record.get().filter(|record| !is_record_restored(record, seen));
        let epoch = known.map(|record| record.epoch).max(newest_epoch(seen)).map_or(1, |epoch| epoch + 1);
        let since = seen.now;
        match known {
            Some(record) => Self { phase: Phase::Staged, since, epoch, next: Some(ca), trigger, ..record.clone() },
            // No CA is trusted yet, so the new CA becomes active at once.
            None if seen.configuration.bundle().is_none() => Self {
                phase: Phase::Stable,
                since,
                epoch,
                bundle_epoch: epoch,
                certificate_epoch: epoch,
                active: Some(ca),
                next: None,
                trigger,
            },
            None => Self {
                phase: Phase::Staged,
                since,
                epoch,
                bundle_epoch: 0,
                certificate_epoch: 0,
                active: None,
                next: Some(ca),
                trigger,
            },
        }
    }
}

impl Configuration {
    /// Returns the bundle, if the configuration has entries.
    #[must_use]
    pub const fn bundle(&self) -> Option<&Bundle> {
        match self {
            Self::Present(bundle) => Some(bundle),
            Self::Absent | Self::WebhooksDisabled | Self::Empty { .. } => None,
        }
    }
}

struct Plan<'p> {
    settings: &'p Settings,
    seen: &'p Observed,
    record: &'p Record,
}

const fn wait(blocked: Blocked) -> Step {
    Step::Wait { blocked, until: None }
}

impl Plan<'_> {
    /// Returns the step that corrects a deviation from the phase, or that waits until this is possible. `None` if there
    /// is nothing to correct.
    fn repair(&self) -> Option<Step> {
        let (record, endpoints) = (self.record, &self.seen.endpoints);
        match &self.seen.configuration {
            Configuration::Absent => Some(Step::Claim { epoch: record.epoch }),
            Configuration::Empty { epoch } if *epoch < record.bundle_epoch => Some(Step::Claim { epoch: record.epoch }),
            // Every endpoint must serve a trusted certificate when the first call arrives.
            Configuration::Empty { .. } => Some(self.serving_certificate().unwrap_or_else(|| {
                let none = endpoints.answering == 0 || endpoints.is_other_ca_served;
                if none { wait(Blocked::NoEndpoint) } else { self.write_bundle(Repair::Create) }
            })),
            Configuration::WebhooksDisabled => {
                Some(self.serving_certificate().unwrap_or(wait(Blocked::WebhooksDisabled)))
            }
            Configuration::Present(bundle) if self.has_only_unknown(bundle) => Some(self.stage_active()),
            Configuration::Present(bundle) => self
                .bundle_deviation(bundle)
                .map(|repair| self.write_bundle(repair))
                .or_else(|| self.serving_certificate()),
        }
    }

    /// Whether unknown CAs are trusted and sign served certificates, while the active CA is not trusted. That happens
    /// if the record was lost while an outdated leader filled the configuration.
    fn has_only_unknown(&self, bundle: &Bundle) -> bool {
        let serve = self.seen.endpoints.untrusted
            || self
                .seen
                .serving
                .get()
                .and_then(|serving| serving.certificate)
                .is_some_and(|certificate| certificate.signer.is_none());
        let active = self.record.active.filter(|_| self.record.phase == Phase::Stable);
        bundle.unknown && serve && active.is_some_and(|active| !bundle.cas.contains(&active.generation))
    }

    /// Returns the step that makes the active CA the next one, and so keeps the unknown CAs trusted.
    fn stage_active(&self) -> Step {
        let record = self.record.clone();
        let (active, next) = (None, record.active);
        let (phase, since, epoch, trigger) = (Phase::Staged, self.seen.now, record.epoch + 1, Some(Trigger::Lost));
        Step::Advance(Record { phase, since, epoch, bundle_epoch: 0, certificate_epoch: 0, active, next, trigger })
    }

    /// Returns why the bundle must be written; `None` if it is correct.
    fn bundle_deviation(&self, bundle: &Bundle) -> Option<Repair> {
        let wanted: BTreeSet<_> = self.record.trusted().collect();
        let keeps_unknown = self.record.keeps_unknown();
        if wanted.is_empty() {
            // The record requires no CA in the bundle yet. Until the next CA is added, the bundle keeps its unknown
            // certificates.
            None
        } else if !bundle.cas.is_superset(&wanted) || !bundle.uniform {
            let expected = bundle.epoch < self.record.bundle_epoch;
            Some(if expected { Repair::Rotation } else { Repair::Damaged })
        } else if bundle.unknown && !keeps_unknown {
            Some(if bundle.epoch < self.record.bundle_epoch { Repair::Rotation } else { Repair::Foreign })
        } else if bundle.cas != wanted || bundle.epoch < self.record.bundle_epoch {
            Some(Repair::Rotation)
        } else {
            None
        }
    }

    fn write_bundle(&self, repair: Repair) -> Step {
        Step::WriteBundle {
            cas: self.record.trusted().collect(),
            keep_unknown: self.record.keeps_unknown(),
            epoch: self.record.epoch,
            repair,
        }
    }

    /// If the serving certificate is not the required one or must be renewed, returns the step that replaces it, or a
    /// step that waits while the clock is wrong. Otherwise, returns `None`. Also returns `None` if no CA may sign, or
    /// if the clock is right and the CA has no key.
    fn serving_certificate(&self) -> Option<Step> {
        let Some(signer) = self.record.signer() else {
            // The signing CA is lost and the next one is not trusted yet, so the replicas keep their certificate.
            return None;
        };
        let is_of_signer = |serving: &&Serving| {
            serving.epoch >= self.record.certificate_epoch
                && serving.certificate.is_some_and(|certificate| certificate.signer == Some(signer.generation))
        };
        let is_due = |serving: &Serving| {
            serving
                .certificate
                .is_some_and(|certificate| self.seen.clock_agrees && self.seen.now >= certificate.renew_at)
                && signer.has_key
        };
        match self.seen.serving.get().filter(is_of_signer) {
            Some(serving) if !is_due(serving) => None,
            // With a wrong clock, the new certificate would have a wrong validity.
            _ if !self.seen.clock_agrees => Some(wait(Blocked::Clock)),
            // `advance` handles the missing key.
            _ if !signer.has_key => None,
            _ => Some(Step::WriteServingCertificate { signer: signer.generation, epoch: self.record.epoch }),
        }
    }

    /// Returns the step to the next phase, or the reason to wait if the phase does not end yet. The caller must have
    /// checked that there is nothing to correct.
    fn advance(&self) -> Step {
        let (record, endpoints) = (self.record, &self.seen.endpoints);
        match record.phase {
            Phase::Stable => self.begin(),
            _ if self.next_lacks_signer() => self.replace_next(),
            Phase::Staged => self.enter_phase(Phase::Expanded),
            Phase::Expanded if self.is_propagated() => self.enter_phase(Phase::Switched),
            Phase::Switched => self.enter_phase(Phase::Verified),
            Phase::Verified if endpoints.rounds < self.settings.rounds => wait(Blocked::Endpoints),
            Phase::Verified if self.is_compromised() => self.enter_phase(Phase::Contracted),
            // The soaking time is measured by the leader's clock.
            Phase::Verified if !self.seen.clock_agrees => wait(Blocked::Clock),
            Phase::Verified => self.enter_phase(Phase::Soaking),
            // An endpoint serves the old certificate again: for example, a replica that was disconnected.
            Phase::Soaking | Phase::Contracted if endpoints.is_other_ca_served => self.enter_phase(Phase::Verified),
            Phase::Soaking => self.soak(),
            Phase::Contracted if self.is_propagated() => self.enter_phase(Phase::Stable),
            Phase::Contracted if self.is_rejected() => self.enter_phase(Phase::Verified),
            Phase::Expanded | Phase::Contracted => self.wait_for_propagation(),
        }
    }

    fn begin(&self) -> Step {
        let Some(active) = self.record.active else {
            return Step::NewCa { generation: next_generation(self.seen), trigger: Some(Trigger::Lost) };
        };
        let due = after(active.created, self.settings.rotate_after);
        let trigger = match self.seen.requested {
            Some(requested) => requested,
            None if !active.has_key => Trigger::Lost,
            None if self.seen.clock_agrees && self.seen.now >= due => Trigger::Age,
            None if !self.seen.clock_agrees => return wait(Blocked::Clock),
            None => {
                let renewal = self
                    .seen
                    .serving
                    .get()
                    .and_then(|serving| serving.certificate)
                    .map(|certificate| certificate.renew_at);
                let until = renewal.map_or(due, |renewal| renewal.min(due));
                return Step::Wait { blocked: Blocked::Idle, until: Some(until) };
            }
        };
        if !self.seen.clock_agrees {
            return wait(Blocked::Clock);
        }
        Step::NewCa { generation: next_generation(self.seen), trigger: Some(trigger) }
    }

    /// Whether the next CA cannot sign, and no usable certificate of it exists.
    fn next_lacks_signer(&self) -> bool {
        let certificate =
            self.seen.serving.get().and_then(|serving| serving.certificate).and_then(|certificate| certificate.signer);
        let next = self.record.next.filter(|next| !next.has_key);
        next.is_some_and(|next| !self.record.has_switched() || certificate != Some(next.generation))
    }

    /// Returns the step that replaces a next CA that cannot sign. If replicas may already serve certificates of this
    /// CA, the CA is not replaced. An administrator must then delete the record, so that both CAs remain trusted while
    /// a third one is added.
    fn replace_next(&self) -> Step {
        let active = self.record.active.map(|active| active.generation);
        let serving = self.seen.serving.get();
        let is_old = serving.is_some_and(|serving| {
            serving.epoch < self.record.certificate_epoch
                && serving.certificate.is_some_and(|certificate| certificate.signer == active)
        });
        if !self.seen.clock_agrees {
            wait(Blocked::Clock)
        } else if self.record.phase < Phase::Switched || (self.record.phase == Phase::Switched && is_old) {
            Step::NewCa { generation: next_generation(self.seen), trigger: Some(Trigger::Lost) }
        } else {
            wait(Blocked::Unable)
        }
    }

    /// Whether an administrator reported that the old CA's key is compromised, either as the trigger of this rotation
    /// or later.
    fn is_compromised(&self) -> bool {
        [self.record.trigger, self.seen.requested].contains(&Some(Trigger::Compromised))
    }

    fn soak(&self) -> Step {
        let until = after(self.record.since, self.settings.overlap);
        if self.is_compromised() && self.seen.endpoints.rounds > 0 {
            self.enter_phase(Phase::Contracted)
        } else if !self.seen.clock_agrees {
            wait(Blocked::Clock)
        } else if self.seen.now < until {
            Step::Wait { blocked: Blocked::Soaking, until: Some(until) }
        } else if self.seen.endpoints.rounds == 0 {
            wait(Blocked::Endpoints)
        } else {
            self.enter_phase(Phase::Contracted)
        }
    }

    /// Whether every API server is known to have the bundle, or none is known to lack it and the timeout has passed.
    fn is_propagated(&self) -> bool {
        let Propagation { proven, behind, silent } = self.seen.propagation;
        behind == 0 && ((silent == 0 && proven > 0) || self.is_timeout_over())
    }

    /// Whether an API server still does not trust the newest CA after the timeout.
    fn is_rejected(&self) -> bool {
        self.seen.propagation.behind > 0 && self.is_timeout_over()
    }

    fn is_timeout_over(&self) -> bool {
        self.deadline().is_some_and(|deadline| self.seen.clock_agrees && self.seen.now >= deadline)
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.seen.configuration.bundle().map(|bundle| after(bundle.written, self.settings.propagation_timeout))
    }

    fn wait_for_propagation(&self) -> Step {
        let until = self.deadline().filter(|deadline| self.seen.now < *deadline);
        Step::Wait { blocked: Blocked::Propagation, until }
    }

    /// Returns the step to another phase.
    fn enter_phase(&self, phase: Phase) -> Step {
        let record = self.record.clone();
        let epoch = record.epoch + 1;
        let changes_bundle = matches!(phase, Phase::Expanded | Phase::Contracted)
            || (record.phase == Phase::Contracted && phase == Phase::Verified);
        let (active, next) = match phase {
            Phase::Stable => (record.next, None),
            // The old CA's key is no longer needed, and a deleted key cannot be stolen.
            Phase::Soaking | Phase::Contracted => {
                (record.active.map(|active| Ca { has_key: false, ..active }), record.next)
            }
            _ => (record.active, record.next),
        };
        Step::Advance(Record {
            phase,
            since: self.seen.now,
            epoch,
            bundle_epoch: if changes_bundle { epoch } else { record.bundle_epoch },
            certificate_epoch: if phase == Phase::Switched { epoch } else { record.certificate_epoch },
            active,
            next,
            trigger: record.trigger,
        })
    }
}

/// Adds the duration. Returns the latest possible time on overflow.
fn after(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Tests rare cases: lost or compromised keys, and forged records and epochs. `rotation_model` tests the ordinary
/// cases.
#[cfg(test)]
mod tests {
    use super::super::{ProbeSummary, ServingCertificate};
    use super::*;

    const EPOCH: u64 = 7;

    fn ca(number: u32) -> Ca {
        let (created, not_after) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        Ca { generation: Generation(number), created, not_after, has_key: true }
    }

    /// Returns the observed state in phase `Soaking`, with nothing to correct.
    fn soaking(requested: Option<Trigger>) -> Observed {
        let (now, signer) = (Timestamp::UNIX_EPOCH, Some(Generation(2)));
        let cas = [Generation(1), Generation(2)].into();
        let record = Record {
            phase: Phase::Soaking,
            since: now,
            epoch: EPOCH,
            bundle_epoch: EPOCH,
            certificate_epoch: EPOCH,
            active: Some(Ca { has_key: false, ..ca(1) }),
            next: Some(ca(2)),
            trigger: Some(Trigger::Age),
        };
        Observed {
            now,
            clock_agrees: true,
            record: Stored::Is(record),
            serving: Stored::Is(Serving {
                certificate: Some(ServingCertificate { signer, renew_at: Timestamp::MAX }),
                epoch: EPOCH,
            }),
            configuration: Configuration::Present(Bundle {
                cas,
                uniform: true,
                unknown: false,
                epoch: EPOCH,
                written: now,
            }),
            endpoints: ProbeSummary {
                answering: 3,
                rounds: 3,
                is_other_ca_served: false,
                untrusted: false,
                unreachable: 0,
            },
            propagation: Propagation { proven: 0, behind: 0, silent: 0 },
            requested,
            highest: Some(Generation(2)),
        }
    }

    fn phase(step: &Step) -> Option<Phase> {
        if let Step::Advance(record) = step { Some(record.phase) } else { None }
    }

    #[test]
    fn compromised_key_skips_soaking() {
        let settings = Settings::default();
        assert_eq!(phase(&next(&settings, &soaking(None))), None);
        assert_eq!(phase(&next(&settings, &soaking(Some(Trigger::Requested)))), None);
        let compromised = soaking(Some(Trigger::Compromised));
        assert_eq!(phase(&next(&settings, &compromised)), Some(Phase::Contracted));
        let endpoints = ProbeSummary { rounds: 0, unreachable: 1, ..compromised.endpoints };
        let unprobed = Observed { endpoints, ..compromised };
        assert_eq!(
            phase(&next(&settings, &unprobed)),
            None,
            "the probes must first find the new certificate on every endpoint"
        );
    }

    #[test]
    fn ca_that_cannot_sign_is_replaced() {
        let mut seen = soaking(None);
        let active = Some(Ca { has_key: false, ..ca(2) });
        if let Stored::Is(record) = &mut seen.record {
            *record = Record { phase: Phase::Stable, active, next: None, ..record.clone() };
        }
        if let Configuration::Present(bundle) = &mut seen.configuration {
            bundle.cas = [Generation(2)].into();
        }
        // The serving certificate must be replaced, and the CA cannot sign.
        seen.serving = Stored::Is(Serving { certificate: None, epoch: EPOCH });
        let expected = Step::NewCa { generation: Generation(3), trigger: Some(Trigger::Lost) };
        assert_eq!(next(&Settings::default(), &seen), expected);
    }

    /// Returns the observed state with a record in this phase, with nothing to correct.
    fn observed_in_phase(phase: Phase) -> Observed {
        let mut seen = soaking(None);
        let next = (phase != Phase::Stable).then(|| ca(2));
        let record = Record { phase, active: Some(ca(1)), next, ..seen.record.get().unwrap().clone() };
        let trusted = record.trusted().collect();
        let signer = record.signer().map(|signer| signer.generation);
        seen.serving = Stored::Is(Serving {
            certificate: Some(ServingCertificate { signer, renew_at: Timestamp::MAX }),
            epoch: EPOCH,
        });
        if let Configuration::Present(bundle) = &mut seen.configuration {
            bundle.cas = trusted;
        }
        seen.record = Stored::Is(record);
        seen
    }

    fn raise_epochs(seen: &mut Observed, bundle_to: u64, certificate_to: u64) {
        if let (Configuration::Present(bundle), Stored::Is(serving)) = (&mut seen.configuration, &mut seen.serving) {
            (bundle.epoch, serving.epoch) = (bundle_to, certificate_to);
        }
    }

    #[test]
    fn forged_epochs_are_overwritten() {
        for phase in Phase::ALL {
            for epoch in [EPOCH + 1, EPOCH + 1000, u64::MAX / 2, u64::MAX] {
                let mut seen = observed_in_phase(phase);
                assert_eq!(seen.forged(), None, "{phase}");
                raise_epochs(&mut seen, epoch, EPOCH);
                assert_eq!(seen.forged(), Some(EPOCH), "{phase} {epoch}");
                let step = next(&Settings::default(), &seen);
                assert!(matches!(step, Step::WriteBundle { epoch: EPOCH, .. }), "{phase} {epoch}: {step:?}");
                raise_epochs(&mut seen, EPOCH, epoch);
                let step = next(&Settings::default(), &seen);
                assert!(
                    matches!(step, Step::WriteServingCertificate { epoch: EPOCH, .. }),
                    "{phase} {epoch}: {step:?}"
                );
            }
        }
    }

    #[test]
    fn restored_record_is_recovered() {
        let is_recovered =
            |seen: &Observed| seen.forged().is_none() && matches!(next(&Settings::default(), seen), Step::NewCa { .. });
        // The restored record lacks the next CA, although that CA is already trusted or already signs.
        let mut seen = observed_in_phase(Phase::Stable);
        raise_epochs(&mut seen, EPOCH + 3, EPOCH);
        let of = |seen: &Observed, change: fn(&mut Bundle, &mut ServingCertificate)| {
            let mut seen = seen.clone();
            if let (Configuration::Present(bundle), Stored::Is(Serving { certificate: Some(certificate), .. })) =
                (&mut seen.configuration, &mut seen.serving)
            {
                change(bundle, certificate);
            }
            seen
        };
        assert!(is_recovered(&of(&seen, |bundle, _| bundle.unknown = true)));
        assert!(is_recovered(&of(&seen, |_, certificate| certificate.signer = None)));
        let mut seen = observed_in_phase(Phase::Staged);
        raise_epochs(&mut seen, EPOCH + 3, EPOCH);
        assert!(is_recovered(&of(&seen, |bundle, _| bundle.cas = [Generation(2)].into())));
        assert!(is_recovered(&of(&seen, |_, certificate| certificate.signer = Some(Generation(2)))));
    }

    #[test]
    fn forged_epochs_do_not_exhaust_numbers() {
        let mut seen = observed_in_phase(Phase::Stable);
        raise_epochs(&mut seen, u64::MAX, u64::MAX);
        seen.record = Stored::Missing;
        assert_eq!(Record::with(ca(3), Some(Trigger::Lost), &seen).epoch, 1);
        raise_epochs(&mut seen, MAX_EPOCH_LEAD, EPOCH);
        assert_eq!(Record::with(ca(3), Some(Trigger::Lost), &seen).epoch, MAX_EPOCH_LEAD + 1);
    }

    #[test]
    fn next_ca_is_replaceable_until_served() {
        let settings = Settings { overlap: Duration::from_hours(24), ..Settings::default() };
        for phase in [Phase::Staged, Phase::Expanded, Phase::Switched, Phase::Verified, Phase::Soaking] {
            let mut seen = observed_in_phase(phase);
            let Stored::Is(record) = &mut seen.record else { unreachable!() };
            record.next = Some(Ca { has_key: false, ..ca(2) });
            let step = next(&settings, &seen);
            let replaced = Step::NewCa { generation: Generation(3), trigger: Some(Trigger::Lost) };
            if phase < Phase::Switched {
                assert_eq!(step, replaced, "{phase}");
                continue;
            }
            // A serving certificate of the next CA already exists, so the rotation continues.
            assert!(!matches!(step, Step::NewCa { .. } | Step::Wait { blocked: Blocked::Unable, .. }), "{phase}");
            seen.serving = Stored::Missing;
            assert_eq!(next(&settings, &seen), wait(Blocked::Unable), "{phase}");
            let certificate = Some(ServingCertificate { signer: Some(Generation(1)), renew_at: Timestamp::MAX });
            seen.serving = Stored::Is(Serving { certificate, epoch: EPOCH - 1 });
            let expected = if phase == Phase::Switched { replaced } else { wait(Blocked::Unable) };
            assert_eq!(next(&settings, &seen), expected, "{phase}");
        }
    }
}
