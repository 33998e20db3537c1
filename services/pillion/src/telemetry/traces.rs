//! Sends the spans of a share of the requests, and of a limited number of failed requests, to one collector with OTLP
//! over gRPC.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use opentelemetry::trace::{Link, SpanContext, SpanKind, TraceContextExt, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample};
use pillion_webhook::trace::SAMPLED_FOR;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::export::{CountedProcessor, SpanMetrics};

/// Arguments for tracing.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// URL of the collector for traces, with OTLP over gRPC, as in <http://collector.observability:4317>. Default: no
    /// traces.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = otlp_endpoint)]
    pub(crate) otlp_endpoint: Option<String>,
    /// PEM file of the CA for an https:// endpoint. Default: the CAs of the system.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub(crate) otlp_ca: Option<PathBuf>,
    /// Share of the requests that are traced, 0 to 1, unless the API server has already decided. Default: the value in
    /// the policy file, else 0.01.
    #[arg(long, env = "PILLION_TRACE_RATIO", value_name = "SHARE", value_parser = ratio)]
    pub(crate) trace_ratio: Option<f64>,
}

impl TraceArgs {
    /// Returns the collector; `None` without an endpoint.
    ///
    /// # Errors
    /// The CA file cannot be read, has no certificate, or is not valid PEM.
    pub(crate) fn collector(&self) -> anyhow::Result<Option<Collector>> {
        let Some(endpoint) = self.otlp_endpoint.clone() else { return Ok(None) };
        let ca = self.otlp_ca.as_deref().map(ca);
        Ok(Some(Collector { endpoint, ca: ca.transpose()?, ca_file: self.otlp_ca.clone() }))
    }
}

/// The sampling settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Traces {
    /// The share of the requests that are traced. If the API server has decided whether to trace a request, its
    /// decision applies instead.
    #[schemars(extend("range" = [0, 1]))]
    pub(crate) ratio: f64,
    /// The maximum number of failed or denied requests per second that are traced although they were not sampled.
    #[schemars(extend("range" = [0, 1_000]))]
    pub(crate) errors_per_second: u32,
}

impl Default for Traces {
    fn default() -> Self {
        Self { ratio: 0.01, errors_per_second: 10 }
    }
}

/// A collector of traces.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// The URL: `http://` or `https://`.
    pub(crate) endpoint: String,
    /// The trusted CA, PEM. `None`: the CAs of the system.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) ca_file: Option<PathBuf>,
}

/// Decides which spans are created. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Sampling(Arc<Shares>);

#[derive(Debug)]
struct Shares {
    /// The share of requests that are sampled if the caller has made no sampling decision, as the bits of a float.
    ratio: AtomicU64,
    errors_per_second: AtomicU32,
    errors: Mutex<Second>,
}

/// The current second, and the number of failed requests that were sampled in it.
#[derive(Debug)]
struct Second {
    began: Instant,
    taken: u32,
}

impl Sampling {
    pub(crate) fn new(traces: &Traces) -> Self {
        let errors = Mutex::new(Second { began: Instant::now(), taken: 0 });
        let sampling =
            Self(Arc::new(Shares { ratio: AtomicU64::new(0), errors_per_second: AtomicU32::new(0), errors }));
        sampling.set(traces);
        sampling
    }

    /// Changes the settings.
    pub(crate) fn set(&self, traces: &Traces) {
        self.0.ratio.store(traces.ratio.to_bits(), Ordering::Relaxed);
        self.0.errors_per_second.store(traces.errors_per_second, Ordering::Relaxed);
    }

    fn ratio(&self) -> f64 {
        f64::from_bits(self.0.ratio.load(Ordering::Relaxed))
    }

    /// Whether one more failed request may be sampled in this second. If so, counts it.
    fn samples_error(&self, now: Instant) -> bool {
        let most = self.0.errors_per_second.load(Ordering::Relaxed);
        let mut second = self.0.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(second.began) >= Duration::from_secs(1) {
            *second = Second { began: now, taken: 0 };
        }
        let takes = second.taken < most;
        second.taken += u32::from(takes);
        takes
    }
}

impl ShouldSample for Sampling {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let parent = parent.map(|parent| parent.span().span_context().clone()).filter(SpanContext::is_valid);
        let choice = |is_sampled: bool| SamplingResult {
            decision: if is_sampled { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop },
            attributes: Vec::new(),
            trace_state: parent.as_ref().map(|parent| parent.trace_state().clone()).unwrap_or_default(),
        };
        if attributes.iter().any(|attribute| attribute.key.as_str() == SAMPLED_FOR) {
            return choice(self.samples_error(Instant::now()));
        }
        match &parent {
            Some(parent) => choice(parent.is_sampled()),
            None => Sampler::TraceIdRatioBased(self.ratio()).should_sample(None, trace, name, kind, attributes, links),
        }
    }
}

