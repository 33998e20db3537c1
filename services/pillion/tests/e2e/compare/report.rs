//! The figures of a comparison: tables in Markdown, and one JSON object.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value as Json, json};

use super::objects::{Cell, Side};
use crate::load::print_figures;
use crate::writers::Created;

/// The target for the webhook's cost with 100 applying profiles: the processor time, in milliseconds per pod.
const AIM: f64 = 2.5;
/// A limit for the same cost that holds on busy machines and in unoptimized builds too.
const GENEROUS: f64 = 10.0 * AIM;

/// The processor time that processes have used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processors {
    pub(super) api_server: Duration,
    pub(super) etcd: Duration,
    /// The sum of all replicas.
    pub(super) replicas: Duration,
}

/// A measured batch of pods.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) cell: Cell,
    pub(super) is_stored: bool,
    pub(super) has_one_writer: bool,
    pub(super) created: Created,
    pub(super) used: Processors,
}

/// The memory of a cell, in MiB.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) cell: Cell,
    /// The resident memory of the API server.
    pub(super) api_server: f64,
    /// The live heap of the API server.
    pub(super) heap: f64,
    /// The resident memory of one replica.
    pub(super) replica: f64,
}

/// All results of a comparison.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) version: String,
    pub(super) rounds: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) memories: Vec<Memory>,
    /// The results of creating pods in the cells that exceed limits.
    pub(super) probes: Vec<(Cell, String)>,
    /// The cells that could not be measured, with the errors.
    failed: Vec<(Cell, String)>,
}

/// The figures of a cell, in milliseconds per pod.
#[derive(Clone, Copy, Debug)]
struct Figures {
    api_server: f64,
    etcd: f64,
    replicas: f64,
    /// Percentiles of the latency of one writer.
    p50: f64,
    p99: f64,
    /// The number of creations from which the latency was computed.
    latencies: usize,
}

impl Processors {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            api_server: self.api_server.saturating_sub(before.api_server),
            etcd: self.etcd.saturating_sub(before.etcd),
            replicas: self.replicas.saturating_sub(before.replicas),
        }
    }

    pub(super) fn sum(self) -> Duration {
        self.api_server + self.etcd + self.replicas
    }
}

impl Figures {
    /// The processor time of everything but etcd, which stores the same pod for all sides.
    fn cost(&self) -> f64 {
        self.api_server + self.replicas
    }
}

impl Report {
    pub(super) fn new(version: String, rounds: u64) -> Self {
        Self { version, rounds, samples: Vec::new(), memories: Vec::new(), probes: Vec::new(), failed: Vec::new() }
    }

    /// Records that a cell cannot be measured.
    pub(super) fn fail(&mut self, cell: Cell, error: &anyhow::Error) {
        print_figures(&format!("{cell:?}: {error:#}"));
        self.failed.push((cell, format!("{error:#}")));
    }

    pub(super) fn has_failed(&self, cell: Cell) -> bool {
        self.failed.iter().any(|(failed, _)| *failed == cell)
    }

    /// Returns the figures of a cell. `None`: it could not be measured.
    fn figures(&self, cell: Cell, is_stored: bool) -> Option<Figures> {
        let all: Vec<_> =
            self.samples.iter().filter(|sample| sample.cell == cell && sample.is_stored == is_stored).collect();
        let busy: Vec<_> = all.iter().filter(|sample| !sample.has_one_writer).collect();
        let per_pod = |used: fn(&Processors) -> Duration| {
            let values = busy.iter().map(|sample| {
                let pods = u32::try_from(sample.created.took.len()).unwrap_or(u32::MAX);
                used(&sample.used).as_secs_f64() * 1e3 / f64::from(pods)
            });
            median(values.collect())
        };
        let mut latencies = Created::default();
        for sample in all.iter().filter(|sample| sample.has_one_writer) {
            latencies.took.extend(&sample.created.took);
        }
        latencies.took.sort_unstable();
        (!all.is_empty()).then(|| Figures {
            api_server: per_pod(|used| used.api_server),
            etcd: per_pod(|used| used.etcd),
            replicas: per_pod(|used| used.replicas),
            p50: latencies.percentile(50),
            p99: latencies.percentile(99),
            latencies: latencies.took.len(),
        })
    }

