//! Renders Grafana dashboards from the short sources in `dashboards/source`. Adds the settings that all panels and
//! queries share.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The width of Grafana's grid, in columns.
const COLUMNS: u64 = 24;
/// The schema version of Grafana 12. Older versions of Grafana accept it too.
const SCHEMA: u64 = 42;

/// The source of a dashboard.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    title: String,
    description: String,
    /// A metric that every target of the dashboard exports. The dashboard's variables offer the values of its labels.
    metric: String,
    /// Further dashboard variables: each is a label, with a metric that has this label. Queries must use the variables
    /// explicitly.
    #[serde(default)]
    variables: std::collections::BTreeMap<String, String>,
    /// The rows of panels.
    pub rows: Vec<Row>,
}

/// A titled row of panels.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    title: String,
    /// The panels, from left to right.
    pub panels: Vec<Panel>,
}

/// A panel with its queries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    /// The title that Grafana shows.
    pub title: String,
    description: String,
    #[serde(default)]
    kind: Kind,
    unit: String,
    width: Option<u64>,
    /// Why the panel's queries may return no data in a test without a cluster. `None`: they must return data.
    pub idle: Option<String>,
    /// The colours, each with the lowest value that has this colour. `None`: the colour applies to all lower values.
    #[serde(default)]
    thresholds: Vec<(Option<f64>, String)>,
    /// The text and the colour that Grafana shows instead of certain values.
    #[serde(default)]
    mappings: std::collections::BTreeMap<String, (String, String)>,
    #[serde(default)]
    stack: bool,
    #[serde(default)]
    exemplars: bool,
    queries: Vec<Query>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Lines,
    Stat,
    State,
    Table,
    Bars,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    expr: String,
    legend: Option<String>,
}

impl Source {
    /// Parses a source.
    ///
    /// # Errors
    /// The source is invalid; the error names the position.
    pub fn read(text: &str) -> anyhow::Result<Self> {
        Ok(serde_saphyr::from_str(text)?)
    }

    /// Returns the dashboard for Grafana. Its id contains `name`.
    #[must_use]
    pub fn render(&self, name: &str) -> Value {
        let mut panels = Vec::new();
        let (mut id, mut y) = (0, 0);
        for row in &self.rows {
            id += 1;
            let place = json!({"h": 1, "w": COLUMNS, "x": 0, "y": y});
            panels.push(json!({"collapsed": false, "gridPos": place, "id": id, "panels": [], "title": row.title, "type": "row"}));
            y += 1;
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                let (width, panel_height) = panel.size();
                if x + width > COLUMNS {
                    (x, y, height) = (0, y + height, 0);
                }
                id += 1;
                panels.push(panel.render(id, &json!({"h": panel_height, "w": width, "x": x, "y": y}), &self.metric));
                x += width;
                height = height.max(panel_height);
            }
            y += height;
        }
        json!({
            "annotations": {"list": []},
            "description": self.description,
            "editable": false,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "links": [{
                "asDropdown": true, "icon": "external link", "includeVars": true, "keepTime": true, "tags": ["pillion"],
                "targetBlank": false, "title": "Pillion", "tooltip": "", "type": "dashboards", "url": ""
            }],
            "panels": panels,
            "refresh": "30s",
            "schemaVersion": SCHEMA,
            "tags": ["pillion"],
            "templating": {"list": self.variables()},
            "time": {"from": "now-3h", "to": "now"},
            "timepicker": {},
            "timezone": "",
            "title": self.title,
            "uid": format!("pillion-{name}"),
            "version": 1
        })
    }

    fn variables(&self) -> Vec<Value> {
        let labels: &[&str] = if self.is_of_api_servers() {
            &["cluster", "job", "instance"]
        } else {
            &["cluster", "namespace", "job", "instance"]
        };
        let mut variables = vec![
            json!({
                "current": {}, "hide": 0, "includeAll": false, "label": "Data source", "multi": false, "name": "datasource",
                "options": [], "query": "prometheus", "refresh": 1, "regex": "", "skipUrlSync": false, "type": "datasource"
            }),
            json!({
                "current": {"selected": true, "text": "cluster", "value": "cluster"}, "hide": 0, "label": "cluster label",
                "name": "cluster_label", "options": [{"selected": true, "text": "cluster", "value": "cluster"}],
                "query": "cluster", "skipUrlSync": false, "type": "textbox"
            }),
        ];
        let mut narrower = String::new();
        for name in labels {
            let label = if *name == "cluster" { "$cluster_label" } else { name };
            variables.push(variable(name, label, &self.metric, &narrower));
            let separator = if narrower.is_empty() { "" } else { ", " };
            narrower.extend([separator, label, "=~\"$", name, "\""]);
        }
        for (name, metric) in &self.variables {
            variables.push(variable(name, name, metric, &narrower));
        }
        variables
    }

    fn is_of_api_servers(&self) -> bool {
        self.metric.starts_with("apiserver_")
    }
}

