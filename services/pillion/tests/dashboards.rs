//! Tests `dashboards/`: a real Prometheus scrapes the real program, and runs each query of each panel. Every panel must
//! have data, except those that their source marks as idle, and those of the API server's metrics. Each alert has a
//! runbook, and fires only if its condition is true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::eventually;
use crate::support::metrics_page::{page, page_of};
use crate::support::prometheus::Prometheus;
use crate::support::replicas::{Dev, Unconnected};
use pillion_testkit::dashboards::{Source, metrics_of};
use pillion_testkit::tools;
use serde_json::Value;

/// The prefix of the API server's metrics. Their panels are tested in `tests/e2e/dashboards.rs`, which scrapes the API
/// server.
const API_SERVER_PREFIX: &str = "apiserver";
/// Metrics that no panel shows. A comment must state the reason for each.
const NOT_SHOWN: [&str; 0] = [];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name).canonicalize().unwrap()
}

/// Returns the contents of the folder's files with this extension, keyed by file name without the extension.
fn files(name: &str, ending: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let wanted = entries.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    wanted
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect()
}

fn dashboards() -> BTreeMap<String, Value> {
    let files = files("dashboards", "json");
    files.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
}

/// Returns the panels of a dashboard, except the headings of rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap();
    panels.iter().filter(|panel| panel["type"] != "row").collect()
}

/// Returns the queries of a panel.
fn queries(panel: &Value) -> Vec<&str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap()).collect()
}

/// Replaces the variables of a query as Grafana does. Time windows are at most one minute long.
fn filled_in(query: &str) -> String {
    let values = [
        ("$__rate_interval", "8s"),
        ("$__range", "1m"),
        ("$cluster_label", "cluster"),
        ("$cluster", ".*"),
        ("$namespace", ".*"),
        ("$job", ".+"),
        ("$instance", ".+"),
        ("$tenant", ".*"),
        ("$profile", ".*"),
    ];
    let query = values.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
    assert!(!query.contains('$'), "an unknown variable of Grafana: {query}");
    query
}

/// A rule in `dashboards/rules`, with the name of its file.
#[derive(Debug)]
struct Rule {
    file: String,
    rule: Value,
}

impl Rule {
    fn text(&self, pointer: &str) -> &str {
        self.rule.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for (file, text) in files("dashboards/rules", "yaml") {
        let content: Value = serde_saphyr::from_str(&text).unwrap();
        for group in content["groups"].as_array().unwrap() {
            rules.extend(
                group["rules"].as_array().unwrap().iter().map(|rule| Rule { file: file.clone(), rule: rule.clone() }),
            );
        }
    }
    rules
}

fn alerts() -> Vec<Rule> {
    rules().into_iter().filter(|rule| rule.rule.get("alert").is_some()).collect()
}

/// Returns the names of all documented metrics. For a histogram, returns the names of its series.
fn documented() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, metric) in page().metrics.into_iter().chain(page_of("controller-metrics.md").metrics) {
        if metric.kind == "histogram" {
            names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        } else {
            names.insert(name);
        }
    }
    names
}

#[test]
fn dashboards_have_valid_layout_and_queries() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 8);
    let uids: BTreeSet<_> = dashboards.values().map(|dashboard| dashboard["uid"].as_str().unwrap()).collect();
    assert_eq!(uids.len(), dashboards.len());
    for (name, dashboard) in &dashboards {
        assert_eq!(dashboard["editable"], false);
        let ids: Vec<_> = dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{name}: duplicate ids");
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
        let mut expected = vec!["datasource", "cluster_label", "cluster"];
        expected.extend((name != API_SERVER_PREFIX).then_some("namespace"));
        expected.extend(["job", "instance"]);
        expected.extend(["tenant", "profile"].into_iter().filter(|variable| name.starts_with(variable)));
        assert_eq!(names, expected, "{name}");
        let mut places = BTreeSet::new();
        for panel in panels(dashboard) {
            let title = format!("{name}: {}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            for text in ["/title", "/description", "/fieldConfig/defaults/unit"] {
                assert!(
                    panel.pointer(text).and_then(Value::as_str).is_some_and(|text| !text.is_empty()),
                    "{title}: {text}"
                );
            }
            for column in 0..panel["gridPos"]["w"].as_u64().unwrap() {
                let cell = (panel["gridPos"]["x"].as_u64().unwrap() + column, panel["gridPos"]["y"].as_u64().unwrap());
                assert!(cell.0 < 24 && places.insert(cell), "{title} overlaps another panel, or the edge");
            }
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
                sound(&title, target["expr"].as_str().unwrap());
            }
        }
    }
}

