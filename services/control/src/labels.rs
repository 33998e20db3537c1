//! The types of metric labels. [`pillion_api::labelled`] defines the enums of their values.

/// One metric label: its name and its value.
pub(crate) type Label = [(&'static str, &'static str); 1];

/// Two metric labels.
pub(crate) type LabelPair = [(&'static str, &'static str); 2];

/// Returns the metrics of a registry in the text format of Prometheus.
#[cfg(test)]
pub(crate) fn exposition(registry: &prometheus_client::registry::Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}
