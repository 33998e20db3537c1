//! The answer to a review, written by hand: it has seven fields, of which one is most of the bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Decided;
use super::envelope::Envelope;
use crate::json::write_string;
use crate::report::{Notice, Outcome, ProfileOutcome};

/// How many warnings an answer has at most. The API server cuts all of them if they are too long together.
const MAX_WARNINGS: usize = 2;

/// How long a warning is at most, in characters.
const MAX_WARNING: usize = 200;

/// Writes it.
pub(super) fn write(envelope: &Envelope<'_>, decided: &Decided) -> Vec<u8> {
    let patch = decided.patch.as_deref().unwrap_or_default();
    let mut out = Vec::with_capacity(320 + patch.len() / 3 * 4);
    out.extend_from_slice(b"{\"apiVersion\":\"");
    out.extend_from_slice(envelope.api_version.as_bytes());
    out.extend_from_slice(b"\",\"kind\":\"AdmissionReview\",\"response\":{\"uid\":");
    write_string(&mut out, &envelope.uid);
    let denied = decided.decision.outcome == Outcome::Denied;
    out.extend_from_slice(if denied { b",\"allowed\":false" } else { b",\"allowed\":true" });
    if denied {
        out.extend_from_slice(b",\"status\":{\"code\":403,\"message\":");
        write_string(&mut out, &one_line(&decided.decision.denial_message()));
        out.push(b'}');
    } else if !patch.is_empty() {
        out.extend_from_slice(b",\"patchType\":\"JSONPatch\",\"patch\":\"");
        write_base64(&mut out, patch);
        out.push(b'"');
    }
    write_warnings(&mut out, decided);
    out.extend_from_slice(b"}}");
    out
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, b'=');
    if let Some(room) = out.get_mut(start..) {
        // The room is the length of the result, so writing it cannot fail.
        let written = STANDARD.encode_slice(bytes, room);
        debug_assert!(written.is_ok());
    }
}

fn write_warnings(out: &mut Vec<u8>, decided: &Decided) {
    let mut warnings = warnings(decided);
    let Some(first) = warnings.next() else { return };
    out.extend_from_slice(b",\"warnings\":[");
    write_string(out, &first);
    for warning in warnings {
        out.push(b',');
        write_string(out, &warning);
    }
    out.push(b']');
}

/// What the author of the object is told: profiles that were left out, and what was found on the way.
fn warnings(decided: &Decided) -> impl Iterator<Item = String> {
    let skipped = decided.decision.profiles.iter().filter(|decision| decision.outcome == ProfileOutcome::Skipped);
    let skipped = skipped.map(|decision| {
        let place = decision.detail.as_deref().map(|place| format!(": {place}")).unwrap_or_default();
        format!("profile {} was not applied: {}{place}", decision.profile.display_name(), decision.reason.sentence())
    });
    let whole = (decided.decision.outcome == Outcome::Skipped).then_some(&decided.decision).and_then(|decision| {
        let detail = decision.detail.as_deref()?;
        Some(format!("nothing was injected: {}: {detail}", decision.reason.sentence()))
    });
    let notices = decided.decision.notices.iter().map(Notice::to_string);
    skipped.chain(whole).chain(notices).take(MAX_WARNINGS).map(|warning| one_line(&format!("pillion: {warning}")))
}

/// Cuts a message to a length that a warning may have, and its control characters to spaces.
fn one_line(message: &str) -> String {
    let cut = message.chars().map(|character| if character.is_control() { ' ' } else { character });
    cut.take(MAX_WARNING).collect()
}
