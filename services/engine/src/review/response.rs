//! Writes the response to a review. It does not use serde, because the response has only seven fields, and most of its
//! bytes are the patch.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::Simd;
use base64::engine::general_purpose::PAD;

use super::Decided;
use super::envelope::Envelope;
use crate::decision::{Decision, Notice, Outcome, ProfileOutcome, ValidationDecision, ValidationOutcome};
use crate::json::write_string;

/// The maximum number of warnings if no validation failed. If warnings are too long in total, the API server truncates
/// all of them.
const MAX_WARNINGS: usize = 2;

/// The maximum length of a warning, in characters.
const MAX_WARNING: usize = 200;

/// The maximum number of warnings if a validation failed.
const MAX_VALIDATION_WARNINGS: usize = 8;

/// The maximum length of the message for validations that deny the object, in characters.
const MAX_REFUSAL: usize = 2048;

/// The maximum number of failed validations that are listed as causes of a denial.
const MAX_CAUSES: usize = 16;

/// The maximum length of the audit annotation, in bytes.
const MAX_AUDIT: usize = 8 * 1024;

/// The key of the audit annotation.
const AUDIT_KEY: &str = "validations";

/// The status code of denials that no validation caused.
const DENIED: u16 = 403;

/// The base64 encoder. It detects the SIMD instructions of the CPU once.
static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::standard(PAD));

/// Writes the response to a review.
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
        write_status(&mut out, &decided.decision);
    } else if !patch.is_empty() {
        out.extend_from_slice(b",\"patchType\":\"JSONPatch\",\"patch\":\"");
        write_base64(&mut out, patch);
        out.push(b'"');
    }
    write_warnings(&mut out, decided);
    write_audit(&mut out, &decided.decision);
    out.extend_from_slice(b"}}");
    out
}

/// Writes the status of a denial. The code and the reason are those of the first validation that denies the object.
/// Without such a validation, the code is [`DENIED`]. The causes are all such validations, up to [`MAX_CAUSES`].
fn write_status(out: &mut Vec<u8>, decision: &Decision) {
    let first = decision.refusals().next();
    out.extend_from_slice(b",\"status\":{\"code\":");
    out.extend_from_slice(first.map_or(DENIED, ValidationDecision::code).to_string().as_bytes());
    if let Some(reason) = first.and_then(ValidationDecision::status_reason) {
        out.extend_from_slice(b",\"reason\":");
        write_string(out, reason);
    }
    out.extend_from_slice(b",\"message\":");
    let longest = if first.is_some() { MAX_REFUSAL } else { MAX_WARNING };
    write_string(out, &one_line(&decision.denial_message(), longest));
    for (index, refusal) in decision.refusals().take(MAX_CAUSES).enumerate() {
        out.extend_from_slice(if index == 0 { b",\"details\":{\"causes\":[" } else { b"," });
        out.extend_from_slice(b"{\"reason\":\"FieldValueInvalid\",\"message\":");
        write_string(out, &refusal.message);
        if let Some(field) = refusal.field_path() {
            out.extend_from_slice(b",\"field\":");
            write_string(out, field);
        }
        out.push(b'}');
    }
    out.extend_from_slice(if first.is_some() { b"]}}" } else { b"}" });
}

/// Writes the audit annotation: a JSON list of the failed validations with the action `Audit`. The API server adds the
/// name of the webhook as a prefix to the key.
fn write_audit(out: &mut Vec<u8>, decision: &Decision) {
    let mut list = String::new();
    for audited in decision.validations.iter().filter(|failed| failed.outcome == ValidationOutcome::Audited) {
        let before = list.len();
        list.push_str(if list.is_empty() { "[" } else { "," });
        list.push_str("{\"profile\":");
        write_string(&mut list, audited.profile.display_name());
        // Writing to a string cannot fail.
        let _ = write!(list, ",\"validation\":{},\"reason\":\"{}\"", audited.index, audited.reason);
        if let Some(field) = audited.field_path() {
            list.push_str(",\"field\":");
            write_string(&mut list, field);
        }
        list.push_str(",\"message\":");
        write_string(&mut list, &audited.message);
        list.push('}');
        if list.len() > MAX_AUDIT {
            list.truncate(before);
            break;
        }
    }
    if list.is_empty() {
        return;
    }
    list.push(']');
    out.extend_from_slice(b",\"auditAnnotations\":{\"");
    out.extend_from_slice(AUDIT_KEY.as_bytes());
    out.extend_from_slice(b"\":");
    write_string(out, &list);
    out.push(b'}');
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    /// A multiple of three, so that only the last piece has padding.
    const PIECE: usize = 1536;
    let mut encoded = [0; PIECE / 3 * 4];
    for piece in bytes.chunks(PIECE) {
        // The buffer is large enough for one piece, so encoding cannot fail.
        let written = BASE64.encode_slice(piece, &mut encoded);
        debug_assert!(written.is_ok());
        out.extend_from_slice(encoded.get(..written.unwrap_or(0)).unwrap_or_default());
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

/// Returns the warnings for the author of the object.
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
    let failed = decided.decision.validations.iter().filter(|failed| failed.outcome == ValidationOutcome::Warned);
    let failed = failed.map(|failed| format!("profile {}: {}", failed.profile.display_name(), failed.message));
    let most = if decided.decision.validations.is_empty() { MAX_WARNINGS } else { MAX_VALIDATION_WARNINGS };
    let all = failed.chain(skipped).chain(whole).chain(notices).take(most);
    all.map(|warning| one_line(&format!("pillion: {warning}"), MAX_WARNING))
}

/// Replaces control characters with spaces. Shortens a message that is too long, preferably between two words.
fn one_line(message: &str, longest: usize) -> String {
    let clean = |character: char| if character.is_control() { ' ' } else { character };
    let mut line: String = message.chars().map(clean).take(longest).collect();
    if message.chars().nth(longest).is_none() {
        return line;
    }
    // The ellipsis needs one character. A word that fills half of the line is split.
    line.pop();
    let end = line.rfind(' ').filter(|end| *end > line.len() / 2).unwrap_or(line.len());
    line.truncate(end);
    line.push('…');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_cut_between_words() {
        assert_eq!(one_line("one\ntwo", 7), "one two");
        assert_eq!(one_line("violates PodSecurity restricted", 24), "violates PodSecurity…");
        assert_eq!(one_line("violates PodSecurity restricted", 30), "violates PodSecurity…");
        // Without a space in the second half, the word is split.
        assert_eq!(one_line("ééééééé", 4), "ééé…");
        let long = one_line(&"word ".repeat(100), MAX_WARNING);
        assert!(long.chars().count() <= MAX_WARNING && long.ends_with("word…"), "{long}");
    }
}