    /// Returns the processor time that admission takes per pod, in milliseconds: the time of the API server and of the
    /// replicas, minus their time for the creation of the same final pod without admission.
    fn cost(&self, cell: Cell, is_stored: bool) -> Option<f64> {
        let without = self.figures(cell.without_admission(), is_stored)?;
        Some(self.figures(cell, is_stored)?.cost() - without.cost())
    }

    /// Returns the processor time of the API server and of the replicas, minus the time for the bare pod without
    /// admission. It includes the time that the API server needs for a larger pod.
    fn growth(&self, cell: Cell, is_stored: bool) -> Option<f64> {
        let bare = self.figures(Cell { side: Side::Author, applying: 0, idle: 0 }, is_stored)?;
        Some(self.figures(cell, is_stored)?.cost() - bare.cost())
    }

    /// Prints the tables, and writes the JSON object to the file that `PILLION_RESULT` names.
    pub(super) fn print(&self) -> Result<()> {
        print_figures(&format!("\n{}", self.tables()?));
        pillion_testkit::write_result(&self.json())
    }

    /// Fails if a cell could not be measured, a pod was not created as expected, or the cost is too high for any
    /// machine. Whether [`AIM`] is met depends on the machine and the build, so that is only reported.
    pub(super) fn check(&self) -> Result<()> {
        for Sample { cell, created, .. } in &self.samples {
            let is_correct = created.failed.is_empty() && created.not_injected == 0;
            ensure!(is_correct, "{cell:?}: {} not injected, {:?}", created.not_injected, created.failed);
        }
        ensure!(self.failed.is_empty(), "{:#?}", self.failed);
        let cost = self.cost(Cell { side: Side::Pillion, applying: 100, idle: 0 }, true);
        ensure!(cost.is_some_and(|cost| cost < GENEROUS), "100 profiles take {cost:?} ms per pod");
        Ok(())
    }

    fn tables(&self) -> Result<String> {
        let mut text = format!("{}; Kubernetes {}; {} rounds; {}\n", date(), self.version, self.rounds, machine());
        writeln!(text, "program: {}", program())?;
        for is_stored in [true, false] {
            let kind = if is_stored { "real creation" } else { "server-side dry run" };
            writeln!(text, "\n{kind}:\n")?;
            text += "| profiles or policies | admission | API server | replicas | etcd | above the bare pod | cost of admission | p50 | p99 |\n";
            text += "|---|---|---|---|---|---|---|---|---|\n";
            for cell in Cell::all() {
                let (name, side) = (cell.describe(), cell.side.name());
                let Some(figures) = self.figures(cell, is_stored) else {
                    continue;
                };
                let Figures { api_server, etcd, replicas, p50, p99, .. } = figures;
                let cost = match cell.side {
                    Side::Author => String::new(),
                    _ => self.cost(cell, is_stored).map(milliseconds).unwrap_or_default(),
                };
                let replicas = if cell.side == Side::Pillion { milliseconds(replicas) } else { String::new() };
                let growth = self.growth(cell, is_stored).map(milliseconds).unwrap_or_default();
                let [api_server, etcd, p50, p99] = [api_server, etcd, p50, p99].map(milliseconds);
                writeln!(
                    text,
                    "| {name} | {side} | {api_server} | {replicas} | {etcd} | {growth} | {cost} | {p50} | {p99} |"
                )?;
            }
        }
        text += "\n| profiles or policies | admission | API server, resident | API server, live heap | a replica, resident |\n";
        text += "|---|---|---|---|---|\n";
        for Memory { cell, api_server, heap, replica } in &self.memories {
            let replica = if cell.side == Side::Pillion { format!("{replica:.1} MiB") } else { String::new() };
            let (name, side) = (cell.describe(), cell.side.name());
            writeln!(text, "| {name} | {side} | {api_server:.0} MiB | {heap:.0} MiB | {replica} |")?;
        }
        for (cell, result) in self.probes.iter().chain(&self.failed) {
            writeln!(text, "\n{}, {}: {result}", cell.side.name(), cell.describe())?;
        }
        Ok(text)
    }

