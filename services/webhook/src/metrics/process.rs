//! Metrics of the process from the operating system, read at each scrape, with the names of Prometheus' own client
//! libraries.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Metrics of this process, registered without a prefix. Without `/proc` there are none.
#[derive(Debug)]
pub(super) struct Process;

/// The exported fields of `/proc/self/stat`. Times are in clock ticks.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu: u64,
    threads: u64,
    /// Start time since boot.
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses `pid (name) state ...`. The name may contain anything, so fields are counted from its last bracket.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        // proc_pid_stat(5) numbers fields from 1; the first after the name is number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)?.saturating_add(field(15)?),
            threads: field(20)?,
            started: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Parses the boot time from `/proc/stat`, in seconds since 1970.
fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// Parses the limit of open files from `/proc/self/limits`. `None`: unlimited.
fn max_files(text: &str) -> Option<u64> {
    let limits = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    limits.split_ascii_whitespace().next()?.parse().ok()
}

fn open_files() -> Option<u64> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the directory itself, which is open while it is read.
    Some(files.saturating_sub(1) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "what is shown is a floating-point number")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let stat = read("/proc/self/stat").and_then(|text| Stat::parse(&text));
        let boot = read("/proc/stat").and_then(|text| boot_time(&text));
        let max = read("/proc/self/limits").and_then(|text| max_files(&text));

        if let Some(stat) = &stat {
            let cpu = ConstCounter::new(seconds(stat.cpu));
            let help = "User and system time that the process has taken, in seconds";
            cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
            #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^52")]
            if let Some(boot) = boot {
                let began = ConstGauge::new(boot as f64 + seconds(stat.started));
                let help = "When the process was started, in seconds since 1970";
                began.encode(encoder.encode_descriptor(
                    "process_start_time_seconds",
                    help,
                    None,
                    began.metric_type(),
                )?)?;
            }
        }
        let page = rustix::param::page_size() as u64;
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory of the process that is resident, in bytes",
                stat.as_ref().map(|stat| stat.resident_pages.saturating_mul(page)),
            ),
            (
                "process_virtual_memory_bytes",
                "Address space that the process has reserved, in bytes",
                stat.as_ref().map(|stat| stat.virtual_bytes),
            ),
            ("process_threads", "Threads of the process", stat.as_ref().map(|stat| stat.threads)),
            ("process_open_fds", "File descriptors that are open", open_files()),
            ("process_max_fds", "File descriptors that may be open", max),
        ] {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    use prometheus_client::registry::Registry;

    use super::*;

    fn value(name: &str) -> f64 {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    #[test]
    fn a_name_may_hold_anything() {
        let text =
            "7 (a) b (c)) S 1 7 7 0 -1 4194560 91 0 0 0 150 50 0 0 20 0 9 0 4242 1048576 256 18446744073709551615";
        let expected = Stat { cpu: 200, threads: 9, started: 4242, virtual_bytes: 1_048_576, resident_pages: 256 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (cut off) S 1 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn what_is_not_limited_has_no_number() {
        assert_eq!(max_files("Limit  Soft\nMax open files            1024        4096   files\n"), Some(1024));
        assert_eq!(max_files("Max open files            unlimited   unlimited   files\n"), None);
    }

    #[test]
    fn this_process_is_measured() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started = value("process_start_time_seconds");
        assert!(started < now + 2.0 && started > now - 24.0 * 3600.0, "{started}, now {now}");
        // More than a megabyte, and less than any machine has.
        for name in ["process_resident_memory_bytes", "process_virtual_memory_bytes"] {
            assert!(value(name) > 1e6 && value(name) < 1e15, "{name} {}", value(name));
        }
        assert!(value("process_threads") >= 1.0);

        let before = value("process_open_fds");
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let more = value("process_open_fds");
        // Other tests open and close files at the same time.
        assert!(more >= before + 50.0 && more < value("process_max_fds"), "{before}, then {more}");
        drop(held);

        let (before, end) = (value("process_cpu_seconds_total"), Instant::now() + Duration::from_secs(20));
        while value("process_cpu_seconds_total") < before + 0.05 {
            assert!(Instant::now() < end, "time that is taken is not counted");
        }
    }
}
