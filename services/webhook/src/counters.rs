//! Registers metrics, and defines counters with one label whose values are fixed.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};

/// Creates a metric without labels and registers it.
pub(crate) fn register<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// One counter for each value of a label. All counters are created at registration. So counting needs no lookup by
/// name, and each series is exported before its first event.
#[derive(Clone, Debug)]
pub(crate) struct Counters<const N: usize>([Counter; N]);

impl<const N: usize> Counters<N> {
    /// Registers a metric with these values of its label.
    pub(crate) fn register(
        registry: &mut Registry,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: [&'static str; N],
    ) -> Self {
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        registry.register(name, help, family.clone());
        Self(values.map(|value| family.get_or_create_owned(&[(label, value)])))
    }

    /// Increments the counter at this index. Ignores an index that is out of range.
    pub(crate) fn count(&self, index: usize) {
        if let Some(counter) = self.0.get(index) {
            counter.inc();
        }
    }

    /// Returns the value of the counter at this index, or 0 for an index that is out of range.
    pub(crate) fn get(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, Counter::get)
    }
}

/// Returns the metrics of this registry as text.
#[cfg(test)]
pub(crate) fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pillion_api::labelled! {
        enum Fruit {
            Apple => "apple",
            Pear => "pear",
        }
    }

    #[test]
    fn values_are_counted_by_label() {
        let mut registry = Registry::default();
        let counters = Counters::register(&mut registry, "eaten", "Fruit.", "fruit", Fruit::ALL.map(Fruit::as_str));
        assert!(text(&registry).contains("eaten_total{fruit=\"pear\"} 0\n"));
        counters.count(Fruit::Pear as usize);
        counters.count(Fruit::ALL.len());
        let text = text(&registry);
        assert!(text.contains("{fruit=\"apple\"} 0\n") && text.contains("{fruit=\"pear\"} 1\n"), "{text}");
        assert_eq!(counters.get(Fruit::Pear as usize), 1);
    }
}
