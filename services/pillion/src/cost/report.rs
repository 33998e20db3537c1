//! Sums up the containers that profiles added, and formats the sums. Its memory depends on the number of rows, and not
//! on the number of pods.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::ValueEnum;
use pillion_engine::audit::{AddedContainer, AddedResource};
use pillion_expression::Quantity;
use serde_json::{Value, json};

use super::prices::{HOURS_PER_MONTH, Prices};
use crate::output;

/// The bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// The property by which the rows of the table are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Dimension {
    /// The namespace of the pods.
    Namespace,
    /// The profile that added the containers.
    Profile,
    /// The name of the containers.
    Container,
}

impl Dimension {
    const ALL: [Self; 3] = [Self::Namespace, Self::Profile, Self::Container];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Profile => "profile",
            Self::Container => "container",
        }
    }

    /// Returns the label of the dimension in metrics. As in the controller's metrics, a namespace has the label
    /// `tenant`, because `namespace` is a label of the scraped target.
    const fn label(self) -> &'static str {
        match self {
            Self::Namespace => "tenant",
            Self::Profile | Self::Container => self.as_str(),
        }
    }
}

/// The added containers, summed up in the rows of a table.
#[derive(Debug)]
pub(super) struct Report {
    /// The dimensions of a row, each one once.
    by: Vec<Dimension>,
    prices: Option<Prices>,
    /// The sums of each row. The key has one name for each dimension.
    rows: BTreeMap<Vec<Box<str>>, Sums>,
    total: Sums,
}

/// The sums of a group of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// The number of pods with at least one of the containers.
    pods: u64,
    containers: u64,
    /// The number of containers that lack a request of CPU or memory.
    without_requests: u64,
    cpu: Amounts,
    memory: Amounts,
}

/// The sums of one resource: cores or bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    requests: Quantity,
    limits: Quantity,
}

impl Report {
    /// Creates a report without containers.
    pub(super) fn new(mut by: Vec<Dimension>, prices: Option<Prices>) -> Self {
        let mut seen = BTreeSet::new();
        by.retain(|dimension| seen.insert(*dimension));
        Self { by, prices, rows: BTreeMap::new(), total: Sums::default() }
    }

    /// Adds the containers that profiles added to one pod.
    pub(super) fn add(&mut self, namespace: &str, containers: &[AddedContainer]) {
        let mut keys = BTreeSet::new();
        for container in containers {
            let name = |dimension: &Dimension| match dimension {
                Dimension::Namespace => namespace.into(),
                Dimension::Profile => container.profile.clone(),
                Dimension::Container => container.name.clone(),
            };
            let key: Vec<_> = self.by.iter().map(name).collect();
            let row = self.rows.entry(key.clone()).or_default();
            row.add(container);
            row.pods += u64::from(keys.insert(key));
            self.total.add(container);
        }
        self.total.pods += u64::from(!containers.is_empty());
    }