impl Panel {
    fn size(&self) -> (u64, u64) {
        match self.kind {
            Kind::Stat => (self.width.unwrap_or(4), 4),
            _ => (self.width.unwrap_or(8), 8),
        }
    }

    fn render(&self, id: u64, place: &Value, metric: &str) -> Value {
        let (kind, options, custom) = self.kind.settings(self.stack);
        let steps: Vec<_> =
            self.thresholds.iter().map(|(value, color)| json!({"color": color, "value": value})).collect();
        let steps = if steps.is_empty() { vec![json!({"color": "text", "value": null})] } else { steps };
        let mappings: Map<_, _> = (self.mappings.iter().enumerate())
            .map(|(index, (value, (text, color)))| {
                (value.clone(), json!({"color": color, "index": index, "text": text}))
            })
            .collect();
        let mappings = if mappings.is_empty() { json!([]) } else { json!([{"options": mappings, "type": "value"}]) };
        let targets = self.queries.iter().zip('A'..).map(|(query, letter)| {
            let now = matches!(self.kind, Kind::Stat | Kind::Table | Kind::Bars);
            json!({
                "datasource": datasource(), "editorMode": "code", "exemplar": self.exemplars, "expr": expression(&query.expr, metric),
                "format": if self.kind == Kind::Table { "table" } else { "time_series" }, "instant": now,
                "legendFormat": query.legend.as_deref().unwrap_or("__auto"), "range": !now, "refId": letter.to_string()
            })
        });
        json!({
            "datasource": datasource(),
            "description": self.description,
            "fieldConfig": {
                "defaults": {
                    "color": {"mode": if self.kind.is_by_value() { "thresholds" } else { "palette-classic" }},
                    "custom": custom, "mappings": mappings, "noValue": "nothing",
                    "thresholds": {"mode": "absolute", "steps": steps}, "unit": self.unit
                },
                "overrides": []
            },
            "gridPos": place,
            "id": id,
            "options": options,
            "targets": targets.collect::<Vec<_>>(),
            "title": self.title,
            "type": kind
        })
    }
}

impl Kind {
    /// Returns whether the colour of a panel depends on the value instead of the series.
    const fn is_by_value(self) -> bool {
        matches!(self, Self::Stat | Self::State)
    }

    /// Returns Grafana's name for this kind, the panel's options, and the field options. With `stack`, lines are
    /// stacked.
    fn settings(self, stack: bool) -> (&'static str, Value, Value) {
        let legend = json!({"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": true});
        let reduce = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
        match self {
            Self::Lines => {
                let stacking = json!({"group": "A", "mode": if stack { "normal" } else { "none" }});
                let fill = if stack { 30 } else { 5 };
                (
                    "timeseries",
                    json!({"legend": legend, "tooltip": {"hideZeros": false, "mode": "multi", "sort": "desc"}}),
                    json!({"drawStyle": "line", "fillOpacity": fill, "lineWidth": 1, "showPoints": "never", "stacking": stacking}),
                )
            }
            Self::Stat => (
                "stat",
                json!({
                    "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
                    "reduceOptions": reduce, "textMode": "auto", "wideLayout": true
                }),
                json!({}),
            ),
            Self::State => (
                "state-timeline",
                json!({
                    "alignValue": "left", "legend": legend, "mergeValues": true, "rowHeight": 0.9, "showValue": "auto",
                    "tooltip": {"mode": "single", "sort": "none"}
                }),
                json!({"fillOpacity": 70, "lineWidth": 0}),
            ),
            Self::Table => ("table", json!({"cellHeight": "sm", "showHeader": true}), json!({"align": "auto"})),
            Self::Bars => (
                "bargauge",
                json!({
                    "displayMode": "basic", "minVizHeight": 10, "minVizWidth": 8, "namePlacement": "auto",
                    "orientation": "horizontal", "reduceOptions": reduce, "showUnfilled": true, "sizing": "auto", "valueMode": "color"
                }),
                json!({}),
            ),
        }
    }
}