/// Creates the tracer provider, which sends to the collector. Call it inside the runtime that drives the connection.
///
/// # Errors
/// The endpoint or its CA cannot be used.
pub(super) fn provider(
    collector: &Collector,
    sampling: &Sampling,
    metrics: SpanMetrics,
) -> anyhow::Result<SdkTracerProvider> {
    let resource = resource();
    let processor = CountedProcessor::start(collector.exporter(&resource)?, metrics);
    let provider = SdkTracerProvider::builder().with_span_processor(processor).with_sampler(sampling.clone());
    Ok(provider.with_resource(resource).build())
}

impl Collector {
    /// Creates the exporter. Call it inside the runtime that drives the connection.
    ///
    /// # Errors
    /// The endpoint or its CA cannot be used.
    pub(crate) fn exporter(&self, resource: &Resource) -> anyhow::Result<SpanExporter> {
        use opentelemetry_sdk::trace::SpanExporter as _;

        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&*self.endpoint);
        let exporter = if self.endpoint.starts_with("https://") {
            let tls = match &self.ca {
                Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
                None => ClientTlsConfig::new().with_native_roots(),
            };
            exporter.with_tls_config(tls)
        } else {
            exporter
        };
        let mut exporter = exporter.build().with_context(|| {
            let ca = match &self.ca_file {
                Some(file) => format!(" with --otlp-ca {}", file.display()),
                // Without `--otlp-ca`, a cause may be that the container image has no system CAs.
                None if self.endpoint.starts_with("https://") => {
                    " without --otlp-ca; the system may have no CAs".to_owned()
                }
                None => String::new(),
            };
            format!("traces cannot be sent to --otlp-endpoint {}{ca}", self.endpoint)
        })?;
        exporter.set_resource(resource);
        Ok(exporter)
    }
}

/// Returns the resource of the spans. The builder reads `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`; a name set
/// here would override `OTEL_SERVICE_NAME`.
fn resource() -> Resource {
    let resource = Resource::builder();
    let resource =
        if std::env::var_os("OTEL_SERVICE_NAME").is_some() { resource } else { resource.with_service_name("pillion") };
    resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build()
}

/// Reads and validates a CA file, PEM.
fn ca(file: &Path) -> anyhow::Result<Vec<u8>> {
    let what = || format!("the collector's CA {} (--otlp-ca)", file.display());
    let text = fs::read(file).with_context(|| format!("cannot read {}", what()))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(found) if !found.is_empty() => Ok(text),
        Ok(_) => bail!("{} has no certificate: expected PEM", what()),
        Err(error) => bail!("{} is not valid PEM: {error}", what()),
    }
}

fn otlp_endpoint(text: &str) -> Result<String, String> {
    match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        Some(rest) if !rest.is_empty() && !rest.contains(char::is_whitespace) => Ok(text.to_owned()),
        _ => Err("expected a URL such as http://collector.observability:4317, or https://".to_owned()),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceFlags, TraceState};

    use super::*;

    fn sampling(ratio: f64, errors_per_second: u32) -> Sampling {
        Sampling::new(&Traces { ratio, errors_per_second })
    }

    fn samples(sampling: &Sampling, parent: Option<bool>, attributes: &[KeyValue]) -> bool {
        let parent = parent.map(|is_sampled| {
            let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
            let state = TraceState::default();
            let parent = SpanContext::new(TraceId::from(1_u128 << 80), SpanId::from(7), flags, true, state);
            Context::new().with_remote_span_context(parent)
        });
        let trace = TraceId::from(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        let result = sampling.should_sample(parent.as_ref(), trace, "x", &SpanKind::Server, attributes, &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn caller_decides_sampling_else_the_current_ratio() {
        let none = sampling(0.0, 0);
        assert_eq!([Some(true), Some(false), None].map(|parent| samples(&none, parent, &[])), [true, false, false]);
        let all = none.clone();
        all.set(&Traces { ratio: 1.0, errors_per_second: 0 });
        assert_eq!([Some(true), Some(false), None].map(|parent| samples(&none, parent, &[])), [true, false, true]);
    }

    #[test]
    fn failed_requests_are_sampled_up_to_rate() {
        let sampling = sampling(0.0, 3);
        let error = [KeyValue::new(SAMPLED_FOR, "error")];
        assert!(samples(&sampling, Some(false), &error), "the caller's decision not to sample is overridden");
        let now = Instant::now();
        let taken = |now| (0..10).filter(|_| sampling.samples_error(now)).count();
        assert_eq!(taken(now), 2, "one of three was sampled before");
        assert_eq!(taken(now + Duration::from_secs(1)), 3);
        assert_eq!(taken(now + Duration::from_millis(1_900)), 0);
    }
}
