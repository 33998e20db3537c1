//! The limits of metrics, in both policy files.

use pillion_webhook::metrics::MetricsSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many tenants and profiles have their own metric series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MetricLimits {
    /// The maximum number of tenants (namespaces) that have their own series. All other tenants are counted together as
    /// `_other`.
    #[schemars(extend("range" = [0, 10_000]))]
    pub(crate) max_tenants: usize,
    /// The maximum number of profiles that have their own series. All other profiles are counted together as `_other`.
    #[schemars(extend("range" = [0, 10_000]))]
    pub(crate) max_profiles: usize,
}

impl Default for MetricLimits {
    fn default() -> Self {
        let MetricsSettings { max_tenants, max_profiles } = MetricsSettings::default();
        Self { max_tenants, max_profiles }
    }
}

impl MetricLimits {
    /// Returns the limits of the metrics of a replica.
    pub(crate) const fn settings(&self) -> MetricsSettings {
        MetricsSettings { max_tenants: self.max_tenants, max_profiles: self.max_profiles }
    }
}
