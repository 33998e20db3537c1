use pillion_engine::decision::{Outcome, ProfileDecision, ProfileOutcome, Reason};
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet};

use super::exposition::Format;
use super::series::{GRACE, MAX_PROFILES, OTHER};
use super::*;
use crate::counters::text;

/// Returns a decision that applied a profile of this name.
fn applied(name: &str) -> ProfileDecision {
    let spec = serde_json::json!({"template": {"metadata": {"annotations": {"a": "b"}}}});
    let spec = serde_json::from_value(spec).unwrap();
    let profile = Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap());
    ProfileDecision { profile, outcome: ProfileOutcome::Applied, reason: Reason::Injected, detail: None }
}

fn injected(profiles: Vec<ProfileDecision>) -> Decision {
    Decision { outcome: Outcome::Injected, profiles, ..Decision::skipped(Reason::Injected) }
}

fn tenants(max_namespaces: usize) -> MetricsSettings {
    MetricsSettings { tenants: TenantSettings { enabled: true, max_namespaces } }
}

/// Counts a request in `namespace`. `known`: the snapshot has the namespace.
fn answer(metrics: &Metrics, namespace: &str, known: bool, outcome: RequestOutcome) {
    let tenant = metrics.tenants.request();
    tenant.set_namespace(namespace, known);
    tenant.clone().set_namespace("another-namespace", true);
    metrics.answered(Endpoint::Any, outcome, Duration::from_micros(30), None, &tenant);
}

/// Creates every series: each outcome on each path, each reason, and this many profiles and namespaces.
fn create_all_series(metrics: &Metrics, profiles: usize, namespaces: usize) {
    for outcome in RequestOutcome::ALL {
        for endpoint in Endpoint::ALL {
            metrics.answered(endpoint, outcome, Duration::from_secs(9), None, &Tenant::default());
        }
        for number in 0..namespaces {
            answer(metrics, &format!("team-{number}"), true, outcome);
        }
    }
    for reason in Reason::ALL {
        metrics.decided(&Decision::skipped(*reason), true);
    }
    let template = applied("p");
    for number in 0..profiles {
        metrics.decided(&injected(vec![ProfileDecision { ..applied(&format!("p{number}")) }]), false);
    }
    metrics.decided(&injected(vec![template]), false);
}

/// Registers all metrics of this crate as the binary does.
fn register_all(settings: &MetricsSettings) -> (Metrics, Exposition) {
    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, settings);
    metrics.register_snapshot(&mut registry, Arc::default());
    drop(ReloadMetrics::register(&mut registry));
    crate::health::Readiness::default().register(&mut registry);
    let exposition = Exposition::from(registry);
    (metrics, exposition)
}

fn series(exposition: &Exposition) -> usize {
    let text = exposition.text(Format::OpenMetrics).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).count()
}

