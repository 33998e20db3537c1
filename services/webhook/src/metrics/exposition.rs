//! The text of `/metrics`: `OpenMetrics` for clients that accept it, such as Prometheus, and the older text format for
//! all others (`promtool check metrics`, older scrapers, curl).
//!
//! The client library writes only `OpenMetrics`, so this module converts its text to the older format. It also has the
//! metrics of the process.

use std::fmt::{self, Write};

use http::HeaderMap;
use http::header::ACCEPT;
use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The beginning of an exemplar in the line of a series. No label value of a bucket contains this string.
const EXEMPLAR: &str = " # {";

/// The text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4, which has no exemplars.
    Classic,
}

impl Format {
    /// Returns the format to use for a scraper with these headers.
    pub(crate) fn accepted(headers: &HeaderMap) -> Self {
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_open = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let is_type = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            is_type && !parts.any(|parameter| parameter.strip_prefix("q=").is_some_and(is_zero))
        };
        if ranges.flat_map(|value| value.split(',')).any(is_open) { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

fn is_zero(quality: &str) -> bool {
    quality.parse().is_ok_and(|quality: f64| quality <= 0.0)
}

/// Encodes the registered metrics for `/metrics`.
#[derive(Debug, Default)]
pub struct Exposition(Registry);

impl From<Registry> for Exposition {
    fn from(registry: Registry) -> Self {
        Self(registry)
    }
}

impl Exposition {
    /// Encodes all metrics.
    ///
    /// # Errors
    /// A metric cannot be encoded.
    pub(crate) fn text(&self, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(32 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &self.0)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Classic => classic(&text),
        })
    }
}

/// Converts to the older text format. There, a counter's HELP and TYPE lines include `_total`, an info is a gauge, and
/// there are no exemplars.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("# HELP ") {
            // The metric's name depends on the type, which is on the next line.
            help = found.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|found| found.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                let _ = writeln!(out, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            let series = line.rsplit_once(EXEMPLAR).map_or(line, |(series, _)| series);
            out.push_str(series);
            out.push('\n');
        }
    }
    out
}

/// Metrics of this process, with the names of Prometheus' own client libraries and without a prefix. They are read at
/// each scrape, and not exported if `/proc` is not readable.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(process) = Process::myself() else { return Ok(()) };
        let Ok(stat) = process.stat() else { return Ok(()) };
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;

        let cpu = ConstCounter::new(seconds(stat.utime.saturating_add(stat.stime)));
        let help = "User and system time that the process has taken, in seconds";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;

        let started = procfs::boot_time_secs().ok().map(|boot| boot as f64 + seconds(stat.starttime));
        let open_files = process.fd_count().ok().map(|count| count as f64);
        let max_files = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as f64),
            LimitValue::Unlimited => None,
        });
        let resident = stat.rss.saturating_mul(procfs::page_size()) as f64;
        for (name, help, value) in [
            ("process_start_time_seconds", "When the process was started, in seconds since 1970", started),
            ("process_resident_memory_bytes", "Memory of the process that is resident, in bytes", Some(resident)),
            (
                "process_virtual_memory_bytes",
                "Address space that the process has reserved, in bytes",
                Some(stat.vsize as f64),
            ),
            ("process_threads", "Threads of the process", Some(stat.num_threads as f64)),
            ("process_open_fds", "File descriptors that are open", open_files),
            ("process_max_fds", "File descriptors that may be open", max_files),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    use http::HeaderValue;
    use opentelemetry::trace::TraceId;
    use pillion_engine::decision::Outcome;
    use pillion_engine::review::Endpoint;

    use super::*;
    use crate::metrics::{Metrics, RequestOutcome, Tenant};

    fn accepted(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        Format::accepted(&headers)
    }

    #[test]
    fn openmetrics_is_sent_if_accepted() {
        // The `Accept` header of Prometheus 2.42 and 3.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(accepted(prometheus), Format::OpenMetrics);
        assert_eq!(accepted("text/plain, application/openmetrics-text; version=1.0.0; q=0.1"), Format::OpenMetrics);
        for other in ["*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0", "text/html", ";,;=", ""] {
            assert_eq!(accepted(other), Format::Classic, "{other}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Classic);
    }

    #[test]
    fn exemplars_are_in_openmetrics_only() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let outcome = RequestOutcome::Decided(Outcome::Injected);
        let trace = TraceId::from_bytes([0xab; 16]);
        let tenant = Tenant::default();
        for (micros, trace) in [(700, None), (300, Some(trace)), (1_000_000, Some(trace)), (60_000_000, Some(trace))] {
            metrics.answered(Endpoint::Any, outcome, Duration::from_micros(micros), trace, &tenant);
        }
        let exposition = Exposition::from(registry);
        let open = exposition.text(Format::OpenMetrics).unwrap();
        for (bound, count, value) in [("0.0005", 1, "0.0003"), ("1.0", 3, "1.0"), ("+Inf", 4, "60.0")] {
            let expected = format!(
                "pillion_admission_duration_seconds_bucket{{le=\"{bound}\",outcome=\"injected\"}} {count} # \
                 {{trace_id=\"{trace}\"}} {value} "
            );
            let line = open.lines().find(|line| line.starts_with(&expected));
            let at = line.unwrap_or_else(|| panic!("{expected} is not in\n{open}")).strip_prefix(&expected).unwrap();
            assert!(at.parse::<f64>().unwrap() > 1.7e9, "{at}");
        }
        assert_eq!(open.matches("trace_id").count(), 3, "an untraced request has no exemplar");
        assert!(!exposition.text(Format::Classic).unwrap().contains("trace_id"));
    }

    #[test]
    fn classic_format_has_full_names_and_no_exemplars() {
        let open = "# HELP things Things.\n# TYPE things counter\n# UNIT things things\nthings_total{a=\"# b\"} 3 # {trace_id=\"7\"} 1.0 9.5\n\
                    # HELP build The build.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n\
                    # HELP now Now.\n# TYPE now gauge\nnow 1\n# EOF\n";
        let expected = "# HELP things_total Things.\n# TYPE things_total counter\nthings_total{a=\"# b\"} 3\n\
                        # HELP build_info The build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
                        # HELP now Now.\n# TYPE now gauge\nnow 1\n";
        assert_eq!(classic(open), expected);
    }

    fn value(name: &str) -> f64 {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
        let text = crate::counters::text(&registry);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    #[test]
    fn exports_metrics_of_this_process() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started = value("process_start_time_seconds");
        assert!(started < now + 2.0 && started > now - 24.0 * 3600.0, "{started}, now {now}");
        // More than a megabyte, and less than any machine has.
        for name in ["process_resident_memory_bytes", "process_virtual_memory_bytes"] {
            assert!(value(name) > 1e6 && value(name) < 1e15, "{name} {}", value(name));
        }
        assert!(value("process_threads") >= 1.0);

        let before = value("process_open_fds");
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let more = value("process_open_fds");
        // Other tests open and close files at the same time.
        assert!(more >= before + 50.0 && more < value("process_max_fds"), "{before}, then {more}");
        drop(held);

        let (before, end) = (value("process_cpu_seconds_total"), Instant::now() + Duration::from_secs(20));
        while value("process_cpu_seconds_total") < before + 0.05 {
            assert!(Instant::now() < end, "CPU time is not counted");
        }
    }
}