/// Checks that a query of a panel filters each metric by the dashboard's variables, and that it reads counters only
/// over a time window.
fn sound(title: &str, query: &str) {
    for name in metrics_of(query) {
        let behind: Vec<_> = query.split(&*name).skip(1).filter(|rest| !rest.starts_with(['_', ':'])).collect();
        for rest in behind {
            let selector = rest
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'))
                .unwrap_or_else(|| panic!("{title}: {query}"))
                .0;
            assert!(selector.starts_with(r#"$cluster_label=~"$cluster", "#), "{title}: {query}");
            assert!(selector.contains(r#"job=~"$job", instance=~"$instance""#), "{title}: {query}");
            let window = rest.split_once('}').unwrap().1;
            let is_counter = ["_total", "_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix));
            if is_counter {
                let wanted = ["[$__rate_interval]", "[$__range]"];
                assert!(
                    wanted.iter().any(|wanted| window.starts_with(wanted)),
                    "{title}: a counter without its rate: {query}"
                );
            }
        }
    }
}

/// The latency objective in seconds: 99 % of the requests must end within this time.
const OBJECTIVE_SECONDS: &str = "0.025";

#[test]
fn latency_objective_is_the_same_everywhere() {
    let read = |path: &str| fs::read_to_string(folder(".").join(path)).unwrap();
    let mut found = 0;
    let texts = files("dashboards/source", "yaml").into_values().chain(files("dashboards/rules", "yaml").into_values());
    for text in texts.chain([read("docs/metrics.md")]) {
        for (_, bound) in text.match_indices("{le=\"").map(|(at, start)| text.split_at(at + start.len())) {
            assert!(bound.starts_with(&format!("{OBJECTIVE_SECONDS}\"")), "{}", bound.lines().next().unwrap());
            found += 1;
        }
    }
    assert!(found >= 6, "{found} queries use the objective");
    let millis = OBJECTIVE_SECONDS.parse::<f64>().unwrap() * 1000.0;
    for (path, expected) in [
        ("docs/metrics.md", format!("99 % of the requests are answered within {millis} ms")),
        ("dashboards/README.md", format!("99 % of the requests are answered within {millis} ms")),
        ("load-tests/lib/settings.js", format!("OBJECTIVE_MS = {millis};")),
    ] {
        assert!(read(path).contains(&expected), "{path} does not contain: {expected}");
    }
    let metric = &page().metrics["pillion_webhook_request_duration_seconds"];
    assert!(metric.labels["le"].named.contains(OBJECTIVE_SECONDS), "{metric:?}");
}

#[test]
fn metrics_are_documented_and_shown() {
    let documented = documented();
    let mut shown = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        for query in panels(&dashboard).into_iter().flat_map(queries) {
            for metric in metrics_of(query).into_iter().filter(|_| name != API_SERVER_PREFIX) {
                assert!(documented.contains(&metric), "{name}: no page of metrics documents {metric}: {query}");
                shown.insert(metric);
            }
        }
    }
    let recorded: BTreeSet<_> = rules().iter().map(|rule| rule.text("/record").to_owned()).collect();
    for rule in rules() {
        for metric in metrics_of(rule.text("/expr")).into_iter().filter(|name| !name.starts_with("apiserver_")) {
            assert!(
                documented.contains(&metric) || recorded.contains(&metric),
                "{}: no page of metrics documents {metric}",
                rule.file
            );
        }
    }
    let family = |name: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<_> = shown.iter().map(|name| family(name)).collect();
    let missing: Vec<_> = documented
        .iter()
        .map(|name| family(name))
        .filter(|name| !shown.contains(name) && !NOT_SHOWN.contains(&&**name))
        .collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
}

#[test]
fn all_panels_and_alerts_have_data() {
    let (dev, webhook, controller) = (Dev::start(&[]), Unconnected::webhook(&[]), Unconnected::controller());
    let config = format!(
        "scrape_configs:\n\
         - {{job_name: pillion, static_configs: [{{targets: {:?}, labels: {{namespace: pillion-system}}}}]}}\n\
         - {{job_name: pillion-controller, static_configs: [{{targets: {:?}, labels: {{namespace: pillion-system}}}}]}}\n",
        [&dev.operations, &webhook.operations],
        [&controller.operations]
    );
    let prometheus = Prometheus::with(&config, &[]);
    eventually("all targets are scraped", || (prometheus.query("sum(up)").unwrap() == [3.0]).then_some(()));
    let load = || {
        dev.inject("");
        dev.send_nonsense();
    };
    let sources = files("dashboards/source", "yaml");
    let idle: BTreeSet<_> = sources
        .iter()
        .flat_map(|(name, text)| {
            let rows = Source::read(text).unwrap().rows.into_iter().flat_map(|row| row.panels);
            rows.filter(|panel| panel.idle.is_some()).map(|panel| (name.clone(), panel.title)).collect::<Vec<_>>()
        })
        .collect();
    let mut asked = 0;
    for (name, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            for query in queries(panel).into_iter().map(filled_in) {
                asked += 1;
                if name == API_SERVER_PREFIX || idle.contains(&(name.clone(), title.to_owned())) {
                    prometheus.query(&query).unwrap_or_else(|error| panic!("{name}: {title}: {query}\n{error}"));
                    continue;
                }
                eventually(&format!("{name}: {title}: {query}\nreturns a number"), || {
                    load();
                    let values =
                        prometheus.query(&query).unwrap_or_else(|error| panic!("{name}: {title}: {query}\n{error}"));
                    (!values.is_empty() && values.iter().any(|value| !value.is_nan())).then_some(())
                });
            }
        }
    }
    assert!(asked > 100, "{asked} queries");
    for rule in rules() {
        let query = rule.text("/expr");
        prometheus.query(query).unwrap_or_else(|error| panic!("{}: {query}\n{error}", rule.file));
        // The metrics of an alert must exist, whether or not the alert fires.
        for metric in
            metrics_of(query).into_iter().filter(|name| !name.starts_with("apiserver_") && !name.contains(':'))
        {
            // During a slow scrape, the result is empty for a moment, so the test retries.
            eventually(&format!("{}: {metric} is exported: {query}", rule.file), || {
                (!prometheus.query(&format!("count({metric})")).unwrap().is_empty()).then_some(())
            });
        }
    }
    println!("{asked} queries of panels, {} rules", rules().len());
}

/// Runs promtool on files. Returns its output as the error if it fails.
fn promtool(arguments: &[&str], files: &[PathBuf]) -> Result<String, String> {
    let output = Command::new(tools::program("promtool").unwrap()).args(arguments).args(files).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text) } else { Err(text) }
}

fn paths(name: &str) -> Vec<PathBuf> {
    files(name, "yaml").into_keys().map(|file| folder(name).join(file + ".yaml")).collect()
}

#[test]
fn promtool_accepts_rules_and_their_tests() {
    let rules = paths("dashboards/rules");
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &rules).unwrap_or_else(|output| panic!("{output}"));
    let output =
        promtool(&["test", "rules"], &paths("dashboards/rules/tests")).unwrap_or_else(|output| panic!("{output}"));
    println!("{output}");
}

