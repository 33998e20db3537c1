//! The metrics that every process of Pillion exports: its resources and its build.

use std::fmt;

use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Registers the metrics of the process, and `pillion_build_info`. `component` is `webhook` or `controller`.
pub fn register_process(registry: &mut Registry, component: &'static str) {
    registry.register_collector(Box::new(ProcessCollector));
    let known = |text: &'static str| if text.is_empty() { "unknown" } else { text };
    let build = Info::new([
        ("component", component),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", known(env!("PILLION_REVISION"))),
        ("rustc", known(env!("PILLION_RUSTC"))),
    ]);
    registry.sub_registry_with_prefix("pillion").register("build", "The build of this process", build);
}

/// Exports metrics of this process under the names that Prometheus' own client libraries use, without a prefix. They
/// are read at each scrape. If `/proc` is not readable, they are not exported.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(process) = Process::myself() else { return Ok(()) };
        let Ok(stat) = process.stat() else { return Ok(()) };
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;

        let cpu = ConstCounter::new(seconds(stat.utime.saturating_add(stat.stime)));
        let help = "CPU time of the process, user and system";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;

        let started = procfs::boot_time_secs().ok().map(|boot| boot as f64 + seconds(stat.starttime));
        let open_files = process.fd_count().ok().map(|count| count as f64);
        let max_files = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as f64),
            LimitValue::Unlimited => None,
        });
        let resident = stat.rss.saturating_mul(procfs::page_size()) as f64;
        for (name, help, value) in [
            ("process_start_time_seconds", "Start of the process, as Unix time", started),
            ("process_resident_memory_bytes", "Resident memory of the process", Some(resident)),
            ("process_virtual_memory_bytes", "Virtual memory of the process", Some(stat.vsize as f64)),
            ("process_threads", "Threads of the process", Some(stat.num_threads as f64)),
            ("process_open_fds", "Open file descriptors", open_files),
            ("process_max_fds", "Limit of open file descriptors", max_files),
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

    use super::*;

    #[test]
    fn build_info_names_component_and_version() {
        let mut registry = Registry::default();
        register_process(&mut registry, "controller");
        let text = crate::counters::text(&registry);
        let build = concat!(
            "pillion_build_info{component=\"controller\",version=\"",
            env!("CARGO_PKG_VERSION"),
            "\",revision=\""
        );
        assert!(text.contains(build) && text.contains(",rustc=\"1."), "{text}");
    }

    fn value(name: &str) -> f64 {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
        let text = crate::counters::text(&registry);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    #[test]
    fn exports_metrics_of_this_process() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started = value("process_start_time_seconds");
        assert!(started < now + 2.0 && started > now - 24.0 * 3600.0, "{started}, now {now}");
        // These bounds hold on any machine.
        for name in ["process_resident_memory_bytes", "process_virtual_memory_bytes"] {
            assert!(value(name) > 1e6 && value(name) < 1e15, "{name} {}", value(name));
        }
        assert!(value("process_threads") >= 1.0);

        let before = value("process_open_fds");
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let more = value("process_open_fds");
        // Other tests open and close files at the same time, so the numbers are not exact.
        assert!(more >= before + 50.0 && more < value("process_max_fds"), "{before}, then {more}");
        drop(held);

        let (before, end) = (value("process_cpu_seconds_total"), Instant::now() + Duration::from_secs(20));
        while value("process_cpu_seconds_total") < before + 0.05 {
            assert!(Instant::now() < end, "CPU time is not counted");
        }
    }
}
