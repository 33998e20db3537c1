//! The difference between observed and desired state as data: for logs and metrics, and to decide whether to write.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::bundle::Bundle;
use super::desired::Desired;
use super::live::{ConfigurationKind, Live, View, annotation, epoch, written};
use super::{RELEASE_ANNOTATION, managers};

/// How far ahead of the clock the time of the last write may be.
const AHEAD: Duration = Duration::from_mins(1);

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal;)+) => {
        /// A kind of difference.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DriftKind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DriftKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The kind in metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

kinds! {
    /// The whole configuration is missing.
    Missing => "missing";
    /// The configuration exists although no rule needs it.
    Unwanted => "unwanted";
    /// An entry is missing.
    EntryMissing => "entry_missing";
    /// There is an unknown entry.
    EntryExtra => "entry_extra";
    /// The entries have another order, or one is duplicated.
    EntryOrder => "entry_order";
    /// An entry has no bundle: the API server would trust the system's roots.
    CaBundleEmpty => "ca_bundle_empty";
    /// An entry's bundle has something besides certificates.
    CaBundleJunk => "ca_bundle_junk";
    /// An entry's bundle lacks a CA.
    CaBundleLacking => "ca_bundle_lacking";
    /// An entry's bundle has a CA that must not be trusted.
    CaBundleForeign => "ca_bundle_foreign";
    /// An entry's bundle has another order or encoding.
    CaBundleOrder => "ca_bundle_order";
    /// The service or its path differs.
    Service => "service";
    /// The namespace selector or the object selector differs.
    Selector => "selector";
    /// The failure policy differs, or how the webhook is called.
    Policy => "policy";
    /// The timeout differs.
    Timeout => "timeout";
    /// The rules differ.
    Rules => "rules";
    /// Pillion's own labels and annotations differ.
    Marks => "marks";
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The configuration.
    pub which: ConfigurationKind,
    /// The entry, if the difference is in one.
    pub entry: Option<String>,
    /// The kind.
    pub kind: DriftKind,
    /// The field manager that wrote it, if known. For messages only: a client chooses its own name.
    pub manager: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.as_str())?;
        self.entry.iter().try_for_each(|entry| write!(formatter, "({entry})"))
    }
}

/// All differences; empty if the observed state is the desired one.
#[must_use]
pub(super) fn differences(live: &Live, desired: &Desired, now: Timestamp) -> Vec<Drift> {
    let mutating = live.mutating.as_ref().map(View::mutating);
    let validating = live.validating.as_ref().map(View::validating);
    let wanted = desired.validating.as_ref().map(View::validating);
    let mut drifts = between(mutating, Some(View::mutating(&desired.mutating)), now);
    drifts.extend(between(validating, wanted, now));
    drifts
}

fn between(live: Option<View<'_>>, desired: Option<View<'_>>, now: Timestamp) -> Vec<Drift> {
    let whole = |which, kind, manager| vec![Drift { which, entry: None, kind, manager }];
    let (live, desired) = match (live, desired) {
        (None, None) => return Vec::new(),
        (None, Some(desired)) => return whole(desired.which, DriftKind::Missing, None),
        (Some(live), None) => {
            return whole(live.which, DriftKind::Unwanted, managers::of_field(live.metadata, &["f:webhooks"]));
        }
        (Some(live), Some(desired)) => (live, desired),
    };
    let which = live.which;
    let mut drifts = Vec::new();
    if has_other_marks(live.metadata, desired.metadata, now) {
        let manager = managers::of_field(live.metadata, &["f:metadata", "f:annotations"]);
        drifts.push(Drift { which, entry: None, kind: DriftKind::Marks, manager });
    }
    let mut told = |name: &str, kind, path: &[&str]| {
        let manager = managers::of_entry(live.metadata, name, path);
        drifts.push(Drift { which, entry: Some(name.to_owned()), kind, manager });
    };
    let find = |entries: &[MutatingWebhook], name: &str| entries.iter().position(|entry| entry.name == name);
    for wanted in &desired.entries {
        match live.entries.iter().find(|entry| entry.name == wanted.name) {
            None => told(&wanted.name, DriftKind::EntryMissing, &[]),
            Some(entry) => compare(entry, wanted, &mut |kind, path| told(&wanted.name, kind, path)),
        }
    }
    for extra in live.entries.iter().filter(|entry| find(&desired.entries, &entry.name).is_none()) {
        told(&extra.name, DriftKind::EntryExtra, &[]);
    }
    let names = |view: &View<'_>| view.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    let is_known = |name: &String| find(&desired.entries, name).is_some();
    let there: Vec<_> = names(&live).into_iter().filter(is_known).collect();
    let wanted: Vec<_> = names(&desired).into_iter().filter(|name| there.contains(name)).collect();
    if there != wanted {
        let manager = managers::of_field(live.metadata, &["f:webhooks"]);
        drifts.push(Drift { which, entry: None, kind: DriftKind::EntryOrder, manager });
    }
    drifts
}

