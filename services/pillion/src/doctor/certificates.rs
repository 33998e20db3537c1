//! Finds mistakes in the served certificate, and in the bundles by which API servers trust it.

use std::time::Duration;

use jiff::Timestamp;
use pillion_control::certificates::authority::certificates;
use pillion_control::certificates::authority::judge::{Expected, judge as judge_leaf};
use pillion_control::probe::{Defect, Probed, Verdict};
use rustls_pki_types::CertificateDer;

use super::facts::{Canary, Facts, NotRead, is_ours, service};
use crate::finding::{Code, Finding, ObjectRef};

/// A serving certificate that expires within this time was not renewed in time.
const RENEWED_BEFORE: Duration = Duration::from_hours(24);

/// A certificate with its key, as in the serving Secret.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns all findings about certificates.
pub(super) fn leaves(facts: &Facts) -> Vec<Finding> {
    let (leaf, mut found) = served(facts);
    if let Some(leaf) = &leaf {
        found.extend(bundles(facts, leaf));
    }
    found.extend(facts.probed.iter().filter_map(|one| shown(facts, one)));
    if let Canary::Tried { refused, .. } = &facts.canary
        && found.iter().all(|finding| finding.code != Code::CaBundleMismatch)
        && let Some(said) = refused.iter().find(|said| said.contains("x509"))
    {
        found.push(Finding::new(Code::CaBundleMismatch, service(facts), format!("the API server says: {said}")));
    }
    found
}

/// Returns the certificate to serve, and the findings about it alone.
fn served(facts: &Facts) -> (Option<Pair>, Vec<Finding>) {
    let release = &facts.release;
    let object = ObjectRef::new("Secret", Some(release.namespace()), &release.serving_secret());
    let find = |code, message: String| vec![Finding::new(code, object, message)];
    let secret = match &facts.serving {
        Ok(Some(secret)) => secret,
        Ok(None) => return (None, find(Code::CertificateUnfit, "there is no such Secret".to_owned())),
        Err(NotRead) => return (None, Vec::new()),
    };
    let part = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
    let pair = (part("tls.crt").unwrap_or_default(), part("tls.key").unwrap_or_default());
    let found = match judge_leaf(&pair.0, &pair.1, expected(facts, &release.server_names(), None)) {
        Err(unfit) => find(Code::CertificateUnfit, format!("it cannot be served: {unfit}")),
        Ok(fit) => soon(fit.not_after, facts.now).map(|left| find(Code::CertificateExpiring, left)).unwrap_or_default(),
    };
    (Some(pair), found)
}

fn expected<'e>(facts: &Facts, names: &'e [String], trusted: Option<&'e [CertificateDer<'static>]>) -> Expected<'e> {
    Expected { names: names.get(..1).unwrap_or_default(), now: facts.now, trusted }
}

/// Returns findings for webhook entries that do not trust the certificate to serve, if that is valid in itself.
fn bundles(facts: &Facts, (certificate, key): &Pair) -> Vec<Finding> {
    let release = &facts.release;
    let names = release.server_names();
    let mut found = Vec::new();
    if judge_leaf(certificate, key, expected(facts, &names, None)).is_err() {
        return found;
    }
    for configuration in facts.configurations.iter().flatten() {
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        for entry in configuration.webhooks.iter().flatten().filter(|entry| is_ours(entry, release)) {
            let trusted = certificates(entry.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0));
            if let Err(unfit) = judge_leaf(certificate, key, expected(facts, &names, Some(&trusted))) {
                let object = ObjectRef::new("MutatingWebhookConfiguration", None, name);
                let message =
                    format!("the caBundle of entry {} does not verify the serving certificate: {unfit}", entry.name);
                found.push(Finding::new(Code::CaBundleMismatch, object, message));
            }
        }
    }
    found
}

/// Returns a finding if a replica serves an invalid certificate.
fn shown(facts: &Facts, one: &Probed) -> Option<Finding> {
    let (code, what) = match one.verdict {
        Verdict::Untrusted => {
            (Code::CaBundleMismatch, "serves a certificate that the caBundle does not verify".to_owned())
        }
        Verdict::Invalid(Defect::Expiring) => {
            (Code::CertificateExpiring, "serves a certificate that ends soon".to_owned())
        }
        Verdict::Invalid(why) => (Code::CertificateUnfit, format!("serves a certificate that will not do: {why:?}")),
        Verdict::Newest | Verdict::Older(_) | Verdict::Trusted | Verdict::Unreachable(_) => return None,
    };
    Some(Finding::new(code, service(facts), format!("the replica at {} {what}", one.endpoint)))
}

fn soon(not_after: Timestamp, now: Timestamp) -> Option<String> {
    let left = not_after.duration_since(now);
    let limit = jiff::SignedDuration::try_from(RENEWED_BEFORE).ok()?;
    (left < limit).then(|| format!("it ends at {not_after}, in {} minutes", left.as_mins()))
}
