//! `docs/metrics.md` has every metric, label, value and bucket that the program exports, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::metrics_page::{differences, exported, merge, page, page_of};
use crate::support::replicas::{Controller, Dev, TENANTS, Webhook};
use pillion_engine::decision::Reason;

/// Of these, a pair of values has its series once it came up; their values are held against the program's own lists.
const BY_OCCURRENCE: [&str; 1] = ["pillion_decisions_total"];

#[test]
fn the_page_has_what_is_exported_and_nothing_else() {
    let (dev, webhook) = (Dev::start(&[TENANTS]), Webhook::start(&[TENANTS]));
    dev.inject("");
    let mut shown = exported(&dev.scrape());
    merge(&mut shown, exported(&webhook.scrape()));
    let found = differences(&page().metrics, &shown, &BY_OCCURRENCE);
    assert!(found.is_empty(), "docs/metrics.md and the program differ:\n  {}", found.join("\n  "));
}

#[test]
fn the_controllers_page_has_what_it_exports_and_nothing_else() {
    let shown = exported(&Controller::start().scrape());
    let found = differences(&page_of("controller-metrics.md").metrics, &shown, &[]);
    assert!(found.is_empty(), "docs/controller-metrics.md and the program differ:\n  {}", found.join("\n  "));
}

#[test]
fn the_page_has_every_reason() {
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
fn each_kind_of_difference_is_told_with_what_is_to_be_done() {
    let scrape = "# TYPE a_total counter\na_total{x=\"1\"} 0\na_total{x=\"2\"} 0\n# TYPE b histogram\nb_bucket{le=\"0.5\"} 1\n\
                  b_bucket{le=\"+Inf\"} 1\nb_sum 1\nb_count 1\n# TYPE c gauge\nc 1\n";
    let good = exported(scrape);
    assert!(differences(&good, &good, &[]).is_empty());
    for (more, expected) in [
        ("# TYPE d gauge\nd{y=\"1\"} 1\n", "d (gauge; y={\"1\"}) is exported: add a row for it"),
        ("a_total{x=\"3\"} 0\n", "a_total is exported with x [\"3\"]: add it to its row"),
        ("a_total{y=\"3\"} 0\n", "a_total has the label y ({\"3\"}): add it to its row"),
        ("b_bucket{le=\"1.0\"} 0\n", "b is exported with le [\"1.0\"]: add it to its row"),
        ("# TYPE c counter\nc 1\n", "c is a counter, and the page says gauge"),
    ] {
        assert_eq!(differences(&good, &exported(&format!("{scrape}{more}")), &[]), [expected]);
    }
    for (less, expected) in [
        ("# TYPE c gauge\nc 1\n", "c is on the page, and nobody exports it: take its row away"),
        ("a_total{x=\"2\"} 0\n", "a_total is on the page with x [\"2\"], and nobody exports it"),
        ("b_bucket{le=\"0.5\"} 1\n", "b is on the page with le [\"0.5\"], and nobody exports it"),
    ] {
        assert_eq!(differences(&good, &exported(&scrape.replace(less, "")), &[]), [expected]);
    }
}

#[test]
fn a_replica_has_no_more_series_than_the_page_says() {
    let series = |scrape: &str| scrape.lines().filter(|line| !line.starts_with('#')).count();
    let replica = series(&Webhook::start(&[]).scrape());
    // Each reason comes with one outcome; those that `onError` is about, with two.
    let at_most = replica + Reason::ALL.len() + 10;
    assert!(at_most <= 410, "{replica} series and {} reasons", Reason::ALL.len());
    let with_tenants = at_most + 200 + 4 * 500;
    assert!(with_tenants <= 3000, "{with_tenants}");
    println!("{replica} series at the start");
}
