//! Counters with one label of a closed set of values.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Registers a metric with one counter for each value of its label, and returns the counters in the order of the values.
/// They exist from the start, so counting looks up no name, and each series is exported before its first event.
pub(crate) fn register<const N: usize>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: [&'static str; N],
) -> [Counter; N] {
    let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
    registry.register(name, help, family.clone());
    values.map(|value| family.get_or_create_owned(&[(label, value)]))
}
