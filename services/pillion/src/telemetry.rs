//! Logs to standard error, and traces over OTLP if an endpoint is set.
//!
//! Logs and traces have separate filters, so that a restrictive log level does not suppress spans. Without an endpoint
//! there is no tracing layer, and a span costs nothing.
//!
//! * [`logs`]: the filter of log lines, which can change at run time.
//! * [`traces`]: the collector of spans, and which requests are sampled.
//! * [`export`]: sends batches of spans to the collector, and counts them.

mod export;
pub(crate) mod logs;
pub(crate) mod traces;

use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use pillion_webhook::trace;
use prometheus_client::registry::Registry as Metrics;
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use self::export::SpanMetrics;
use self::logs::{DEFAULT_LEVEL, LogArgs, LogLevel, Logs};
use self::traces::{Sampling, TraceArgs, Traces};

/// The time limit for sending the last spans.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// The logging and tracing setup. [`Self::shutdown`] sends the remaining spans.
#[must_use = "the last spans are lost unless it is shut down"]
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
    controls: Controls,
}

/// The settings that can change at run time.
#[derive(Clone, Debug)]
pub(crate) struct Controls {
    pub(crate) level: LogLevel,
    sampling: Sampling,
    /// The counters of spans. All remain 0 without tracing.
    spans: SpanMetrics,
}

impl Controls {
    /// Applies the settings of a policy.
    pub(crate) fn apply(&self, logs: &Logs, traces: &Traces) {
        self.level.set(&logs.level);
        self.sampling.set(traces);
    }

    /// Registers the metrics of spans.
    pub(crate) fn register(&self, metrics: &mut Metrics) {
        self.spans.register(metrics);
    }
}

impl Telemetry {
    /// Sets up logs only, for short commands.
    ///
    /// # Errors
    /// The level is invalid, or logs are set up already.
    pub(crate) fn logs(logs: &LogArgs) -> anyhow::Result<()> {
        let level = logs.log_level.as_deref().unwrap_or(DEFAULT_LEVEL);
        let filter = logs::filter(level).context("--log-level cannot be used")?;
        let layer = logs::layer(logs.log_format).with_filter(filter);
        Registry::default().with(layer).try_init().context("logs are set up already")
    }

    /// Sets up logs only, with a level that can change at run time.
    ///
    /// # Errors
    /// The level is invalid, or logs are set up already.
    pub(crate) fn changing_logs(logs: &LogArgs, level: &str) -> anyhow::Result<LogLevel> {
        let (filter, level) = LogLevel::new(level)?;
        let lines = logs::layer(logs.log_format).with_filter(filter);
        Registry::default().with(lines).try_init().context("logs are set up already")?;
        Ok(level)
    }

    /// Sets up logs and, if an endpoint is set, traces, from the arguments and a policy's settings.
    ///
    /// # Errors
    /// The level is invalid, the endpoint cannot be used, or logs are set up already.
    pub(crate) fn start(args: (&LogArgs, &TraceArgs), settings: (&Logs, &Traces)) -> anyhow::Result<Self> {
        let ((logs, traces), (levels, shares)) = (args, settings);
        let (filter, level) = LogLevel::new(&levels.level)?;
        let sampling = Sampling::new(shares);
        let spans = SpanMetrics::default();
        let collector = traces.collector()?;
        let provider = collector.map(|collector| traces::provider(&collector, &sampling, spans.clone())).transpose()?;
        let layer = provider.as_ref().map(|provider| {
            // Warnings during a request become events of its span. The log line of the decision does not become an
            // event, since the span itself contains the decision.
            let wanted = [(trace::TARGET, LevelFilter::INFO), ("pillion", LevelFilter::WARN)];
            let layer = tracing_opentelemetry::layer().with_location(false).with_threads(false);
            let layer = layer.with_tracked_inactivity(false).with_target(false);
            layer.with_tracer(provider.tracer("pillion")).with_filter(Targets::new().with_targets(wanted))
        });
        let lines = logs::layer(logs.log_format).with_filter(filter);
        subscriber(lines, layer).try_init().context("logs are set up already")?;
        if let Some(provider) = &provider {
            // The webhook crate creates some spans after their request has ended. It uses the global tracer for these.
            opentelemetry::global::set_tracer_provider(provider.clone());
        }
        Ok(Self { provider, controls: Controls { level, sampling, spans } })
    }

    /// Returns the settings that can change at run time.
    pub(crate) fn controls(&self) -> Controls {
        self.controls.clone()
    }

    /// Sends the remaining spans, for a few seconds at most.
    pub(crate) async fn shutdown(self) {
        let Some(provider) = self.provider else { return };
        // The shutdown blocks until the export thread is done.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Combines the layers of logs and spans with their filters. Without spans, the layer is left out: an `Option` layer of
/// `None` has no filter, so it would enable everything, and every request would create an unused span.
fn subscriber<L, T>(lines: L, spans: Option<T>) -> Dispatch
where
    L: Layer<Registry> + Send + Sync + 'static,
    T: Layer<Layered<L, Registry>> + Send + Sync + 'static,
{
    let lines = Registry::default().with(lines);
    match spans {
        Some(spans) => Dispatch::new(lines.with(spans)),
        None => Dispatch::new(lines),
    }
}

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::Identity;

    use super::*;

    #[test]
    fn spans_are_created_only_with_collector() {
        let lines = || fmt::layer().with_writer(std::io::sink).with_filter(logs::filter("info").unwrap());
        let is_made = |dispatch: &Dispatch| {
            let make = || info_span!(target: trace::TARGET, "admission");
            tracing::dispatcher::with_default(dispatch, || !make().is_disabled())
        };
        assert!(!is_made(&subscriber(lines(), None::<Identity>)));
        let wanted = Targets::new().with_target(trace::TARGET, LevelFilter::INFO);
        assert!(is_made(&subscriber(lines(), Some(Identity::new().with_filter(wanted)))));
    }
}
