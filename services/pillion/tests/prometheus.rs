//! A real Prometheus scrapes real replicas: it takes what they export, answers every query of `docs/metrics.md`, and finds
//! the trace of a request by its exemplar.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::eventually;
use crate::support::metrics_page::{page, page_of};
use crate::support::prometheus::Prometheus;
use crate::support::replicas::{Controller, Dev, TENANTS, Webhook};
use pillion_testkit::tools;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// Its sender does not keep it, so nor do we.
const UNSAMPLED: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn traced(trace: &str, kept: bool) -> String {
    format!("traceparent: 00-{trace}-b7ad6b7169203331-0{}\r\n", u8::from(kept))
}

#[test]
fn prometheus_answers_every_query_of_the_page_and_finds_the_trace_of_a_request() {
    // Whose traces are kept is the senders' to say. Nobody receives them here.
    let collector = [TENANTS, "--otlp-endpoint", "http://127.0.0.1:1", "--trace-ratio", "0"];
    let (dev, webhook) = (Dev::start(&collector), Webhook::start(&[TENANTS]));
    let prometheus = Prometheus::scraping(&[&dev.operations, &webhook.operations]);
    eventually("both are scraped", || (prometheus.query("sum(up)").unwrap() == [2.0]).then_some(()));

    let load = || {
        dev.inject(&traced(TRACE, true));
        dev.inject(&traced(UNSAMPLED, false));
        dev.inject("");
        dev.send_nonsense();
    };
    let queries = page().queries;
    assert!(queries.len() > 30, "the page has {} queries", queries.len());
    for query in &queries {
        let mut last = Err("never asked".to_owned());
        eventually(&format!("{query}\nfinds something that is a number"), || {
            load();
            last = prometheus.query(query);
            // What it does not understand it will not understand later.
            let values = last.as_ref().unwrap_or_else(|error| panic!("{query}\n{error}"));
            (!values.is_empty() && values.iter().all(|value| !value.is_nan())).then_some(())
        });
    }

    let found = eventually("the exemplar is there", || {
        let window = format!("start={}&end={}&", 0, 1e10);
        let selector = "pillion_admission_duration_seconds_bucket";
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
fn every_alarm_of_the_controllers_page_is_about_something_that_is_measured() {
    let controller = Controller::start();
    let prometheus = Prometheus::scraping(&[&controller.operations]);
    eventually("it is scraped", || (prometheus.query("sum(up)").unwrap() == [1.0]).then_some(()));
    let queries = page_of("controller-metrics.md").queries;
    assert!(queries.len() >= 8, "{queries:?}");
    for query in &queries {
        prometheus.query(query).unwrap_or_else(|error| panic!("{query}\n{error}"));
        // What is compared has to be there, whether the alarm is raised or not.
        let measured = query.rsplit_once(" < ").or_else(|| query.rsplit_once(" > ")).unwrap().0;
        eventually(&format!("{measured}\nfinds something that is a number"), || {
            let values = prometheus.query(measured).unwrap();
            (!values.is_empty() && values.iter().all(|value| !value.is_nan())).then_some(())
        });
    }
}

/// What promtool says against metrics of this text; empty if nothing.
fn lint(scrape: &str) -> String {
    let mut child = Command::new(tools::program("promtool").unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn promtool_has_nothing_to_say_against_the_metrics() {
    let (dev, webhook) = (Dev::start(&[TENANTS]), Webhook::start(&[TENANTS]));
    dev.inject("");
    for scrape in [dev.scrape(), webhook.scrape(), Controller::start().scrape()] {
        let said = lint(&scrape);
        assert!(said.is_empty(), "{said}");
    }
    assert!(lint("# TYPE things counter\nthings 1\n").contains("_total"), "promtool reads what it is given");
}
