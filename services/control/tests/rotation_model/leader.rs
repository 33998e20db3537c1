//! A leader of the model. It reads the objects and then the record, decides, and writes. Between any two of these
//! steps, it may be paused for any time, or end. Two leaders may act at the same time, since a paused leader cannot
//! detect that its term has ended.

use jiff::Timestamp;
use pillion_control::certificates::rotation::{Generation, Observed, Record, Settings, Step, Stored};

use crate::rotation_model::world::{
    BundleVersion, CertificateVersion, GENERATIONS, ModelState, Reading, Rules, bit, ca,
};

pub(crate) type Planner = fn(&Settings, &Observed) -> Step;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Leader {
    Idle,
    /// The leader has read the objects.
    Read(Reading),
    /// The leader has read the record too, and will write next.
    Writing(Write),
}

/// A write, with the version that the object had when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Record { record: Box<Record>, version: u32, highest: u32 },
    Bundle { bundle: BundleVersion, version: u32 },
    ServingCertificate { certificate: CertificateVersion, version: u32 },
}

/// Reads the record and decides. `late` says whether all deadlines have passed, and `asked` whether a rotation is
/// requested. Returns `None` if the record has changed since `reading`, if there is nothing to write, or if the model
/// has no more CA numbers.
pub(crate) fn decide(
    world: &ModelState,
    reading: &Reading,
    rules: Rules,
    settings: &Settings,
    (late, asked): (bool, bool),
) -> Option<Write> {
    // The record is read before and after the objects. If it has changed, the objects may be inconsistent.
    if reading.record_version != world.record_version {
        return None;
    }
    let seen = reading.with_record(world, (rules, settings), late, asked);
    // The model decides whether deadlines have passed. Different times would only multiply the states.
    let timeless = |record: Record| Box::new(Record { since: Timestamp::UNIX_EPOCH, ..record });
    match (rules.planner)(settings, &seen) {
        Step::Wait { .. } => None,
        Step::NewCa { generation, trigger } => {
            let record = Record::with(ca(generation), trigger, &seen);
            (generation.0 <= GENERATIONS + u32::from(world.disturbances_left == 0)).then(|| Write::Record {
                record: timeless(record),
                version: world.record_version,
                highest: generation.0,
            })
        }
        Step::Advance(record) => {
            Some(Write::Record { record: timeless(record), version: world.record_version, highest: world.highest })
        }
        Step::Claim { epoch } => Some(Write::Bundle {
            bundle: BundleVersion { entries: false, trusted: 0, epoch, is_external: false, raised: false },
            version: reading.bundle_version,
        }),
        Step::WriteServingCertificate { signer: Generation(signer), epoch } => Some(Write::ServingCertificate {
            certificate: CertificateVersion { signer: Some(Generation(signer)), epoch, restored: false },
            version: reading.certificate_version,
        }),
        Step::WriteBundle { cas, keep_unknown, epoch, .. } => {
            let known = seen.record.get().into_iter().flat_map(|record| [record.active, record.next]).flatten();
            let known = known.fold(0, |mask, ca| mask | bit(ca.generation));
            let unknown = reading.bundle.map_or(0, |bundle| bundle.trusted & !known);
            let kept = if keep_unknown { unknown } else { 0 };
            let trusted = cas.iter().fold(kept, |mask, generation| mask | bit(*generation));
            Some(Write::Bundle {
                bundle: BundleVersion { entries: true, trusted, epoch, is_external: false, raised: false },
                version: reading.bundle_version,
            })
        }
    }
}

/// Writes if the object is unchanged.
pub(crate) fn write(world: &mut ModelState, write: Write) {
    match write {
        Write::Record { record, version, highest } if version == world.record_version => {
            if record.epoch == 2 {
                world.backup = Some((*record).clone());
            }
            world.record = Stored::Is(*record);
            world.record_version += 1;
            world.highest = world.highest.max(highest);
        }
        Write::Bundle { bundle, version } if version == world.bundle.version() => world.bundle.push(bundle),
        Write::ServingCertificate { certificate, version } if version == world.certificate.version() => {
            world.certificate_backup.get_or_insert(certificate);
            world.certificate.push(certificate);
        }
        // The object has changed since it was read, so the API server responds with a conflict.
        _ => {}
    }
}
