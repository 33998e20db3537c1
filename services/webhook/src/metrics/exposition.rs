//! The text of `/metrics`: `OpenMetrics` for clients that accept it, such as Prometheus, and the older text format for
//! all others (`promtool check metrics`, older scrapers, curl).
//!
//! The client library writes only `OpenMetrics`, and takes exemplars only from its own histogram. So this module adds
//! exemplars to the lines of their buckets, and converts the text to the older format.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::UNIX_EPOCH;

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::registry::Registry;

use super::requests::Durations;

/// The text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4, which has no exemplars.
    Classic,
}

impl Format {
    /// Returns the format to use for a scraper with these headers.
    pub(crate) fn wanted(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_open = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let is_type = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            is_type && !parts.any(|parameter| parameter.strip_prefix("q=").is_some_and(is_zero))
        };
        if accepted.flat_map(|value| value.split(',')).any(is_open) { Self::OpenMetrics } else { Self::Classic }
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

/// The registered metrics, for `/metrics`.
#[derive(Debug, Default)]
pub struct Exposition {
    registry: Registry,
    durations: Option<Durations>,
}

impl From<Registry> for Exposition {
    fn from(registry: Registry) -> Self {
        Self { registry, durations: None }
    }
}

impl Exposition {
    /// Adds the traces of requests as exemplars.
    #[must_use]
    pub fn with_exemplars(self, metrics: &super::Metrics) -> Self {
        Self { durations: Some(metrics.durations.clone()), ..self }
    }

    /// Encodes all metrics.
    ///
    /// # Errors
    /// A metric cannot be encoded.
    pub(crate) fn text(&self, format: Format) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(32 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        match format {
            Format::OpenMetrics => {
                let exemplars = self.durations.as_ref().map(exemplars).unwrap_or_default();
                Ok(if exemplars.is_empty() { text } else { with_exemplars(&text, &exemplars) })
            }
            Format::Classic => Ok(classic(&text)),
        }
    }
}

/// Returns the encoded exemplars by their series.
fn exemplars(durations: &Durations) -> HashMap<String, String> {
    durations
        .exemplars()
        .map(|(outcome, bound, exemplar)| {
            // The client library writes 1.0 and not 1.
            let bound = if bound.is_finite() { format!("{bound:?}") } else { "+Inf".to_owned() };
            let series = format!("pillion_{}_bucket{{le=\"{bound}\",outcome=\"{outcome}\"}}", Durations::NAME);
            let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            (series, format!(" # {{trace_id=\"{}\"}} {:?} {at:.3}", exemplar.trace, exemplar.value))
        })
        .collect()
}

fn with_exemplars(text: &str, exemplars: &HashMap<String, String>) -> String {
    let longest = exemplars.values().map(String::len).max().unwrap_or_default();
    let mut out = String::with_capacity(text.len() + exemplars.len() * longest);
    for line in text.lines() {
        out.push_str(line);
        if let Some(exemplar) = line.rsplit_once(' ').and_then(|(series, _)| exemplars.get(series)) {
            out.push_str(exemplar);
        }
        out.push('\n');
    }
    out
}

/// Converts to the older text format. There, a counter's HELP and TYPE lines include `_total`, and an info is a gauge.
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
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;
    use opentelemetry::trace::TraceId;
    use pillion_engine::decision::Outcome;
    use pillion_engine::review::Endpoint;

    use super::*;
    use crate::metrics::{Metrics, RequestOutcome, Tenant};

    fn wanted(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        Format::wanted(&headers)
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        // The headers of Prometheus 2.42 and 3.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(wanted(prometheus), Format::OpenMetrics);
        assert_eq!(wanted("text/plain, application/openmetrics-text; version=1.0.0; q=0.1"), Format::OpenMetrics);
        for other in ["*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0", "text/html", ";,;=", ""] {
            assert_eq!(wanted(other), Format::Classic, "{other}");
        }
        assert_eq!(Format::wanted(&HeaderMap::new()), Format::Classic);
    }

    #[test]
    fn the_trace_of_a_request_stands_beside_its_bucket_in_openmetrics_only() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let outcome = RequestOutcome::Decided(Outcome::Injected);
        let trace = TraceId::from_bytes([0xab; 16]);
        let tenant = Tenant::default();
        for (micros, trace) in [(700, None), (300, Some(trace)), (1_000_000, Some(trace)), (60_000_000, Some(trace))] {
            metrics.answered(Endpoint::Any, outcome, Duration::from_micros(micros), trace, &tenant);
        }
        let exposition = Exposition::from(registry).with_exemplars(&metrics);
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
        assert_eq!(open.matches("trace_id").count(), 3, "none for what was not traced");
        assert!(!exposition.text(Format::Classic).unwrap().contains("trace_id"));
    }

    #[test]
    fn the_older_format_has_the_names_that_it_wants() {
        let open = "# HELP things Things.\n# TYPE things counter\n# UNIT things things\nthings_total{a=\"# b\"} 3\n\
                    # HELP build The build.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n\
                    # HELP now Now.\n# TYPE now gauge\nnow 1\n# EOF\n";
        let expected = "# HELP things_total Things.\n# TYPE things_total counter\nthings_total{a=\"# b\"} 3\n\
                        # HELP build_info The build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
                        # HELP now Now.\n# TYPE now gauge\nnow 1\n";
        assert_eq!(classic(open), expected);
    }
}
