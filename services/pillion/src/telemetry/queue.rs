//! A queue of fixed length between spans and their collector, and one thread that empties it.
//!
//! A request adds its spans and continues. If the collector is slow, the queue fills up, and further spans are dropped
//! and counted. The SDK's own processor drops them too, but reports the number only at its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::Thread;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::Context;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tracing::{info, warn};

/// The maximum number of waiting spans: those of some 300 requests.
const WAITING: usize = 2_048;
/// The number of spans in a batch.
const BATCH: usize = 512;
/// How long spans wait at most for a full batch.
const REST: Duration = Duration::from_secs(1);
/// The timeout of sending a batch.
const EXPORT_LIMIT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Counts spans by their outcome. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct SpanMetrics {
    exported: Counter,
    dropped: Family<Reason, Counter>,
    queue_full: Counter,
    export_failed: Counter,
}

impl Default for SpanMetrics {
    fn default() -> Self {
        let dropped = Family::<Reason, Counter>::default();
        let of = |reason| dropped.get_or_create_owned(&Reason { reason });
        let (queue_full, export_failed) = (of("queue_full"), of("export_failed"));
        Self { exported: Counter::default(), dropped, queue_full, export_failed }
    }
}

impl SpanMetrics {
    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("pillion");
        let exported = self.exported.clone();
        registry.register("trace_spans_exported", "Spans that a collector of traces has taken", exported);
        let help = "Spans that were dropped, as the queue was full or the collector did not take them";
        registry.register("trace_spans_dropped", help, self.dropped.clone());
    }
}

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct Queue {
    spans: SyncSender<SpanData>,
    shared: Arc<Shared>,
    worker: Thread,
    ended: std::sync::Mutex<Receiver<()>>,
    metrics: SpanMetrics,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    ends: AtomicBool,
}

impl Queue {
    /// Starts the thread, which exports with `exporter`.
    ///
    /// # Errors
    /// The exporter or the thread cannot be created.
    pub(super) fn start<E: SpanExporter + 'static>(
        metrics: SpanMetrics,
        exporter: impl FnOnce() -> anyhow::Result<E>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the thread that sends traces")?;
        let made = {
            let _in_runtime = runtime.enter();
            exporter()
        };
        let exporter = match made {
            Ok(exporter) => exporter,
            Err(error) => {
                // The caller may run in a runtime, where dropping another one panics.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let (spans, queue) = mpsc::sync_channel(WAITING);
        let (ends, ended) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::default());
        let worker = Worker { queue, shared: Arc::clone(&shared), exporter, metrics: metrics.clone(), failing: false };
        let thread = std::thread::Builder::new().name("traces".to_owned());
        let work = move || {
            runtime.block_on(worker.run());
            // Err: the receiver is gone, because the process is ending.
            let _ = ends.send(());
        };
        let worker = thread.spawn(work).context("cannot start the thread that sends traces")?.thread().clone();
        Ok(Self { spans, shared, worker, ended: std::sync::Mutex::new(ended), metrics })
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        // The thread sleeps instead of waiting for each span, so adding a span does not wake it.
        let before = self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.spans.try_send(span).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.metrics.queue_full.inc();
        } else if before + 1 == BATCH {
            self.worker.unpark();
        }
    }

    /// Only wakes the thread: the queue is sent within a second anyway.
    fn force_flush(&self) -> OTelSdkResult {
        self.worker.unpark();
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.shared.ends.store(true, Ordering::Release);
        self.worker.unpark();
        let ended = self.ended.lock().map_err(|_| OTelSdkError::AlreadyShutdown)?;
        ended.recv_timeout(timeout).map_err(|_| OTelSdkError::Timeout(timeout))
    }
}

/// The receiving end, on its own thread.
struct Worker<E> {
    queue: Receiver<SpanData>,
    shared: Arc<Shared>,
    exporter: E,
    metrics: SpanMetrics,
    failing: bool,
}

