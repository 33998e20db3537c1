//! What is measured besides what always is, as it is asked for on the command line.

use clap::Args;
use pillion_webhook::metrics::{MetricsSettings, TenantSettings};

/// Arguments of the commands that serve.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub(crate) struct MeasureArgs {
    /// Count requests by namespace too. Four more series for each namespace.
    #[arg(long, env = "PILLION_TENANT_METRICS")]
    pub(crate) tenant_metrics: bool,
    /// With --tenant-metrics: so many namespaces at most; the others are counted together, as _other.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = TenantSettings::default().max_namespaces,
        env = "PILLION_MAX_TENANTS"
    )]
    pub(crate) max_tenants: usize,
}

impl MeasureArgs {
    pub(crate) fn settings(&self) -> MetricsSettings {
        let mut settings = MetricsSettings::default();
        settings.tenants.enabled = self.tenant_metrics;
        settings.tenants.max_namespaces = self.max_tenants;
        settings
    }
}
