//! Exports spans in batches and counts them: those that were exported, and those that were dropped.
//!
//! The SDK's batch processor owns the queue and the thread. It reports the number of dropped spans only when it shuts
//! down, so [`CountedProcessor`] bounds the queue itself and counts spans beyond the bound. [`CountedExporter`] counts
//! exported spans, and spans that could not be exported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use pillion_webhook::metrics::PREFIX;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{info, warn};

/// The maximum number of queued spans, which is enough for about 300 requests.
const MAX_QUEUED: usize = 2_048;
/// The maximum number of spans in a batch.
const BATCH: usize = 512;
/// The maximum time that queued spans wait for a full batch.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The timeout for sending a batch. The exporter's own timeout does not cover the connection.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Counts spans. Clones share the counters.
#[derive(Clone, Debug)]
pub(super) struct SpanMetrics {
    exported: Counter,
    dropped: Family<Reason, Counter>,
    queue_full: Counter,
    export_failed: Counter,
}

impl Default for SpanMetrics {
    fn default() -> Self {
        let dropped = Family::<Reason, Counter>::default();
        let counter = |reason| dropped.get_or_create_owned(&Reason { reason });
        let (queue_full, export_failed) = (counter("queue_full"), counter("export_failed"));
        Self { exported: Counter::default(), dropped, queue_full, export_failed }
    }
}

impl SpanMetrics {
    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix(PREFIX);
        let exported = self.exported.clone();
        registry.register("trace_spans_exported", "Spans that were exported to the collector", exported);
        let help = "Spans that were dropped, by reason";
        registry.register("trace_spans_dropped", help, self.dropped.clone());
    }
}

/// The SDK's batch processor, with a limit on its queue. Spans beyond the limit are dropped and counted.
#[derive(Debug)]
pub(super) struct CountedProcessor {
    batches: BatchSpanProcessor,
    /// An upper bound for the number of spans in the queue of `batches`.
    queued: Arc<AtomicUsize>,
    metrics: SpanMetrics,
}

impl CountedProcessor {
    /// Starts the thread that exports batches. Call it inside the runtime that drives the exporter's connection.
    pub(super) fn start(exporter: impl SpanExporter + 'static, metrics: SpanMetrics) -> Self {
        let queued = Arc::<AtomicUsize>::default();
        let exporter = CountedExporter {
            exporter,
            runtime: Handle::current(),
            queued: Arc::clone(&queued),
            metrics: metrics.clone(),
            is_failing: AtomicBool::new(false),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        Self { batches: BatchSpanProcessor::builder(exporter).with_batch_config(config).build(), queued, metrics }
    }
}

impl SpanProcessor for CountedProcessor {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.queued.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            self.metrics.queue_full.inc();
            return;
        }
        self.batches.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Counts the spans that an exporter exports, or fails to export.
#[derive(Debug)]
struct CountedExporter<E> {
    exporter: E,
    /// Drives the timeout, since the SDK exports on a thread without a runtime.
    runtime: Handle,
    queued: Arc<AtomicUsize>,
    metrics: SpanMetrics,
    /// Whether the last batch failed.
    is_failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.queued.fetch_sub(batch.len(), Ordering::Relaxed);
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let exported = {
            let _runtime = self.runtime.enter();
            timeout(EXPORT_TIMEOUT, self.exporter.export(batch))
        };
        let result = exported.await.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_TIMEOUT)));
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        // A failure is logged only if the previous batch succeeded, and a success only if the previous batch failed.
        match &result {
            Ok(()) => {
                self.metrics.exported.inc_by(count);
                if was_failing {
                    info!("the collector accepts traces again");
                }
            }
            Err(error) => {
                self.metrics.export_failed.inc_by(count);
                if !was_failing {
                    warn!(%error, "the collector rejects traces: they are dropped until it accepts them");
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;
    use std::time::{Instant, UNIX_EPOCH};

    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

    use super::*;

    fn span(flags: TraceFlags) -> SpanData {
        SpanData {
            span_context: SpanContext::new(TraceId::from(1), SpanId::from(1), flags, false, TraceState::default()),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Server,
            name: "x".into(),
            start_time: UNIX_EPOCH,
            end_time: UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: opentelemetry::InstrumentationScope::default(),
        }
    }

    /// An exporter that can be blocked, or set to fail.
    #[derive(Clone, Debug, Default)]
    struct Exporter {
        exported: Arc<AtomicU64>,
        blocked: Arc<Mutex<()>>,
        fails: Arc<AtomicBool>,
    }

    impl SpanExporter for Exporter {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            drop(self.blocked.lock());
            if self.fails.load(Ordering::Relaxed) {
                return Err(OTelSdkError::InternalFailure("no".to_owned()));
            }
            self.exported.fetch_add(batch.len() as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn spans_beyond_queue_are_dropped_and_counted() {
        let (exporter, metrics) = (Exporter::default(), SpanMetrics::default());
        let processor = CountedProcessor::start(exporter.clone(), metrics.clone());
        let blocked = exporter.blocked.lock().unwrap();
        let began = Instant::now();
        let ended = 3 * MAX_QUEUED as u64;
        for _ in 0..ended {
            processor.on_end(span(TraceFlags::SAMPLED));
        }
        processor.on_end(span(TraceFlags::default()));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let dropped = metrics.queue_full.get();
        // The exporter can hold one batch in addition to the queue.
        let held = (MAX_QUEUED + BATCH) as u64;
        assert!((ended - held..=ended - MAX_QUEUED as u64).contains(&dropped), "{dropped} of {ended}");
        drop(blocked);
        processor.shutdown_with_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(exporter.exported.load(Ordering::Relaxed), ended - dropped);
        assert_eq!((metrics.exported.get(), metrics.export_failed.get()), (ended - dropped, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn failed_spans_are_counted_and_not_kept() {
        let (exporter, metrics) = (Exporter::default(), SpanMetrics::default());
        exporter.fails.store(true, Ordering::Relaxed);
        let processor = CountedProcessor::start(exporter, metrics.clone());
        for _ in 0..10 {
            processor.on_end(span(TraceFlags::SAMPLED));
        }
        processor.shutdown_with_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((metrics.exported.get(), metrics.export_failed.get()), (0, 10));
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("pillion_webhook_trace_spans_dropped_total{reason=\"export_failed\"} 10\n"), "{text}");
        assert!(text.contains("pillion_webhook_trace_spans_dropped_total{reason=\"queue_full\"} 0\n"), "{text}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn shutdown_does_not_wait_for_blocked_exporter() {
        let exporter = Exporter::default();
        let processor = CountedProcessor::start(exporter.clone(), SpanMetrics::default());
        let _blocked = exporter.blocked.lock().unwrap();
        processor.on_end(span(TraceFlags::SAMPLED));
        let began = Instant::now();
        assert!(processor.shutdown_with_timeout(Duration::from_millis(200)).is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
