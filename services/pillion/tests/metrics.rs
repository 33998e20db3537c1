//! Tests that the pages in `docs` list exactly the metrics, labels, values and buckets that the program exports. A real
//! Prometheus scrapes real replicas, runs every documented query, and finds the trace of a request from its exemplar.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use pillion_engine::decision::Reason;
use pillion_testkit::tools;

use crate::support::eventually;
use crate::support::metrics_page::{differences, exported, merge, page, page_of};
use crate::support::prometheus::Prometheus;
use crate::support::replicas::{Dev, Unconnected};

/// Metrics whose series do not exist before their first event. Another test compares their documented label values with
/// the list in the program.
const BY_OCCURRENCE: [&str; 1] = ["pillion_webhook_decisions_total"];

#[test]
fn metrics_page_matches_exported_metrics() {
    let (dev, webhook) = (Dev::start(&[]), Unconnected::webhook(&[]));
    dev.inject("");
    let mut shown = exported(&dev.scrape());
    merge(&mut shown, exported(&webhook.scrape()));
    let found = differences(&page().metrics, &shown, &BY_OCCURRENCE);
    assert!(found.is_empty(), "docs/metrics.md and the program differ:\n  {}", found.join("\n  "));
}

#[test]
fn controller_page_matches_exported_metrics() {
    let shown = exported(&Unconnected::controller().scrape());
    let mut documented = page_of("controller-metrics.md").metrics;
    // A metric without any series is not exported at all.
    assert!(documented.remove("pillion_controller_pod_upgrades_total").is_some());
    let found = differences(&documented, &shown, &[]);
    assert!(found.is_empty(), "docs/controller-metrics.md and the program differ:\n  {}", found.join("\n  "));
}

#[test]
fn page_lists_every_reason() {
    let page = page();
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
    assert_eq!(page.sections.get("reasons"), Some(&reasons));
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md")).unwrap();
    for reason in Reason::ALL {
        let row = format!("| `{reason}` | {} |", reason.sentence());
        assert!(text.lines().any(|line| line == row), "docs/metrics.md has no row {row}");
    }
}

#[test]
fn differences_are_explained() {
    let scrape = "# TYPE a_total counter\na_total{x=\"1\"} 0\na_total{x=\"2\"} 0\n# TYPE b histogram\nb_bucket{le=\"0.5\"} 1\n\
                  b_bucket{le=\"+Inf\"} 1\nb_sum 1\nb_count 1\n# TYPE c gauge\nc 1\n";
    let good = exported(scrape);
    assert!(differences(&good, &good, &[]).is_empty());
    for (more, expected) in [
        ("# TYPE d gauge\nd{y=\"1\"} 1\n", "d (gauge; y={\"1\"}) is exported: add a row for it"),
        ("a_total{x=\"3\"} 0\n", "a_total is exported with x [\"3\"]: add it to its row"),
        ("a_total{y=\"3\"} 0\n", "a_total has the label y ({\"3\"}): add it to its row"),
        ("b_bucket{le=\"1.0\"} 0\n", "b is exported with le [\"1.0\"]: add it to its row"),
        ("# TYPE c counter\nc 1\n", "c is a counter, but the page has gauge"),
    ] {
        assert_eq!(differences(&good, &exported(&format!("{scrape}{more}")), &[]), [expected]);
    }
    for (less, expected) in [
        ("# TYPE c gauge\nc 1\n", "c is on the page, but is not exported: remove its row"),
        ("a_total{x=\"2\"} 0\n", "a_total is on the page with x [\"2\"], which is not exported"),
        ("b_bucket{le=\"0.5\"} 1\n", "b is on the page with le [\"0.5\"], which is not exported"),
    ] {
        assert_eq!(differences(&good, &exported(&scrape.replace(less, "")), &[]), [expected]);
    }
}

