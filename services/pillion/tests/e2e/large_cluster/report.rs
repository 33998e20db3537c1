//! The figures of all stages: a table in Markdown, and one JSON object.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Map, Value as Json, json};

use super::measure::Usage;
use super::{Sizes, budget, exact};
use crate::compare::{date, machine, program};
use crate::load::print_figures;
use crate::writers::Created;

/// A measured value, and its budget.
#[derive(Clone, Debug)]
struct Figure {
    /// The key in the JSON object.
    key: String,
    /// The name in the table, with the unit.
    name: String,
    value: f64,
    /// The highest value that is allowed.
    budget: Option<f64>,
}

/// The figures of a stage.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// The total number of pods.
    pub(super) pods: usize,
    sizes: Sizes,
    figures: Vec<Figure>,
    /// The number of pods that were created in this stage, and the seconds until they ran.
    created: usize,
    running: f64,
}

/// The resources whose list requests are counted separately, because there may be many objects.
const LISTED: [&str; 4] = ["pods", "namespaces", "clusterinjectionprofiles", "clusterprofilerevisions"];

/// The figures of all stages.
#[derive(Debug)]
pub(super) struct Report {
    version: String,
    sizes: Sizes,
    pub(super) stages: Vec<Stage>,
}

type Usages = BTreeMap<&'static str, Usage>;

impl Stage {
    pub(super) fn new(pods: usize, sizes: &Sizes) -> Self {
        Self { pods, sizes: sizes.clone(), figures: Vec::new(), created: 0, running: 0.0 }
    }

    fn add(&mut self, key: &str, name: &str, value: f64, budget: impl Into<Option<f64>>) {
        self.figures.push(Figure { key: key.to_owned(), name: name.to_owned(), value, budget: budget.into() });
    }

    /// Adds the figures of the creations. `running` is the time until kwok had started all pods.
    pub(super) fn created(&mut self, created: &Created, running: Duration) {
        (self.created, self.running) = (created.took.len(), running.as_secs_f64());
        self.add(
            "creations_per_second",
            "pods created a second",
            exact(self.created) / created.lasted.as_secs_f64(),
            None,
        );
        self.add("creation_p50_ms", "latency of a creation, p50, ms", created.percentile(50), None);
        self.add("creation_p99_ms", "latency of a creation, p99, ms", created.percentile(99), None);
        self.add("running_s", "time until all pods run, s", running.as_secs_f64(), None);
        self.add("not_injected", "pods created without their profile", exact(created.not_injected), 0.0);
    }

    /// Adds the processor time during the creations, and the memory after them.
    pub(super) fn used(&mut self, before: &Usages, after: &Usages, opted_in: usize) {
        let used = |name: &str| after[name].processor.saturating_sub(before[name].processor).as_secs_f64() * 1e3;
        let replicas = (used("replica_1") + used("replica_2")) / exact(opted_in);
        self.add(
            "replicas_ms",
            "replicas, processor time for an injected pod, ms",
            replicas,
            budget::REPLICA_PROCESSOR,
        );
        let busy = used("leader") / self.running / 10.0;
        self.add("leader_busy_percent", "leader, while pods are created, % of a core", busy, budget::LEADER_BUSY);
        for (name, title) in [("leader", "leader"), ("api_server", "API server"), ("etcd", "etcd")] {
            let title = format!("{title}, processor time for a created pod, ms");
            self.add(&format!("{name}_ms"), &title, used(name) / exact(self.created), None);
        }
        let anonymous = |name: &str| mebibytes(after[name].anonymous);
        let replica = anonymous("replica_1").max(anonymous("replica_2"));
        self.add("replica_mib", "replica, memory, MiB", replica, budget::REPLICA);
        let leader = budget::leader(&self.sizes, self.pods / 2);
        self.add("leader_mib", "leader, memory, MiB", anonymous("leader"), leader);
        self.add("standby_mib", "standby, memory, MiB", anonymous("standby"), None);
        for (name, title) in [("api_server", "API server"), ("etcd", "etcd")] {
            let title = format!("{title}, resident memory, MiB");
            self.add(&format!("{name}_mib"), &title, mebibytes(after[name].resident), None);
        }
    }

    /// Adds the bytes that processes received during the creations.
    pub(super) fn watched(&mut self, leader: u64, replica: u64) {
        let for_pod = |bytes: u64| exact(usize::try_from(bytes).unwrap_or(usize::MAX)) / exact(self.created);
        let (leader, replica) = (for_pod(leader), for_pod(replica));
        self.add("leader_bytes", "leader, bytes received for a created pod", leader, budget::LEADER_BYTES);
        self.add("replica_bytes", "replica, bytes received for a created pod", replica, budget::REPLICA_BYTES);
    }

    /// Adds the time until the audit has found all missed injections.
    pub(super) fn found(&mut self, after: Duration) {
        self.add("found_s", "time until missed injections are reported, s", after.as_secs_f64(), budget::FOUND);
    }

    /// Adds the time until a fresh replica is ready, and its memory.
    pub(super) fn ready(&mut self, after: Duration, usage: Usage) {
        self.add("ready_s", "fresh replica, time until ready, s", after.as_secs_f64(), budget::READY);
        let anonymous = mebibytes(usage.anonymous);
        self.add("fresh_replica_mib", "fresh replica, memory, MiB", anonymous, budget::FRESH_REPLICA);
    }

