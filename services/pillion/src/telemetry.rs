//! What the program tells of itself: log lines to standard error, and traces by OTLP if somebody wants them.
//!
//! Each has a filter of its own, so that a quiet log does not take the spans away, and the log does not ask for spans.
//! Without an endpoint there is no tracing layer at all, and a span costs nothing.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use pillion_webhook::trace;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::args::{LogArgs, LogFormat, TraceArgs};

/// What is logged unless somebody says otherwise.
const DEFAULT_LEVEL: &str = "info";

/// Logged only if somebody asks for it by its name: the client tells of each failed request once more, without what it was
/// for; and the spans of requests are for traces.
const QUIET: &str = "kube_client=off,pillion_trace=off";

/// How long the last spans may take to be sent.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Sends what is left of the traces when it is [shut down](Self::shutdown).
#[must_use = "the last spans are lost unless it is shut down"]
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Log lines only, for commands that are soon done.
    ///
    /// # Errors
    /// The level is none.
    pub(crate) fn logs(logs: &LogArgs) -> anyhow::Result<()> {
        Registry::default().with(log_layer(logs)?).try_init().context("logs are set up already")
    }

    /// Log lines and, if an endpoint is given, traces. Has to be called in the runtime, which the exporter needs.
    ///
    /// # Errors
    /// The level is none, or the endpoint cannot be used.
    pub(crate) fn start(logs: &LogArgs, traces: &TraceArgs) -> anyhow::Result<Self> {
        let provider =
            traces.otlp_endpoint.as_deref().map(|endpoint| provider(endpoint, traces.trace_ratio)).transpose()?;
        let spans = provider.as_ref().map(|provider| {
            let layer = tracing_opentelemetry::layer().with_location(false).with_threads(false);
            // What is told while a request is answered belongs to its span, but not each decision: the span says it.
            let wanted = [(trace::TARGET, LevelFilter::INFO), ("pillion", LevelFilter::WARN)];
            layer.with_tracer(provider.tracer("pillion")).with_filter(Targets::new().with_targets(wanted))
        });
        Registry::default().with(log_layer(logs)?).with(spans).try_init().context("logs are set up already")?;
        Ok(Self { provider })
    }

    /// Sends the last spans, for a few seconds at most.
    pub(crate) async fn shutdown(self) {
        let Some(provider) = self.provider else { return };
        // It blocks until its thread is done.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

fn log_layer<S>(logs: &LogArgs) -> anyhow::Result<impl Layer<S>>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let level = logs.log_level.as_deref().unwrap_or(DEFAULT_LEVEL);
    let filter = EnvFilter::try_new(format!("{QUIET},{level}")).with_context(|| {
        format!(
            "--log-level {level:?} cannot be used: expected error, warn, info, debug, trace or off, or parts as in \
             \"info,pillion_control=debug\""
        )
    })?;
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match logs.log_format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    };
    Ok(layer.with_filter(filter))
}

fn provider(endpoint: &str, ratio: f64) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .with_context(|| format!("traces cannot be sent to --otlp-endpoint {endpoint}"))?;
    // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are read by the builder; the name given here would hide the former.
    let resource = Resource::builder();
    let resource =
        if std::env::var_os("OTEL_SERVICE_NAME").is_some() { resource } else { resource.with_service_name("pillion") };
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
        .with_resource(resource.with_attribute(version).build())
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_named() {
        let logs = LogArgs { log_format: LogFormat::Json, log_level: Some("info,pillion=loud".to_owned()) };
        let error = log_layer::<Registry>(&logs).err().unwrap();
        assert!(error.to_string().contains("pillion=loud"), "{error}");
    }

    #[tokio::test]
    async fn an_endpoint_that_is_not_there_stops_neither_start_nor_end() {
        let provider = provider("http://127.0.0.1:1", 1.0).unwrap();
        drop(tracing::subscriber::set_default(Registry::default()));
        tokio::time::timeout(FLUSH_LIMIT * 2, Telemetry { provider: Some(provider) }.shutdown()).await.unwrap();
    }
}