impl<E: SpanExporter> Worker<E> {
    async fn run(mut self) {
        loop {
            let ends = self.shared.ends.load(Ordering::Acquire);
            let mut is_empty = false;
            while !is_empty {
                let batch: Vec<_> = self.queue.try_iter().take(BATCH).collect();
                is_empty = batch.len() < BATCH;
                if !batch.is_empty() {
                    self.shared.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
                    self.send(batch).await;
                }
            }
            if ends {
                return;
            }
            // This thread has no other work, so it may block.
            std::thread::park_timeout(REST);
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let sent = tokio::time::timeout(EXPORT_LIMIT, self.exporter.export(batch)).await;
        let sent = sent.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_LIMIT)));
        match &sent {
            Ok(()) => self.metrics.exported.inc_by(count),
            Err(_) => self.metrics.export_failed.inc_by(count),
        };
        // Logged on a change only, not for each batch.
        match (sent, self.failing) {
            (Err(error), false) => {
                warn!(%error, "the collector of traces does not take them: they are dropped until it does");
                self.failing = true;
            }
            (Ok(()), true) => {
                info!("the collector takes traces again");
                self.failing = false;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

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
            start_time: std::time::UNIX_EPOCH,
            end_time: std::time::UNIX_EPOCH,
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
        taken: Arc<AtomicU64>,
        closed: Arc<Mutex<()>>,
        refuses: Arc<AtomicBool>,
    }

    impl SpanExporter for Exporter {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            drop(self.closed.lock());
            if self.refuses.load(Ordering::Relaxed) {
                return Err(OTelSdkError::InternalFailure("no".to_owned()));
            }
            self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn what_has_no_room_is_dropped_and_counted_and_putting_never_waits() {
        let (exporter, metrics) = (Exporter::default(), SpanMetrics::default());
        let queue = Queue::start(metrics.clone(), || Ok(exporter.clone())).unwrap();
        let closed = exporter.closed.lock().unwrap();
        let began = Instant::now();
        let put = 3 * WAITING as u64;
        for _ in 0..put {
            queue.on_end(span(TraceFlags::SAMPLED));
        }
        queue.on_end(span(TraceFlags::default()));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let dropped = metrics.queue_full.get();
        let held = (WAITING + BATCH) as u64;
        assert!((put - held..=put - WAITING as u64).contains(&dropped), "{dropped} of {put}");
        drop(closed);
        queue.shutdown_with_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(exporter.taken.load(Ordering::Relaxed), put - dropped);
        assert_eq!((metrics.exported.get(), metrics.export_failed.get()), (put - dropped, 0));
    }

    #[test]
    fn a_collector_that_refuses_is_counted_and_its_spans_are_not_kept() {
        let (exporter, metrics) = (Exporter::default(), SpanMetrics::default());
        exporter.refuses.store(true, Ordering::Relaxed);
        let queue = Queue::start(metrics.clone(), || Ok(exporter)).unwrap();
        for _ in 0..10 {
            queue.on_end(span(TraceFlags::SAMPLED));
        }
        queue.shutdown_with_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((metrics.exported.get(), metrics.export_failed.get()), (0, 10));
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("pillion_trace_spans_dropped_total{reason=\"export_failed\"} 10\n"), "{text}");
        assert!(text.contains("pillion_trace_spans_dropped_total{reason=\"queue_full\"} 0\n"), "{text}");
    }

    #[test]
    fn an_exporter_that_hangs_does_not_keep_the_end_waiting() {
        let exporter = Exporter::default();
        let queue = Queue::start(SpanMetrics::default(), || Ok(exporter.clone())).unwrap();
        let _closed = exporter.closed.lock().unwrap();
        queue.on_end(span(TraceFlags::SAMPLED));
        let began = Instant::now();
        assert!(queue.shutdown_with_timeout(Duration::from_millis(200)).is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
