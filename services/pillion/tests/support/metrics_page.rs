//! Parses a page of metrics in `docs` and the metrics of a scrape into the same structure, so that tests can compare
//! them.

#![expect(clippy::panic, reason = "tests and their helpers fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The description of a metric: its kind, and its labels with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Described {
    /// `counter`, `gauge` or `histogram`.
    pub(crate) kind: String,
    pub(crate) labels: BTreeMap<String, Values>,
}

/// The values of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) named: BTreeSet<String>,
    /// Whether other values may occur, such as names of objects in a cluster, or facts about the build.
    pub(crate) open: bool,
}

/// All metrics by name. As in the older text format, the names of counters end with `_total`.
pub(crate) type Metrics = BTreeMap<String, Described>;

/// The parsed page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) metrics: Metrics,
    /// The sections to which a label's values can refer, as in `[reasons](#reasons)`, each with the values in its
    /// table.
    pub(crate) sections: BTreeMap<String, BTreeSet<String>>,
    pub(crate) queries: Vec<String>,
}

/// Returns the parsed page of the webhook's metrics.
pub(crate) fn page() -> Page {
    page_of("metrics.md")
}

/// Parses the page of metrics with this name in `docs`.
pub(crate) fn page_of(name: &str) -> Page {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    read_page(&fs::read_to_string(path).unwrap())
}

fn read_page(text: &str) -> Page {
    let mut sections = BTreeMap::<String, BTreeSet<String>>::new();
    let (mut rows, mut queries, mut heading) = (Vec::new(), Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.to_lowercase().replace(' ', "-");
        } else if line == "```promql" {
            let query: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            queries.push(query.join("\n"));
        } else if line.starts_with("| `") {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            match cells.as_slice() {
                [word, _] => sections.entry(heading.clone()).or_default().extend(code(word)),
                [name, kind, _unit, labels, _meaning] => {
                    rows.push((code(name).remove(0), (*kind).to_owned(), (*labels).to_owned()));
                }
                _ => panic!("a row of docs/metrics.md has a wrong number of columns: {line}"),
            }
        }
    }
    let metrics = rows.into_iter().map(|(name, kind, labels)| {
        let labels = labels.split("<br>").filter(|label| !label.is_empty()).map(|label| read_label(label, &sections));
        (name, Described { kind, labels: labels.collect() })
    });
    Page { metrics: metrics.collect(), queries, sections }
}

/// Parses `` `label`: `value` `value` ``, or `` `label`: [words](#section) ``. Text in italics describes open values.
fn read_label(text: &str, sections: &BTreeMap<String, BTreeSet<String>>) -> (String, Values) {
    let (name, values) = text.split_once(':').unwrap_or_else(|| panic!("no colon after the label in {text:?}"));
    let mut named: BTreeSet<String> = code(values).into_iter().collect();
    if let Some((_, link)) = values.split_once("](#") {
        let section = link.split(')').next().unwrap();
        named.extend(sections.get(section).unwrap_or_else(|| panic!("no section {section}")).iter().cloned());
    }
    (code(name).remove(0), Values { named, open: values.contains('*') })
}

/// Returns the parts of `text` in backquotes.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// Parses a scrape in the older text format into its metrics.
pub(crate) fn exported(scrape: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in scrape.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            kind.clone_into(&mut metrics.entry(name.to_owned()).or_default().kind);
        } else if !line.starts_with('#') {
            let (name, labels) = read_series(line);
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
                let family = name.strip_suffix(suffix)?;
                metrics.get(family).is_some_and(|metric| metric.kind == "histogram").then_some(family)
            });
            let metric = metrics.entry(family.unwrap_or(name).to_owned()).or_default();
            for (label, value) in labels {
                metric.labels.entry(label).or_default().named.insert(value);
            }
        }
    }
    metrics
}

/// Returns the name and the labels of the series in a line of a scrape. The values of labels contain no quotes and no
/// commas.
pub(crate) fn read_series(line: &str) -> (&str, BTreeMap<String, String>) {
    let (series, _) = line.rsplit_once(' ').unwrap();
    let Some((name, labels)) = series.split_once('{') else { return (series, BTreeMap::new()) };
    let pair = |label: &str| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    (name, labels.trim_end_matches('}').split(',').map(pair).collect())
}

/// Adds the metrics `more`, which come from another scrape.
pub(crate) fn merge(into: &mut Metrics, more: Metrics) {
    for (name, metric) in more {
        let known = into.entry(name).or_default();
        known.kind = metric.kind;
        for (label, values) in metric.labels {
            known.labels.entry(label).or_default().named.extend(values.named);
        }
    }
}

/// Returns all differences between the page and the exported metrics, as sentences that suggest corrections. For the
/// metrics in `partial`, the program may export only some of the values on the page.
pub(crate) fn differences(page: &Metrics, exported: &Metrics, partial: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, metric) in exported {
        let Some(described) = page.get(name) else {
            let labels: Vec<_> =
                metric.labels.iter().map(|(label, values)| format!("{label}={:?}", values.named)).collect();
            found.push(format!("{name} ({}; {}) is exported: add a row for it", metric.kind, labels.join(", ")));
            continue;
        };
        if described.kind != metric.kind {
            found.push(format!("{name} is a {}, but the page has {}", metric.kind, described.kind));
        }
        for (label, values) in &metric.labels {
            let Some(known) = described.labels.get(label) else {
                found.push(format!("{name} has the label {label} ({:?}): add it to its row", values.named));
                continue;
            };
            let unknown: Vec<_> = values.named.difference(&known.named).collect();
            if !unknown.is_empty() && !known.open {
                found.push(format!("{name} is exported with {label} {unknown:?}: add it to its row"));
            }
        }
    }
    for (name, described) in page {
        let Some(metric) = exported.get(name) else {
            found.push(format!("{name} is on the page, but is not exported: remove its row"));
            continue;
        };
        for (label, known) in &described.labels {
            let shown = metric.labels.get(label).cloned().unwrap_or_default();
            let missing: Vec<_> = known.named.difference(&shown.named).collect();
            if !missing.is_empty() && !partial.contains(&name.as_str()) {
                found.push(format!("{name} is on the page with {label} {missing:?}, which is not exported"));
            }
        }
    }
    found
}
