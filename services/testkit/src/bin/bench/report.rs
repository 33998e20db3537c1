//! The result as a table and as a line of JSON, and the limits that a release must stay within.

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;

use crate::instructions::Counts;
use crate::memory::{FULL, Memory};
use crate::rounds::{Measurements, Sample, ServerMeasurements, median};

/// The figures as JSON. Their names are a contract, documented in docs/benchmarks.md.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) floor_us: f64,
    pub(crate) one_us: f64,
    pub(crate) three_us: f64,
    pub(crate) ratio_one: f64,
    pub(crate) ratio_three: f64,
    pub(crate) ratio_one_even: f64,
    pub(crate) ratio_three_even: f64,
    pub(crate) scans_one: f64,
    pub(crate) scans_three: f64,
    pub(crate) allocs_one: u64,
    pub(crate) allocs_three: u64,
    #[serde(flatten)]
    pub(crate) clients: Clients,
    pub(crate) rss_anon_floor_mib: f64,
    pub(crate) rss_anon_idle_mib: f64,
    pub(crate) rss_anon_full_mib: f64,
    pub(crate) ratio_rss_idle: f64,
    pub(crate) ratio_rss_full: f64,
}

/// A figure and its limit, which a release must not exceed. Latency has no limit, because it depends on the machine as
/// much as on the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gate {
    /// The figure's key in the JSON.
    pub(crate) name: &'static str,
    pub(crate) limit: f64,
    pub(crate) value: f64,
}

impl Report {
    /// Returns all gates with the current values.
    pub(crate) fn gates(&self) -> [Gate; 4] {
        [
            Gate { name: "ratio_one", limit: 3.0, value: self.ratio_one },
            Gate { name: "ratio_three", limit: 6.0, value: self.ratio_three },
            Gate { name: "rss_anon_idle_mib", limit: 16.0, value: self.rss_anon_idle_mib },
            Gate { name: "rss_anon_full_mib", limit: 48.0, value: self.rss_anon_full_mib },
        ]
    }

    /// Describes the figures that exceed their limits. `None`: there are none.
    pub(crate) fn broken(&self) -> Option<String> {
        let describe = |gate: &Gate| format!("{} is {}, and the limit is {}", gate.name, gate.value, gate.limit);
        let broken: Vec<_> = self.gates().iter().filter(|gate| gate.value > gate.limit).map(describe).collect();
        (!broken.is_empty()).then(|| broken.join("; "))
    }
}

/// The medians of the clients' measurements: at full load, and at a quarter of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Clients {
    floor_rps: f64,
    one_rps: f64,
    three_rps: f64,
    floor_p50_us: f64,
    one_p50_us: f64,
    three_p50_us: f64,
    floor_p99_us: f64,
    one_p99_us: f64,
    three_p99_us: f64,
    floor_quarter_p50_us: f64,
    one_quarter_p50_us: f64,
    three_quarter_p50_us: f64,
    floor_quarter_p99_us: f64,
    one_quarter_p99_us: f64,
    three_quarter_p99_us: f64,
}

impl Clients {
    fn new(measurements: &Measurements) -> anyhow::Result<Self> {
        let middle =
            |samples: &[Sample], value: fn(&Sample) -> f64| median(samples.iter().map(value)).context("no round");
        let rps =
            |work: &ServerMeasurements| middle(&work.full, |sample| sample.seen.requests_per_second).map(f64::round);
        let p50 = |samples: &[Sample]| middle(samples, |sample| f64::from(sample.seen.p50_us));
        let p99 = |samples: &[Sample]| middle(samples, |sample| f64::from(sample.seen.p99_us));
        let Measurements { floor, one, three } = measurements;
        Ok(Self {
            floor_rps: rps(floor)?,
            one_rps: rps(one)?,
            three_rps: rps(three)?,
            floor_p50_us: p50(&floor.full)?,
            one_p50_us: p50(&one.full)?,
            three_p50_us: p50(&three.full)?,
            floor_p99_us: p99(&floor.full)?,
            one_p99_us: p99(&one.full)?,
            three_p99_us: p99(&three.full)?,
            floor_quarter_p50_us: p50(&floor.quarter)?,
            one_quarter_p50_us: p50(&one.quarter)?,
            three_quarter_p50_us: p50(&three.quarter)?,
            floor_quarter_p99_us: p99(&floor.quarter)?,
            one_quarter_p99_us: p99(&one.quarter)?,
            three_quarter_p99_us: p99(&three.quarter)?,
        })
    }
}