#[test]
fn requests_are_counted_by_outcome() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    for (times, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
        for _ in 0..=times {
            for endpoint in Endpoint::ALL {
                metrics.answered(endpoint, outcome, Duration::from_micros(300), None, &Tenant::default());
            }
        }
    }
    let text = text(&registry);
    for (times, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
        for endpoint in Endpoint::ALL {
            let (endpoint, outcome) = (endpoint.as_str(), outcome.as_str());
            let line = format!(
                "pillion_admission_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}} {}\n",
                times + 1
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        if let RequestOutcome::Decided(outcome) = outcome {
            let count = (times + 1) * Endpoint::ALL.len();
            let line =
                format!("pillion_admission_duration_seconds_count{{outcome=\"{}\"}} {count}\n", outcome.as_str());
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    // Bad request, error and shed: 6, 7 and 8 times on each path.
    let failed = (6 + 7 + 8) * Endpoint::ALL.len();
    let line = format!("pillion_admission_duration_seconds_count{{outcome=\"failed\"}} {failed}\n");
    assert!(text.contains(&line), "{line} is not in\n{text}");
    let build = concat!("pillion_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\",revision=\"");
    assert!(text.contains(build) && text.contains(",rustc=\"1."), "{text}");
}

#[test]
fn decisions_get_series_on_first_use() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    assert!(!text(&registry).contains("pillion_decisions_total{"));
    for reason in Reason::ALL {
        metrics.decided(&Decision::skipped(*reason), false);
        metrics.decided(&Decision::denied(*reason, "for a test"), false);
        metrics.decided(&Decision::denied(*reason, "for a test"), true);
        let text = text(&registry);
        let reason = reason.as_str();
        for (outcome, times) in [("skipped", 1), ("denied", 2)] {
            let line = format!("pillion_decisions_total{{outcome=\"{outcome}\",reason=\"{reason}\"}} {times}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    let text = text(&registry);
    let series = text.lines().filter(|line| line.starts_with("pillion_decisions_total{")).count();
    assert_eq!(series, 2 * Reason::ALL.len());
    assert!(text.contains(&format!("pillion_dry_runs_total {}\n", Reason::ALL.len())), "{text}");
}

#[test]
fn scrape_exports_current_snapshot() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    metrics.register_snapshot(&mut registry, Arc::clone(&snapshot));
    assert!(text(&registry).contains("pillion_namespaces 0\n"), "{}", text(&registry));
    snapshot.store(Arc::new(Snapshot::default().with_namespace("team-a", Some(Namespace::default()))));
    let text = text(&registry);
    assert!(text.contains("pillion_namespaces 1\n") && text.contains("pillion_profiles 0\n"), "{text}");
}

#[test]
fn only_known_namespaces_get_series_if_enabled() {
    let injected = RequestOutcome::Decided(Outcome::Injected);
    let mut registry = Registry::default();
    let off = Metrics::register(&mut registry);
    answer(&off, "team-a", true, injected);
    assert!(!text(&registry).contains("pillion_tenant"), "{}", text(&registry));

    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, &tenants(2));
    for (namespace, known) in [("team-a", true), ("made-up", false), ("team-b", true), ("team-c", true)] {
        answer(&metrics, namespace, known, injected);
    }
    answer(&metrics, "team-a", true, RequestOutcome::Shed);
    // A request whose namespace stayed unknown.
    metrics.answered(Endpoint::Any, RequestOutcome::BadRequest, Duration::ZERO, None, &metrics.tenants.request());
    let text = text(&registry);
    let mut shown: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("pillion_tenant_requests_total")?.split_once(' ')).collect();
    shown.retain(|(_, count)| *count != "0");
    let expected = [
        ("{namespace=\"team-a\",outcome=\"injected\"}", "1"),
        ("{namespace=\"team-a\",outcome=\"failed\"}", "1"),
        ("{namespace=\"team-b\",outcome=\"injected\"}", "1"),
        ("{namespace=\"_other\",outcome=\"injected\"}", "2"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn injections_are_counted_by_profile() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.decided(&injected(vec![applied("nginx"), applied("otel")]), false);
    metrics.decided(&injected(vec![applied("nginx")]), false);
    let left_out = ProfileDecision { outcome: ProfileOutcome::Skipped, ..applied("vault") };
    metrics.decided(&injected(vec![left_out]), false);
    let text = text(&registry);
    for line in ["{profile=\"nginx\"} 2\n", "{profile=\"otel\"} 1\n", "{profile=\"_other\"} 0\n"] {
        assert!(text.contains(&format!("pillion_profile_injections_total{line}")), "{text}");
    }
    assert!(!text.contains("vault"), "{text}");
}

#[test]
fn deleted_profile_loses_its_series() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (stays, goes) = (applied("stays"), applied("goes"));
    let snapshot = Snapshot::new(ProfileSet::new([Arc::clone(&stays.profile)]));
    metrics.register_snapshot(&mut registry, Arc::new(ArcSwap::from_pointee(snapshot)));
    metrics.decided(&injected(vec![stays, goes]), false);
    // The first scrape notices that the profile is gone.
    drop(text(&registry));
    let later = std::time::Instant::now() + GRACE;
    metrics.profiles.release(later, |name| name == "stays");
    let text = text(&registry);
    assert!(text.contains("{profile=\"stays\"} 1\n") && !text.contains("goes"), "{text}");
}

/// The number of series of other parts of the program: lookups, queues, caches.
const OTHER_SERIES: usize = 80;

#[test]
fn number_of_series_is_bounded() {
    let (metrics, exposition) = register_all(&MetricsSettings::default());
    create_all_series(&metrics, 0, 10_000);
    let without_profiles = series(&exposition);
    assert!(without_profiles + OTHER_SERIES <= 400, "{without_profiles}");
    assert!(!exposition.text(Format::Classic).unwrap().contains("team-"), "tenants are off");

    let (metrics, exposition) = register_all(&tenants(TenantSettings::default().max_namespaces));
    create_all_series(&metrics, MAX_PROFILES + 10, 10_000);
    let began = std::time::Instant::now();
    let all = series(&exposition);
    println!("{without_profiles} series, {all} with tenants and profiles, written in {:?}", began.elapsed());
    assert!(all > 2200 && all + OTHER_SERIES <= 3000, "{all}");
    let text = exposition.text(Format::OpenMetrics).unwrap();
    assert!(text.contains(&format!("{{namespace=\"{OTHER}\",outcome=\"injected\"}} 9500\n")), "{text}");
}