    /// Adds the processor time of processes without work.
    pub(super) fn idle(&mut self, before: &Usages, after: &Usages, lasted: Duration) {
        let percent = |name: &str| {
            let used = after[name].processor.saturating_sub(before[name].processor);
            100.0 * used.as_secs_f64() / lasted.as_secs_f64()
        };
        let replica = percent("replica_1").max(percent("replica_2"));
        self.add("replica_idle_percent", "replica, without requests, % of a core", replica, budget::WAITING);
        self.add("leader_idle_percent", "leader, without changes, % of a core", percent("leader"), budget::LEADER_IDLE);
        self.add("standby_idle_percent", "standby, % of a core", percent("standby"), budget::WAITING);
    }

    /// Adds the times from the end of a leader until the next one has the Lease, and from then until its audit is
    /// complete.
    pub(super) fn audited(&mut self, elected: Duration, pass: Duration) {
        self.add("elected_s", "leader change: time until a controller leads, s", elected.as_secs_f64(), None);
        self.add("pass_s", "leader change: then time until all pods are audited, s", pass.as_secs_f64(), budget::PASS);
    }

    /// Adds the resources that a new leader has used until its audit was complete.
    pub(super) fn changed_leader(&mut self, before: Usage, after: Usage, lists: &BTreeMap<String, f64>, received: u64) {
        let processor = after.processor.saturating_sub(before.processor).as_secs_f64();
        let title = "leader change: processor time of the new leader, s";
        self.add("change_processor_s", title, processor, budget::CHANGE_PROCESSOR);
        let leader = budget::leader(&self.sizes, self.pods / 2);
        self.add("change_mib", "leader change: memory of the new leader, MiB", mebibytes(after.anonymous), leader);
        let received = mebibytes(received / 1024);
        self.add("change_received_mib", "leader change: received by the new leader, MiB", received, None);
        let budget = budget::lists(&self.sizes, self.pods);
        self.add("change_lists", "leader change: list requests", lists.values().sum(), budget);
        for resource in LISTED {
            let count = lists.get(resource).copied().unwrap_or_default();
            self.add(&format!("change_lists_{resource}"), &format!("of these, for {resource}"), count, None);
        }
    }

    fn json(&self) -> Json {
        let mut object = Map::new();
        object.insert("pods".to_owned(), self.pods.into());
        for Figure { key, value, .. } in &self.figures {
            object.insert(key.clone(), ((value * 1e3).round() / 1e3).into());
        }
        object.into()
    }

    fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// Describes the figures that are above their budgets.
    fn over_budget(&self) -> impl Iterator<Item = String> {
        self.figures.iter().filter_map(|Figure { name, value, budget, .. }| {
            let budget = budget.filter(|budget| value > budget)?;
            Some(format!("{} pods: {name}: {value:.2}, and the budget is {budget:.2}", self.pods))
        })
    }
}

impl Report {
    pub(super) fn new(version: String, sizes: &Sizes) -> Self {
        Self { version, sizes: sizes.clone(), stages: Vec::new() }
    }

    /// Prints the table, and writes the JSON object to the file that `PILLION_RESULT` names.
    pub(super) fn print(&self) -> Result<()> {
        print_figures(&format!("\n{}\n{}", self.table()?, self.json()));
        pillion_testkit::write_result(&self.json())
    }

    /// Fails if a figure is above its budget.
    pub(super) fn check(&self) -> Result<()> {
        let over: Vec<_> = self.stages.iter().flat_map(Stage::over_budget).collect();
        ensure!(over.is_empty(), "above the budget:\n{}", over.join("\n"));
        Ok(())
    }

    fn table(&self) -> Result<String> {
        let Sizes { namespaces, profiles, nodes, .. } = &self.sizes;
        let mut text = format!("{}; Kubernetes {}; {}; program: {}\n", date(), self.version, machine(), program());
        writeln!(text, "{namespaces} namespaces, {profiles} profiles, {nodes} nodes\n")?;
        let heads = self.stages.iter().map(|stage| format!(" {} pods |", stage.pods));
        writeln!(text, "| figure | budget |{}", heads.collect::<String>())?;
        writeln!(text, "|---|---|{}", "---|".repeat(self.stages.len()))?;
        let mut keys: Vec<&Figure> = Vec::new();
        for figure in self.stages.iter().flat_map(|stage| &stage.figures) {
            if keys.iter().all(|known| known.key != figure.key) {
                keys.push(figure);
            }
        }
        for Figure { key, name, .. } in keys {
            let figures: Vec<_> = self.stages.iter().map(|stage| stage.figure(key)).collect();
            let mut budgets: Vec<_> = figures.iter().flatten().filter_map(|figure| figure.budget).map(short).collect();
            budgets.dedup();
            let values = figures
                .iter()
                .map(|figure| format!(" {} |", figure.map_or_else(|| "0".to_owned(), |figure| short(figure.value))));
            writeln!(text, "| {name} | {} |{}", budgets.join(", "), values.collect::<String>())?;
        }
        Ok(text)
    }

    fn json(&self) -> Json {
        let Sizes { namespaces, profiles, nodes, .. } = &self.sizes;
        json!({
            "date": date(), "kubernetes": self.version, "machine": machine(), "program": program(),
            "namespaces": namespaces, "profiles": profiles, "nodes": nodes,
            "stages": self.stages.iter().map(Stage::json).collect::<Vec<_>>(),
            "over_budget": self.stages.iter().flat_map(Stage::over_budget).collect::<Vec<_>>(),
        })
    }
}

fn mebibytes(kibibytes: u64) -> f64 {
    exact(usize::try_from(kibibytes).unwrap_or(usize::MAX)) / 1024.0
}

/// Formats a value with about three digits.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}