/// Whether Pillion's own labels or annotations differ. The time of writing is only compared with the clock.
fn has_other_marks(live: &ObjectMeta, desired: &ObjectMeta, now: Timestamp) -> bool {
    let differs = |key| annotation(live, key) != annotation(desired, key);
    let is_ahead = |written: Timestamp| written.duration_since(now).unsigned_abs() > AHEAD && written > now;
    let labels = desired.labels.iter().flatten();
    epoch(live) != epoch(desired)
        || differs(RELEASE_ANNOTATION)
        || written(live).is_none_or(is_ahead)
        || labels.into_iter().any(|(key, value)| live.labels.as_ref().and_then(|labels| labels.get(key)) != Some(value))
}

fn compare(live: &MutatingWebhook, desired: &MutatingWebhook, told: &mut impl FnMut(DriftKind, &[&str])) {
    compare_bundles(live, desired, told);
    let service = |entry: &MutatingWebhook| (entry.client_config.service.clone(), entry.client_config.url.clone());
    if service(live) != service(desired) {
        told(DriftKind::Service, &["f:clientConfig", "f:service"]);
    }
    if selector(live.namespace_selector.as_ref()) != selector(desired.namespace_selector.as_ref()) {
        told(DriftKind::Selector, &["f:namespaceSelector"]);
    } else if selector(live.object_selector.as_ref()) != selector(desired.object_selector.as_ref()) {
        told(DriftKind::Selector, &["f:objectSelector"]);
    }
    if live.timeout_seconds != desired.timeout_seconds {
        told(DriftKind::Timeout, &["f:timeoutSeconds"]);
    }
    if live.rules != desired.rules {
        told(DriftKind::Rules, &["f:rules"]);
    }
    let conditions = live.match_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty());
    let other_policy = [
        (live.failure_policy != desired.failure_policy, "f:failurePolicy"),
        (conditions, "f:matchConditions"),
        (live.match_policy != desired.match_policy, "f:matchPolicy"),
        (live.reinvocation_policy != desired.reinvocation_policy, "f:reinvocationPolicy"),
        (live.side_effects != desired.side_effects, "f:sideEffects"),
        (live.admission_review_versions != desired.admission_review_versions, "f:admissionReviewVersions"),
    ];
    if let Some((_, field)) = other_policy.into_iter().find(|(differs, _)| *differs) {
        told(DriftKind::Policy, &[field]);
    }
}

fn compare_bundles(live: &MutatingWebhook, desired: &MutatingWebhook, told: &mut impl FnMut(DriftKind, &[&str])) {
    let bytes = |entry: &MutatingWebhook| entry.client_config.ca_bundle.clone().unwrap_or_default().0;
    let (there, wanted) = (bytes(live), bytes(desired));
    if there == wanted {
        return;
    }
    let mut told = |kind| told(kind, &["f:clientConfig", "f:caBundle"]);
    if there.trim_ascii().is_empty() {
        return told(DriftKind::CaBundleEmpty);
    }
    let (there, wanted) = (Bundle::read(&there), Bundle::read(&wanted));
    let (lacks, has_more) = (!there.set().is_superset(&wanted.set()), !wanted.set().is_superset(&there.set()));
    let differences = [
        (!there.clean, DriftKind::CaBundleJunk),
        (lacks, DriftKind::CaBundleLacking),
        (has_more, DriftKind::CaBundleForeign),
        (there.clean && !lacks && !has_more, DriftKind::CaBundleOrder),
    ];
    differences.into_iter().filter(|(differs, _)| *differs).for_each(|(_, kind)| told(kind));
}

/// The API server stores an empty selector where there is none: they mean the same.
fn selector(selector: Option<&LabelSelector>) -> LabelSelector {
    let mut selector = selector.cloned().unwrap_or_default();
    selector.match_labels = selector.match_labels.filter(|labels| !labels.is_empty());
    selector.match_expressions = selector.match_expressions.filter(|expressions| !expressions.is_empty());
    for requirement in selector.match_expressions.iter_mut().flatten() {
        requirement.values = requirement.values.take().filter(|values| !values.is_empty());
    }
    selector
}
