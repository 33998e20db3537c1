//! Reads the settings from a stored configuration, for tools that do not have the settings.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};

use super::rules::{OwnCalls, Validated, rules_of, targets_of};
use crate::names::{FailureMode, NAMESPACE_NAME_LABEL};
use crate::opt_in::{OptIn, OptInLabel};

/// Returns the labels with which namespaces opt in, according to a configuration. `None` if its entries have no such
/// labels or contradict each other.
#[must_use]
pub fn opt_in_of(configuration: &MutatingWebhookConfiguration) -> Option<OptIn> {
    let entries: Vec<_> = configuration.webhooks.iter().flatten().filter_map(read).collect();
    // Each entry contains its own label and all labels of higher precedence. So the entry with the most labels contains
    // all of them, in order.
    let keys = entries.iter().map(|entry| &entry.keys).max_by_key(|keys| keys.len())?;
    if !entries.iter().all(|entry| keys.starts_with(&entry.keys)) {
        return None;
    }
    let labels = keys.iter().map(|key| {
        let of_key = entries.iter().filter(|entry| entry.keys.last() == Some(key));
        let values =
            of_key.flat_map(|entry| entry.values.iter().map(|value| ((*value).to_owned(), entry.failure_mode)));
        OptInLabel { key: (*key).to_owned(), values: values.collect() }
    });
    OptIn::new(labels.collect()).ok()
}

/// Returns the requests for which the API server calls the validating paths, according to a configuration.
#[must_use]
pub fn validated_of(configuration: &ValidatingWebhookConfiguration) -> Validated {
    let (mut everywhere, mut own) = (Vec::new(), OwnCalls::new());
    for entry in configuration.webhooks.iter().flatten() {
        let path = entry.client_config.service.as_ref().and_then(|service| service.path.as_deref());
        if !FailureMode::ALL.into_iter().any(|failure_mode| path == Some(failure_mode.validate_path())) {
            continue;
        }
        let selector = entry.namespace_selector.as_ref();
        let mut requirements = selector.and_then(|selector| selector.match_expressions.as_ref()).into_iter().flatten();
        let named =
            requirements.find(|requirement| requirement.key == NAMESPACE_NAME_LABEL && requirement.operator == "In");
        let targets = entry.rules.iter().flatten().flat_map(targets_of);
        let Some(named) = named else {
            everywhere.extend(targets);
            continue;
        };
        for target in targets {
            for operation in &target.operations {
                for resource in &target.resources {
                    let namespaces = own.entry((resource.clone(), *operation)).or_default();
                    namespaces.extend(named.values.iter().flatten().cloned());
                }
            }
        }
    }
    Validated { everywhere: rules_of(everywhere), own }
}

/// The parts of an entry that determine which namespaces opt in.
struct Entry<'c> {
    failure_mode: FailureMode,
    /// The labels of higher precedence, followed by the entry's own label.
    keys: Vec<&'c str>,
    values: Vec<&'c str>,
}

/// Reads an entry. `None` if the entry is not for namespaces that opt in.
fn read(entry: &MutatingWebhook) -> Option<Entry<'_>> {
    let path = entry.client_config.service.as_ref()?.path.as_deref()?;
    let failure_mode = FailureMode::ALL.into_iter().find(|failure_mode| failure_mode.path() == path)?;
    let requirements = entry.namespace_selector.as_ref()?.match_expressions.as_ref()?;
    let label_requirements = || requirements.iter().filter(|requirement| requirement.key != NAMESPACE_NAME_LABEL);
    let own = label_requirements().find(|requirement| requirement.operator == "In")?;
    let earlier = label_requirements()
        .filter(|requirement| requirement.operator == "DoesNotExist")
        .map(|requirement| &*requirement.key);
    let keys = earlier.chain([&*own.key]).collect();
    Some(Entry { failure_mode, keys, values: own.values.iter().flatten().map(String::as_str).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook_configuration::{Settings, mutating};

    #[test]
    fn reads_labels_as_written() {
        for others in [
            &[][..],
            &["istio-injection=enabled"],
            &["istio-injection=enabled", "istio-injection=strict:required", "sidecar-injector=enabled"],
            // The settings have no entry for `held`, which is the only failure mode of the label `a`.
            &["a=b:held", "c=d"],
        ] {
            let opt_in = OptIn::with(others.iter().copied()).unwrap();
            let settings =
                Settings { opt_in: opt_in.clone(), trust_probe: true, ..Settings::new("pillion-system", "") };
            let read = opt_in_of(&mutating(&settings)).unwrap();
            let keys = |opt_in: &OptIn| opt_in.labels().iter().map(|label| label.key.clone()).collect::<Vec<_>>();
            assert_eq!(keys(&read), keys(&opt_in));
            for label in opt_in.labels() {
                for (value, failure_mode) in &label.values {
                    let level_of = |opt_in: &OptIn| opt_in.failure_mode(|key| (key == label.key).then_some(value));
                    let expected = settings.failure_modes.contains(failure_mode).then_some(*failure_mode);
                    assert_eq!(
                        (level_of(&opt_in), level_of(&read)),
                        (Some(*failure_mode), expected),
                        "{}={value}",
                        label.key
                    );
                }
            }
        }
    }

    #[test]
    fn rejects_empty_or_contradictory_entries() {
        assert_eq!(opt_in_of(&MutatingWebhookConfiguration::default()), None);
        let entries_for = |label: &str| {
            let mut labels = OptIn::with([label]).unwrap().labels().to_vec();
            labels.remove(0);
            let settings = Settings { opt_in: OptIn::new(labels).unwrap(), ..Settings::new("pillion-system", "") };
            mutating(&settings).webhooks.unwrap()
        };
        let webhooks = Some([entries_for("a=b"), entries_for("c=d")].concat());
        assert_eq!(opt_in_of(&MutatingWebhookConfiguration { webhooks, ..Default::default() }), None);
    }
}
