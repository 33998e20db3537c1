//! What came of it: a table for people, and a line of JSON for programs.

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;

use crate::instructions::Counts;
use crate::memory::{FULL, Memory};
use crate::rounds::{Sample, Works};

/// The line for programs. The names are a contract; docs/benchmarks.md says what they mean.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    floor_us: f64,
    one_us: f64,
    three_us: f64,
    ratio_one: f64,
    ratio_three: f64,
    scans_one: f64,
    scans_three: f64,
    allocs_one: u64,
    allocs_three: u64,
    rss_anon_idle_mib: f64,
    rss_anon_full_mib: f64,
}

impl Report {
    /// Medians over the rounds. A ratio is taken within each round, whose servers met the same machine.
    ///
    /// # Errors
    /// There was no round.
    pub(crate) fn new(works: &Works, counts: &Counts, memory: &Memory) -> anyhow::Result<Self> {
        let middle = |samples: &[Sample]| median(samples.iter().map(|sample| sample.us)).context("no round");
        let ratio = |samples: &[Sample]| median(ratios(samples, &works.floor)).context("no round");
        Ok(Self {
            floor_us: rounded(middle(&works.floor)?),
            one_us: rounded(middle(&works.one)?),
            three_us: rounded(middle(&works.three)?),
            ratio_one: rounded(ratio(&works.one)?),
            ratio_three: rounded(ratio(&works.three)?),
            scans_one: rounded(counts.one.instructions / counts.scan),
            scans_three: rounded(counts.three.instructions / counts.scan),
            allocs_one: counts.one.allocations,
            allocs_three: counts.three.allocations,
            rss_anon_idle_mib: rounded(memory.idle),
            rss_anon_full_mib: rounded(memory.full),
        })
    }

    /// One line of JSON.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn line(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("the figures cannot be written")
    }

    /// The same and more, for people.
    pub(crate) fn table(&self, works: &Works, counts: &Counts, memory: &Memory) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write(&mut text, works, counts, memory);
        text
    }

    fn write(&self, text: &mut String, works: &Works, counts: &Counts, memory: &Memory) -> std::fmt::Result {
        writeln!(
            text,
            "{:<7} {:>11} {:>15} {:>8} {:>15} {:>10} {:>8} {:>8}",
            "server", "CPU us/req", "over rounds", "x floor", "over rounds", "req/s", "p50 us", "p99 us"
        )?;
        for (name, samples, us, ratio) in [
            ("floor", &works.floor, self.floor_us, 1.0),
            ("one", &works.one, self.one_us, self.ratio_one),
            ("three", &works.three, self.three_us, self.ratio_three),
        ] {
            let seen = |value: fn(&Sample) -> f64| median(samples.iter().map(value)).unwrap_or_default();
            writeln!(
                text,
                "{name:<7} {us:>11.2} {:>15} {ratio:>8.2} {:>15} {:>10.0} {:>8.0} {:>8.0}",
                spread(samples.iter().map(|sample| sample.us)),
                spread(ratios(samples, &works.floor)),
                seen(|sample| sample.seen.requests_per_second),
                seen(|sample| f64::from(sample.seen.p50_us)),
                seen(|sample| f64::from(sample.seen.p99_us)),
            )?;
        }
        writeln!(text, "\n{:<7} {:>14} {:>8} {:>12}", "engine", "instructions", "U", "allocations")?;
        writeln!(text, "{:<7} {:>14.0} {:>8.2} {:>12}", "scan", counts.scan, 1.0, "")?;
        for (name, cost, scans) in [("one", counts.one, self.scans_one), ("three", counts.three, self.scans_three)] {
            writeln!(text, "{name:<7} {:>14.0} {scans:>8.2} {:>12}", cost.instructions, cost.allocations)?;
        }
        writeln!(text, "\n{:<42} {:>10}", "memory of a replica", "RssAnon MiB")?;
        writeln!(text, "{:<42} {:>10.1}", "1 namespace, 1 profile", memory.idle)?;
        let full = format!("{} namespaces, {} profiles of 1.5 KB", FULL.namespaces, FULL.profiles);
        writeln!(text, "{full:<42} {:>10.1}", memory.full)
    }
}

fn ratios(samples: &[Sample], floor: &[Sample]) -> impl Iterator<Item = f64> {
    samples.iter().zip(floor).map(|(sample, floor)| sample.us / floor.us)
}

/// The middle of the values, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(sorted.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// From the least to the most.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    format!("{least:.2}-{most:.2}")
}

/// To two places: more would not be true.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::Cost;
    use crate::load::Seen;

    fn samples(values: &[f64]) -> Vec<Sample> {
        let seen = Seen { requests_per_second: 1.0, p50_us: 1, p99_us: 1 };
        values.iter().map(|us| Sample { us: *us, seen }).collect()
    }

    fn report() -> Report {
        let works = Works {
            floor: samples(&[20.0, 40.0, 22.0]),
            one: samples(&[50.0, 100.0, 66.0]),
            three: samples(&[80.0, 160.0, 88.0]),
        };
        let counts = Counts {
            scan: 100.0,
            one: Cost { instructions: 190.0, allocations: 25 },
            three: Cost { instructions: 350.0, allocations: 40 },
        };
        Report::new(&works, &counts, &Memory { idle: 8.126, full: 40.0 }).unwrap()
    }

    #[test]
    fn a_slow_round_moves_neither_time_nor_ratio() {
        let report = report();
        assert_eq!((report.floor_us, report.one_us, report.three_us), (22.0, 66.0, 88.0));
        assert_eq!((report.ratio_one, report.ratio_three), (2.5, 4.0));
    }

    #[test]
    fn the_line_has_its_keys_and_nothing_else() {
        let expected = "{\"floor_us\":22.0,\"one_us\":66.0,\"three_us\":88.0,\"ratio_one\":2.5,\"ratio_three\":4.0,\
                        \"scans_one\":1.9,\"scans_three\":3.5,\"allocs_one\":25,\"allocs_three\":40,\
                        \"rss_anon_idle_mib\":8.13,\"rss_anon_full_mib\":40.0}";
        assert_eq!(report().line().unwrap(), expected);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