impl Report {
    /// Computes medians over the rounds. Ratios of processor time are computed within each round, because all servers
    /// of a round run under the same conditions.
    ///
    /// # Errors
    /// There was no round.
    pub(crate) fn new(measurements: &Measurements, counts: &Counts, memory: &Memory) -> anyhow::Result<Self> {
        let middle = |work: &ServerMeasurements| median(work.full.iter().map(|sample| sample.us)).context("no round");
        let ratio =
            |work: &ServerMeasurements| median(ratios(&work.full, &measurements.floor.full)).context("no round");
        let even = |work: &ServerMeasurements| median(ratios(&work.even, &measurements.floor.even)).context("no round");
        Ok(Self {
            floor_us: rounded(middle(&measurements.floor)?),
            one_us: rounded(middle(&measurements.one)?),
            three_us: rounded(middle(&measurements.three)?),
            ratio_one: rounded(ratio(&measurements.one)?),
            ratio_three: rounded(ratio(&measurements.three)?),
            ratio_one_even: rounded(even(&measurements.one)?),
            ratio_three_even: rounded(even(&measurements.three)?),
            scans_one: rounded(counts.one.instructions / counts.scan),
            scans_three: rounded(counts.three.instructions / counts.scan),
            allocs_one: counts.one.allocations,
            allocs_three: counts.three.allocations,
            clients: Clients::new(measurements)?,
            rss_anon_floor_mib: rounded(memory.floor),
            rss_anon_idle_mib: rounded(memory.idle),
            rss_anon_full_mib: rounded(memory.full),
            ratio_rss_idle: rounded(memory.idle / memory.floor),
            ratio_rss_full: rounded(memory.full / memory.floor),
        })
    }

    /// Returns one line of JSON.
    ///
    /// # Errors
    /// The figures cannot be serialised.
    pub(crate) fn line(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("cannot serialise the figures")
    }

    /// Returns a table with all figures.
    pub(crate) fn table(&self, measurements: &Measurements, counts: &Counts, memory: &Memory) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = self.write(&mut text, measurements, counts, memory);
        text
    }

    fn write(
        &self,
        text: &mut String,
        measurements: &Measurements,
        counts: &Counts,
        memory: &Memory,
    ) -> std::fmt::Result {
        writeln!(
            text,
            "{:<7} {:>11} {:>15} {:>8} {:>15} {:>10} {:>8} {:>8}",
            "server", "CPU us/req", "over rounds", "x floor", "over rounds", "req/s", "p50 us", "p99 us"
        )?;
        let servers = [("floor", &measurements.floor), ("one", &measurements.one), ("three", &measurements.three)];
        for (name, work) in servers {
            row(text, name, &work.full, &measurements.floor.full)?;
        }
        writeln!(text, "\nat a quarter of the rate")?;
        for (name, work) in servers {
            row(text, name, &work.quarter, &measurements.floor.quarter)?;
        }
        writeln!(text, "\nat one rate for all")?;
        for (name, work) in servers {
            row(text, name, &work.even, &measurements.floor.even)?;
        }
        writeln!(text, "\n{:<7} {:>14} {:>8} {:>12}", "engine", "instructions", "U", "allocations")?;
        writeln!(text, "{:<7} {:>14.0} {:>8.2} {:>12}", "scan", counts.scan, 1.0, "")?;
        for (name, cost, scans) in [("one", counts.one, self.scans_one), ("three", counts.three, self.scans_three)] {
            writeln!(text, "{name:<7} {:>14.0} {scans:>8.2} {:>12}", cost.instructions, cost.allocations)?;
        }
        let full = format!("{} namespaces, {} profiles of 1.5 KB", FULL.namespaces, FULL.profiles);
        writeln!(text, "\n{:<42} {:>11} {:>8}", "memory", "RssAnon MiB", "x floor")?;
        for (name, mib) in
            [("floor", memory.floor), ("1 namespace, 1 profile", memory.idle), (full.as_str(), memory.full)]
        {
            writeln!(text, "{name:<42} {mib:>11.1} {:>8.1}", mib / memory.floor)?;
        }
        writeln!(text, "\n{:<20} {:>8} {:>8}", "gate", "at most", "is")?;
        for Gate { name, limit, value } in self.gates() {
            let mark = if value <= limit { "" } else { "  broken" };
            writeln!(text, "{name:<20} {limit:>8.2} {value:>8.2}{mark}")?;
        }
        Ok(())
    }
}