    /// Whether no container was added.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the rows, most expensive first. Without prices, compares the CPU first, and then the memory.
    fn sorted(&self) -> Vec<(&Vec<Box<str>>, &Sums)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        // The sort is stable, so equal rows remain in the order of their names.
        rows.sort_by(|(_, one), (_, other)| self.compare(other, one));
        rows
    }

    fn compare(&self, one: &Sums, other: &Sums) -> Ordering {
        let amounts = |sums: &Sums| [self.cost(sums).unwrap_or_default(), sums.cores(), sums.bytes()];
        let mut pairs = amounts(one).into_iter().zip(amounts(other));
        pairs
            .find_map(|(one, other)| Some(one.total_cmp(&other)).filter(|order| order.is_ne()))
            .unwrap_or(Ordering::Equal)
    }

    fn cost(&self, sums: &Sums) -> Option<f64> {
        self.prices.as_ref().map(|prices| prices.monthly(sums.cores(), sums.bytes()))
    }

    /// Formats a table in the style of kubectl, with the total in the last row. Returns an empty string if there are no
    /// rows. A wide table also shows limits.
    pub(super) fn table(&self, is_wide: bool) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut head: Vec<_> = self.by.iter().map(|dimension| dimension.as_str().to_uppercase()).collect();
        head.extend(["PODS", "CONTAINERS", "NO REQUESTS", "CPU", "MEMORY"].map(str::to_owned));
        if is_wide {
            head.extend(["CPU LIMITS", "MEMORY LIMITS"].map(str::to_owned));
        }
        head.extend(self.prices.iter().map(|prices| format!("{}/MONTH", prices.currency)));
        let row = |names: Vec<String>, sums: &Sums| {
            let mut row = names;
            row.extend([sums.pods, sums.containers, sums.without_requests].map(|count| count.to_string()));
            row.extend([millicores(sums.cpu.requests), mebibytes(sums.memory.requests)]);
            if is_wide {
                row.extend([millicores(sums.cpu.limits), mebibytes(sums.memory.limits)]);
            }
            row.extend(self.cost(sums).map(|cost| format!("{cost:.2}")));
            row
        };
        let mut rows = vec![head];
        rows.extend(
            self.sorted().into_iter().map(|(key, sums)| row(key.iter().map(ToString::to_string).collect(), sums)),
        );
        let mut total = vec![String::new(); self.by.len()];
        if let Some(first) = total.first_mut() {
            "TOTAL".clone_into(first);
        }
        rows.push(row(total, &self.total));
        output::aligned(&rows)
    }

    /// Returns the machine-readable output. The dimensions that rows do not have are null.
    pub(super) fn value(&self) -> Value {
        let row = |(key, sums): (&Vec<Box<str>>, &Sums)| {
            let mut row = serde_json::Map::new();
            for dimension in Dimension::ALL {
                let place = self.by.iter().position(|by| *by == dimension);
                row.insert(dimension.as_str().to_owned(), json!(place.and_then(|place| key.get(place))));
            }
            row.extend(self.sums(sums));
            Value::Object(row)
        };
        json!({
            "by": self.by.iter().map(|dimension| dimension.as_str()).collect::<Vec<_>>(),
            "hoursPerMonth": HOURS_PER_MONTH,
            "prices": self.prices,
            "rows": self.sorted().into_iter().map(row).collect::<Vec<_>>(),
            "total": Value::Object(self.sums(&self.total).into_iter().collect()),
        })
    }

    /// Formats the rows as metrics in the text format of Prometheus.
    pub(super) fn exposition(&self) -> String {
        let mut text = String::new();
        let resources = |amount: fn(&Amounts) -> Quantity| {
            move |sums: &Sums| {
                let [cpu, memory] = [&sums.cpu, &sums.memory].map(|amounts| amount(amounts).approximately());
                vec![(",resource=\"cpu\",unit=\"core\"", cpu), (",resource=\"memory\",unit=\"byte\"", memory)]
            }
        };
        let count = |count: u64| vec![("", f64::from(u32::try_from(count).unwrap_or(u32::MAX)))];
        let help = "Requests that injected containers add to their pods";
        self.write_metric(&mut text, ("requests", help), resources(|amounts| amounts.requests));
        let help = "Limits that injected containers add to their pods";
        self.write_metric(&mut text, ("limits", help), resources(|amounts| amounts.limits));
        let help = "Injected containers without a request of CPU or memory";
        self.write_metric(&mut text, ("containers_without_requests", help), |sums| count(sums.without_requests));
        self.write_metric(&mut text, ("pods", "Pods with injected containers"), |sums| count(sums.pods));
        if let Some(prices) = &self.prices {
            let currency = format!(",currency=\"{}\"", escaped(&prices.currency));
            let help = "Cost of the requests for 730 hours";
            let cost = |sums: &Sums| vec![(&*currency, self.cost(sums).unwrap_or_default())];
            self.write_metric(&mut text, ("monthly_cost", help), cost);
        }
        text
    }

    /// Writes a metric with the series of each row. `series` returns the additional labels and the value of each series
    /// of a row.
    fn write_metric<'l>(
        &self,
        text: &mut String,
        (name, help): (&str, &str),
        series: impl Fn(&Sums) -> Vec<(&'l str, f64)>,
    ) {
        // Writing to a string never fails.
        let _ = writeln!(text, "# HELP pillion_injected_{name} {help}\n# TYPE pillion_injected_{name} gauge");
        for (key, sums) in &self.rows {
            let labels = self.by.iter().zip(key).map(|(by, name)| format!("{}=\"{}\"", by.label(), escaped(name)));
            let labels = labels.collect::<Vec<_>>().join(",");
            for (more, value) in series(sums) {
                let _ = writeln!(text, "pillion_injected_{name}{{{labels}{more}}} {value}");
            }
        }
    }

    fn sums(&self, sums: &Sums) -> [(String, Value); 6] {
        let amounts = |of: fn(&Amounts) -> Quantity| {
            let [cpu, memory] = [&sums.cpu, &sums.memory].map(|amounts| number(of(amounts)));
            json!({"cpuCores": cpu, "memoryBytes": memory})
        };
        // Four decimals hide the errors of binary fractions.
        let cost = self.cost(sums).map(|cost| (cost * 1e4).round() / 1e4);
        [
            ("pods", json!(sums.pods)),
            ("containers", json!(sums.containers)),
            ("containersWithoutRequests", json!(sums.without_requests)),
            ("requests", amounts(|amounts| amounts.requests)),
            ("limits", amounts(|amounts| amounts.limits)),
            ("monthlyCost", json!(cost)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }
}

impl Sums {
    /// Adds a container, but not its pod.
    fn add(&mut self, container: &AddedContainer) {
        let AddedContainer { profile: _, name: _, is_ending: _, cpu, memory } = container;
        self.containers += 1;
        self.without_requests += u64::from(!cpu.is_requested || !memory.is_requested);
        self.cpu.add(cpu);
        self.memory.add(memory);
    }

    fn cores(&self) -> f64 {
        self.cpu.requests.approximately()
    }

    fn bytes(&self) -> f64 {
        self.memory.requests.approximately()
    }
}

impl Amounts {
    fn add(&mut self, added: &AddedResource) {
        self.requests = self.requests.plus(added.requests);
        self.limits = self.limits.plus(added.limits);
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(quantity: Quantity) -> Value {
    quantity.whole().map_or_else(|| json!(quantity.approximately()), |whole| json!(whole))
}

/// Formats cores as `kubectl top` does.
fn millicores(cores: Quantity) -> String {
    format!("{:.0}m", cores.approximately() * 1000.0)
}

/// Formats bytes as `kubectl top` does.
fn mebibytes(bytes: Quantity) -> String {
    format!("{:.0}Mi", bytes.approximately() / MIB)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::read(text).unwrap()
    }

    fn resource(requests: &str, limits: &str) -> AddedResource {
        AddedResource {
            requests: quantity(requests),
            limits: quantity(limits),
            is_requested: requests != "0",
            is_limited: true,
        }
    }

    fn container(profile: &str, name: &str, cpu: &str, memory: &str) -> AddedContainer {
        let (cpu, memory) = (resource(cpu, "1"), resource(memory, memory));
        AddedContainer { profile: profile.into(), name: name.into(), is_ending: false, cpu, memory }
    }

    fn prices() -> Prices {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prices.yaml");
        fs::write(&file, "{currency: EUR, cpuCoreHour: 0.1, memoryGiBHour: 0.01}").unwrap();
        Prices::read(&file).unwrap()
    }

    /// Returns the report of two injected pods in `shop` and one in `till`. A second pod in `till` has no added
    /// container.
    fn report(by: &[Dimension], prices: Option<Prices>) -> Report {
        let mut report = Report::new(by.to_vec(), prices);
        for _ in 0..2 {
            let (proxy, init) = (container("mesh", "proxy", "100m", "128Mi"), container("mesh", "init", "0", "0"));
            report.add("shop", &[proxy, init, container("log", "shipper", "10m", "2Gi")]);
        }
        report.add("till", &[container("mesh", "proxy", "100m", "100M")]);
        report.add("till", &[]);
        report
    }

    #[test]
    fn rows_are_sorted_by_cost_with_total_last() {
        assert_eq!(
            report(&[Dimension::Profile], Some(prices())).table(false),
            "PROFILE   PODS   CONTAINERS   NO REQUESTS   CPU    MEMORY   EUR/MONTH\n\
             log       2      2            0             20m    4096Mi   30.66\n\
             mesh      3      5            2             300m   351Mi    24.40\n\
             TOTAL     3      7            2             320m   4447Mi   55.06\n"
        );
        // Without prices, CPU comes first.
        assert_eq!(
            report(&[Dimension::Profile], None).table(true),
            "PROFILE   PODS   CONTAINERS   NO REQUESTS   CPU    MEMORY   CPU LIMITS   MEMORY LIMITS\n\
             mesh      3      5            2             300m   351Mi    5000m        351Mi\n\
             log       2      2            0             20m    4096Mi   2000m        4096Mi\n\
             TOTAL     3      7            2             320m   4447Mi   7000m        4447Mi\n"
        );
        assert_eq!(Report::new(vec![Dimension::Profile], None).table(true), "");
    }

    #[test]
    fn rows_combine_dimensions() {
        let by = [Dimension::Container, Dimension::Namespace, Dimension::Container];
        let table = report(&by, None).table(false);
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
        assert_eq!(
            rows,
            [
                ["CONTAINER", "NAMESPACE", "PODS"],
                ["proxy", "shop", "2"],
                ["proxy", "till", "1"],
                ["shipper", "shop", "2"],
                ["init", "shop", "2"],
                ["TOTAL", "3", "7"],
            ]
        );
    }

    #[test]
    fn metrics_have_series_for_each_row() {
        let text = report(&[Dimension::Namespace, Dimension::Profile], Some(prices())).exposition();
        for line in [
            "# TYPE pillion_injected_requests gauge",
            "pillion_injected_requests{tenant=\"till\",profile=\"mesh\",resource=\"cpu\",unit=\"core\"} 0.1",
            "pillion_injected_requests{tenant=\"till\",profile=\"mesh\",resource=\"memory\",unit=\"byte\"} 100000000",
            "pillion_injected_limits{tenant=\"till\",profile=\"mesh\",resource=\"cpu\",unit=\"core\"} 1",
            "pillion_injected_pods{tenant=\"shop\",profile=\"log\"} 2",
            "pillion_injected_containers_without_requests{tenant=\"shop\",profile=\"mesh\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let cost = "pillion_injected_monthly_cost{tenant=\"till\",profile=\"mesh\",currency=\"EUR\"} 7.97";
        assert!(text.contains(cost), "{text}");
        let one = report(&[Dimension::Container], None).exposition();
        assert!(!one.contains("monthly_cost") && one.contains("pods{container=\"proxy\"} 3"), "{one}");
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }

    #[test]
    fn json_has_stable_fields() {
        let value = report(&[Dimension::Namespace], Some(prices())).value();
        assert_eq!(
            value["rows"][1],
            json!({
                "namespace": "till", "profile": null, "container": null, "pods": 1, "containers": 1,
                "containersWithoutRequests": 0,
                "requests": {"cpuCores": 0.1, "memoryBytes": 100_000_000},
                "limits": {"cpuCores": 1, "memoryBytes": 100_000_000},
                "monthlyCost": 7.9799,
            })
        );
        assert_eq!(value["prices"], json!({"currency": "EUR", "cpuCoreHour": 0.1, "memoryGiBHour": 0.01}));
        assert_eq!((&value["by"], &value["total"]["pods"]), (&json!(["namespace"]), &json!(3)));
        let free = report(&[Dimension::Namespace], None).value();
        assert_eq!((&free["prices"], &free["total"]["monthlyCost"]), (&Value::Null, &Value::Null));
    }
}
