//! Exports the sizes of the snapshot. Each scrape also removes series of names that left the snapshot some time ago.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use pillion_engine::snapshot::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use super::decisions::ProfileCounters;
use super::series::Tenants;

pub(super) struct SnapshotCollector {
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) tenants: Tenants,
    pub(super) profiles: ProfileCounters,
}

impl fmt::Debug for SnapshotCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SnapshotCollector")
    }
}

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.snapshot.load();
        let now = Instant::now();
        self.tenants.release(now, |name| snapshot.namespace(name).is_some());
        let profiles: HashSet<_> = snapshot.profiles().iter().map(|profile| profile.display_name()).collect();
        self.profiles.release(now, |name| profiles.contains(name));
        for (name, help, count) in [
            ("profiles", "Active profiles", snapshot.profiles().len()),
            ("namespaces", "Known namespaces", snapshot.namespace_count()),
        ] {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