#[test]
fn number_of_series_is_bounded() {
    let series = |scrape: &str| scrape.lines().filter(|line| !line.starts_with('#')).count();
    let (replica, controller) =
        (series(&Unconnected::webhook(&[]).scrape()), series(&Unconnected::controller().scrape()));
    println!("{replica} series of a replica at the start, {controller} of a controller");
    assert!(replica <= 400, "{replica}");
    // Each tenant and each profile adds three series.
    assert!(controller <= 250, "{controller}");
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// A trace that its sender has not sampled, so the program does not sample it either.
const UNSAMPLED: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn traced(trace: &str, kept: bool) -> String {
    format!("traceparent: 00-{trace}-b7ad6b7169203331-0{}\r\n", u8::from(kept))
}

#[test]
fn documented_queries_and_exemplars_work() {
    // The sender decides whether a request is sampled. No collector receives these traces.
    let collector = ["--otlp-endpoint", "http://127.0.0.1:1", "--trace-ratio", "0"];
    let (dev, webhook) = (Dev::start(&collector), Unconnected::webhook(&[]));
    let prometheus = Prometheus::scraping(&[&dev.operations, &webhook.operations]);
    eventually("both replicas are scraped", || (prometheus.query("sum(up)").unwrap() == [2.0]).then_some(()));

    let load = || {
        dev.inject(&traced(TRACE, true));
        dev.inject(&traced(UNSAMPLED, false));
        dev.inject("");
        dev.send_nonsense();
    };
    let queries = page().queries;
    assert!(queries.len() > 30, "the page has {} queries", queries.len());
    for query in &queries {
        let mut last = Err("not queried yet".to_owned());
        eventually(&format!("{query}\nreturns a number"), || {
            load();
            last = prometheus.query(query);
            // An invalid query remains invalid, so the test fails at once.
            let values = last.as_ref().unwrap_or_else(|error| panic!("{query}\n{error}"));
            (!values.is_empty() && values.iter().all(|value| !value.is_nan())).then_some(())
        });
    }

    let found = eventually("the exemplar exists", || {
        let window = format!("start={}&end={}&", 0, 1e10);
        let selector = "pillion_webhook_request_duration_seconds_bucket";
        let data = prometheus.api(&format!("query_exemplars?{window}"), selector).unwrap();
        data.as_array().filter(|series| !series.is_empty()).map(|_| data.clone())
    });
    let series = found.as_array().unwrap();
    let exemplars = || series.iter().flat_map(|series| series["exemplars"].as_array().unwrap());
    assert!(exemplars().all(|exemplar| exemplar["labels"]["trace_id"] == TRACE), "{found:#}");
    assert!(series.iter().all(|series| series["seriesLabels"]["outcome"] == "injected"), "{found:#}");
    for level in ["level=error", "level=ERROR", "level=warn", "level=WARN"] {
        assert!(!prometheus.log().contains(level), "{}", prometheus.log());
    }
}

#[test]
fn documented_controller_alerts_have_data() {
    let controller = Unconnected::controller();
    let prometheus = Prometheus::scraping(&[&controller.operations]);
    eventually("the controller is scraped", || (prometheus.query("sum(up)").unwrap() == [1.0]).then_some(()));
    let queries = page_of("controller-metrics.md").queries;
    assert!(queries.len() >= 8, "{queries:?}");
    for query in &queries {
        prometheus.query(query).unwrap_or_else(|error| panic!("{query}\n{error}"));
        // The measured value exists, whether or not the alert fires.
        let measured = query.rsplit_once(" < ").or_else(|| query.rsplit_once(" > ")).unwrap().0;
        eventually(&format!("{measured}\nreturns a number"), || {
            let values = prometheus.query(measured).unwrap();
            (!values.is_empty() && values.iter().all(|value| !value.is_nan())).then_some(())
        });
    }
}

/// Returns promtool's messages about a page of metrics, or an empty string.
pub(crate) fn lint(scrape: &str) -> String {
    let mut child = Command::new(tools::program("promtool").unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.success(), messages.is_empty(), "{messages}");
    messages
}

#[test]
fn promtool_accepts_the_metrics() {
    let (dev, webhook) = (Dev::start(&[]), Unconnected::webhook(&[]));
    dev.inject("");
    for scrape in [dev.scrape(), webhook.scrape(), Unconnected::controller().scrape()] {
        let messages = lint(&scrape);
        assert!(messages.is_empty(), "{messages}");
    }
    assert!(lint("# TYPE things counter\nthings 1\n").contains("_total"), "promtool did not read its input");
}