fn row(text: &mut String, name: &str, samples: &[Sample], floor: &[Sample]) -> std::fmt::Result {
    let middle = |value: fn(&Sample) -> f64| median(samples.iter().map(value)).unwrap_or_default();
    writeln!(
        text,
        "{name:<7} {:>11.2} {:>15} {:>8.2} {:>15} {:>10.0} {:>8.0} {:>8.0}",
        middle(|sample| sample.us),
        spread(samples.iter().map(|sample| sample.us)),
        median(ratios(samples, floor)).unwrap_or_default(),
        spread(ratios(samples, floor)),
        middle(|sample| sample.seen.requests_per_second),
        middle(|sample| f64::from(sample.seen.p50_us)),
        middle(|sample| f64::from(sample.seen.p99_us)),
    )
}

fn ratios(samples: &[Sample], floor: &[Sample]) -> impl Iterator<Item = f64> {
    samples.iter().zip(floor).map(|(sample, floor)| sample.us / floor.us)
}

/// Formats the minimum and the maximum.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    format!("{least:.2}-{most:.2}")
}

/// Rounds to two decimals, because further digits would be noise.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::instructions::Cost;
    use crate::load::ClientMeasurements;

    fn work(values: &[f64], quarter_p99_us: u32) -> ServerMeasurements {
        let samples = |seen: ClientMeasurements| values.iter().map(|us| Sample { us: *us, seen }).collect();
        ServerMeasurements {
            full: samples(ClientMeasurements { requests_per_second: 20_000.4, p50_us: 200, p99_us: 400 }),
            quarter: samples(ClientMeasurements { requests_per_second: 5_000.0, p50_us: 90, p99_us: quarter_p99_us }),
            even: samples(ClientMeasurements { requests_per_second: 10_000.0, p50_us: 95, p99_us: 195 }),
        }
    }

    pub(crate) fn report() -> Report {
        let measurements = Measurements {
            floor: work(&[20.0, 40.0, 22.0], 101),
            one: work(&[50.0, 100.0, 66.0], 102),
            three: work(&[80.0, 160.0, 88.0], 103),
        };
        let counts = Counts {
            scan: 100.0,
            one: Cost { instructions: 190.0, allocations: 25 },
            three: Cost { instructions: 350.0, allocations: 40 },
        };
        Report::new(&measurements, &counts, &Memory { floor: 4.0, idle: 8.126, full: 40.0 }).unwrap()
    }

    #[test]
    fn slow_round_changes_neither_time_nor_ratio() {
        let report = report();
        assert_eq!((report.floor_us, report.one_us, report.three_us), (22.0, 66.0, 88.0));
        assert_eq!((report.ratio_one, report.ratio_three), (2.5, 4.0));
    }

    #[test]
    fn line_has_exactly_documented_keys() {
        let expected = "{\"floor_us\":22.0,\"one_us\":66.0,\"three_us\":88.0,\"ratio_one\":2.5,\"ratio_three\":4.0,\
                        \"ratio_one_even\":2.5,\"ratio_three_even\":4.0,\
                        \"scans_one\":1.9,\"scans_three\":3.5,\"allocs_one\":25,\"allocs_three\":40,\
                        \"floor_rps\":20000.0,\"one_rps\":20000.0,\"three_rps\":20000.0,\
                        \"floor_p50_us\":200.0,\"one_p50_us\":200.0,\"three_p50_us\":200.0,\
                        \"floor_p99_us\":400.0,\"one_p99_us\":400.0,\"three_p99_us\":400.0,\
                        \"floor_quarter_p50_us\":90.0,\"one_quarter_p50_us\":90.0,\"three_quarter_p50_us\":90.0,\
                        \"floor_quarter_p99_us\":101.0,\"one_quarter_p99_us\":102.0,\"three_quarter_p99_us\":103.0,\
                        \"rss_anon_floor_mib\":4.0,\"rss_anon_idle_mib\":8.13,\"rss_anon_full_mib\":40.0,\
                        \"ratio_rss_idle\":2.03,\"ratio_rss_full\":10.0}";
        assert_eq!(report().line().unwrap(), expected);
    }

    #[test]
    fn median_of_even_count_is_average() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn gate_holds_at_limit_and_breaks_above() {
        let mut report = report();
        assert_eq!(report.broken(), None);
        report.ratio_one = 3.0;
        assert_eq!(report.broken(), None);
        report.ratio_one = 3.01;
        report.rss_anon_full_mib = 50.0;
        let expected = "ratio_one is 3.01, and the limit is 3; rss_anon_full_mib is 50, and the limit is 48";
        assert_eq!(report.broken().as_deref(), Some(expected));
    }
}