    fn json(&self) -> Json {
        let cell_json =
            |cell: &Cell| json!({"admission": cell.side.name(), "applying": cell.applying, "idle": cell.idle});
        let mut cells = Vec::new();
        for (cell, is_stored) in Cell::all().into_iter().flat_map(|cell| [(cell, false), (cell, true)]) {
            let Some(figures) = self.figures(cell, is_stored) else { continue };
            let mut entry = cell_json(&cell);
            entry["stored"] = is_stored.into();
            entry["api_server_ms"] = rounded(figures.api_server);
            entry["etcd_ms"] = rounded(figures.etcd);
            entry["replicas_ms"] = rounded(figures.replicas);
            entry["p50_ms"] = rounded(figures.p50);
            entry["p99_ms"] = rounded(figures.p99);
            entry["latencies"] = figures.latencies.into();
            entry["above_bare_ms"] = self.growth(cell, is_stored).map_or(Json::Null, rounded);
            if cell.side != Side::Author {
                entry["cost_ms"] = self.cost(cell, is_stored).map_or(Json::Null, rounded);
            }
            cells.push(entry);
        }
        let memories = self.memories.iter().map(|memory| {
            let mut entry = cell_json(&memory.cell);
            entry["api_server_mib"] = rounded(memory.api_server);
            entry["api_server_heap_mib"] = rounded(memory.heap);
            entry["replica_mib"] = rounded(memory.replica);
            entry
        });
        let results = |all: &[(Cell, String)]| -> Vec<Json> {
            let entry = |(cell, result): &(Cell, String)| {
                let mut entry = cell_json(cell);
                entry["result"] = result.clone().into();
                entry
            };
            all.iter().map(entry).collect()
        };
        // Cells in which the webhook costs more than the policies.
        let costs_more = Cell::all().into_iter().filter(|cell| cell.side == Side::Pillion).filter(|cell| {
            let policies = Cell { side: Side::Policies, ..*cell };
            let costs = self.cost(*cell, true).zip(self.cost(policies, true));
            costs.is_some_and(|(webhook, policies)| webhook > policies)
        });
        let hundred = self.cost(Cell { side: Side::Pillion, applying: 100, idle: 0 }, true);
        json!({
            "date": date(), "kubernetes": self.version, "machine": machine(), "program": program(),
            "rounds": self.rounds,
            "failed": self.samples.iter().map(|sample| sample.created.failures()).sum::<usize>(),
            "not_injected": self.samples.iter().map(|sample| sample.created.not_injected).sum::<usize>(),
            "cost_of_100_ms": hundred.map_or(Json::Null, rounded),
            "cost_of_100_within_aim": hundred.is_some_and(|cost| cost <= AIM),
            "costs_more_than_policies": costs_more.map(|cell| cell_json(&cell)).collect::<Vec<_>>(),
            "cells": cells, "memory": memories.collect::<Vec<_>>(), "beyond_limits": results(&self.probes),
            "not_measured": results(&self.failed),
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn milliseconds(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:.2} ms") } else { format!("{value:.0} ms") }
}

fn rounded(value: f64) -> Json {
    ((value * 1e3).round() / 1e3).into()
}

pub(crate) fn date() -> String {
    jiff::Zoned::now().strftime("%F").to_string()
}

/// Returns the number of processors, and their model.
pub(crate) fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<_> = text.lines().filter(|line| line.starts_with("model name")).collect();
    let model = models.first().and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, model)| model);
    format!("{} x {model}", std::thread::available_parallelism().map_or(1, usize::from))
}

/// Describes the build that is measured.
pub(crate) fn program() -> String {
    std::env::var("PILLION_PROGRAM").unwrap_or_else(|_| "the tests' build".to_owned())
}
