//! Encodes the text of `/metrics`: as `OpenMetrics` for clients that accept it, such as Prometheus, and in the older
//! text format for all others (`promtool check metrics`, older scrapers, curl).
//!
//! The client library writes only `OpenMetrics`, so this module converts its text to the older format.

use std::fmt::{self, Write};

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::registry::Registry;

/// The start of an exemplar at the end of a line. No label value contains this string.
const EXEMPLAR: &str = " # {";

/// The text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4, which has no exemplars.
    Classic,
}

impl Format {
    /// Returns the format for a client that sent these headers.
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

/// Converts `OpenMetrics` to the older text format. In that format, the HELP and TYPE lines of a counter include
/// `_total`, an info is a gauge, and there are no exemplars.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("# HELP ") {
            // The metric's name in the output depends on its type, which follows on the next line.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;
    use opentelemetry::trace::TraceId;
    use pillion_engine::decision::Outcome;
    use pillion_engine::review::Endpoint;

    use super::*;
    use crate::metrics::{Metrics, RequestOutcome};

    fn accepted(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        Format::accepted(&headers)
    }

    #[test]
    fn openmetrics_is_sent_if_accepted() {
        // The `Accept` header of Prometheus 2.42.
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
        for (micros, trace) in [(700, None), (300, Some(trace)), (1_000_000, Some(trace)), (60_000_000, Some(trace))] {
            metrics.answered(Endpoint::Any, outcome, Duration::from_micros(micros), trace);
        }
        let exposition = Exposition::from(registry);
        let open = exposition.text(Format::OpenMetrics).unwrap();
        for (bound, count, value) in [("0.0005", 1, "0.0003"), ("1.0", 3, "1.0"), ("+Inf", 4, "60.0")] {
            let expected = format!(
                "pillion_webhook_request_duration_seconds_bucket{{le=\"{bound}\",outcome=\"injected\"}} {count} # \
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
}