/// Returns a variable that offers the values of a label in the series of this metric that match `selector`.
fn variable(name: &str, label: &str, metric: &str, selector: &str) -> Value {
    let query = format!("label_values({metric}{{{selector}}}, {label})").replace("{}", "");
    // Every target has the labels `job` and `instance`. Other labels may be missing: only a selector with `.*` also
    // selects series without the label.
    let all = if ["job", "instance"].contains(&name) { ".+" } else { ".*" };
    json!({
        "allValue": all, "current": {"selected": true, "text": ["All"], "value": ["$__all"]}, "datasource": datasource(),
        "definition": query, "hide": 0, "includeAll": true, "label": name, "multi": true, "name": name, "options": [],
        "query": {"qryType": 1, "query": query, "refId": name}, "refresh": 2, "regex": "", "skipUrlSync": false,
        "sort": 1, "type": "query"
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Adds the dashboard's variables to a query. Restricts each metric to the selected targets. If the dashboard's own
/// metric is one of the API server, also restricts each metric to Pillion's webhooks. Replaces `release` at the start
/// of a list of labels with the cluster and namespace labels. Replaces `target` as the only label of a list with the
/// labels that identify a target. Replaces `[rate]` with Grafana's rate interval.
fn expression(text: &str, metric: &str) -> String {
    let ours = if metric.starts_with("apiserver_") {
        r#"$cluster_label=~"$cluster", job=~"$job", instance=~"$instance", name=~".+[.]pillion[.]dev""#
    } else {
        r#"$cluster_label=~"$cluster", namespace=~"$namespace", job=~"$job", instance=~"$instance""#
    };
    let text = text
        .replace("[rate]", "[$__rate_interval]")
        .replace("(release)", "($cluster_label, namespace)")
        .replace("(release, ", "($cluster_label, namespace, ")
        .replace("(target)", "($cluster_label, namespace, job, instance)");
    let (mut result, mut rest) = (String::new(), &*text);
    while let Some((before, name)) = next_metric(rest) {
        result += before;
        result += name;
        rest = rest.get(before.len() + name.len()..).unwrap_or_default();
        match rest.strip_prefix('{') {
            Some(more) => {
                result.extend(["{", ours, ", "]);
                rest = more;
            }
            None => result.extend(["{", ours, "}"]),
        }
    }
    result + rest
}

/// Returns the part of a query before the first metric name outside quotes, and that name. Only names with the prefixes
/// of Pillion, of processes and of the API server count. `None`: there is no such name.
fn next_metric(text: &str) -> Option<(&str, &str)> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let (mut quoted, mut begin) = (false, None);
    for (index, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        quoted ^= letter == '"';
        match (begin, is_word(letter) && !quoted) {
            (None, true) => begin = Some(index),
            (Some(start), false) => {
                let word = text.get(start..index)?;
                if ["pillion_", "pillion:", "process_", "apiserver_"].iter().any(|prefix| word.starts_with(prefix)) {
                    return Some((text.get(..start)?, word));
                }
                begin = None;
            }
            _ => {}
        }
    }
    None
}

/// Returns all metric names in a query that have a prefix of Pillion, of processes or of the API server.
#[must_use]
pub fn metrics_of(mut query: &str) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((before, name)) = next_metric(query) {
        found.push(name.to_owned());
        query = query.get(before.len() + name.len()..).unwrap_or_default();
    }
    found
}