#[test]
fn every_alert_has_positive_and_negative_test() {
    let (mut fires, mut rests) = (BTreeSet::new(), BTreeSet::new());
    for text in files("dashboards/rules/tests", "yaml").into_values() {
        let content: Value = serde_saphyr::from_str(&text).unwrap();
        for test in content["tests"].as_array().unwrap() {
            for case in test["alert_rule_test"].as_array().into_iter().flatten() {
                let name = case["alertname"].as_str().unwrap().to_owned();
                let raised = case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
                if raised {
                    fires.insert(name)
                } else {
                    rests.insert(name)
                };
            }
        }
    }
    let alerts: BTreeSet<_> = alerts().iter().map(|rule| rule.text("/alert").to_owned()).collect();
    assert_eq!(fires, alerts, "left: tested to fire; right: the alerts");
    assert_eq!(rests, alerts, "left: tested not to fire; right: the alerts");
}

#[test]
fn every_alert_has_description_and_runbook() {
    let mut names = BTreeSet::new();
    for rule in alerts() {
        let name = rule.text("/alert");
        assert!(names.insert(name.to_owned()), "{name} is a duplicate");
        assert!(name.starts_with("Pillion"), "{name}");
        assert!(["critical", "warning", "info"].contains(&rule.text("/labels/severity")), "{name}");
        for annotation in ["summary", "description"] {
            let text = rule.rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(text.len() > 20 && text.ends_with('.'), "{name}: {annotation}: {text:?}");
        }
        let url = format!("{}/blob/main/docs/runbooks/{name}.md", env!("CARGO_PKG_REPOSITORY"));
        assert_eq!(rule.text("/annotations/runbook_url"), url);
    }
    let runbooks: BTreeSet<_> = files("docs/runbooks", "md").into_keys().filter(|name| name != "README").collect();
    assert_eq!(runbooks, names, "left: runbooks; right: alerts");
    let index = fs::read_to_string(folder("docs/runbooks").join("README.md")).unwrap();
    for name in &names {
        assert!(index.contains(&format!("({name}.md)")), "docs/runbooks/README.md does not name {name}");
    }
}

#[test]
fn runbooks_have_sections_known_metrics_and_panels() {
    let known = documented();
    let dashboards = dashboards();
    let titles: BTreeSet<_> =
        dashboards.values().flat_map(panels).map(|panel| panel["title"].as_str().unwrap()).collect();
    for (name, text) in files("docs/runbooks", "md").into_iter().filter(|(name, _)| name != "README") {
        let headings: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {name}");
        assert_eq!(headings, [&*title, "## What it means", "## How to see it", "## What to do"], "{name}");
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            let is_metric = word.starts_with("pillion_");
            let is_known = known.contains(word) || known.contains(&format!("{word}_bucket"));
            assert!(!is_metric || is_known, "{name}: there is no metric {word}");
        }
        let emphasized = text.split('*').skip(1).step_by(2).filter(|text| text.starts_with(char::is_uppercase));
        for title in emphasized {
            assert!(titles.contains(title), "{name}: no dashboard has a panel {title}");
        }
    }
}
