use pillion_engine::decision::{Outcome, ProfileDecision, ProfileOutcome, Reason};
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet};

use super::decisions::NONE;
use super::exposition::Format;
use super::series::{GRACE, OTHER};
use super::*;
use crate::counters::text;

/// Returns a decision in which a profile of this name was applied.
fn applied(name: &str) -> ProfileDecision {
    let spec = serde_json::json!({"template": {"metadata": {"annotations": {"a": "b"}}}});
    let spec = serde_json::from_value(spec).unwrap();
    let profile = Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap());
    ProfileDecision { profile, outcome: ProfileOutcome::Applied, reason: Reason::Injected, detail: None }
}

fn injected(profiles: Vec<ProfileDecision>) -> Decision {
    Decision { outcome: Outcome::Injected, profiles, ..Decision::skipped(Reason::Injected) }
}

fn limits(max_tenants: usize, max_profiles: usize) -> MetricsSettings {
    MetricsSettings { max_tenants, max_profiles }
}

/// Counts a request in `namespace`. `known` means that the snapshot has the namespace.
fn answer(metrics: &Metrics, namespace: &str, known: bool, outcome: RequestOutcome) {
    let tenant = metrics.tenants.request();
    tenant.set_namespace(namespace, known);
    let again = tenant.clone();
    again.set_namespace("another-namespace", true);
    again.answered(outcome, false);
    metrics.answered(Endpoint::Any, outcome, Duration::from_micros(30), None);
}

/// Creates every series: each outcome on each path, each reason, and the given numbers of profiles and namespaces.
fn create_all_series(metrics: &Metrics, profiles: usize, namespaces: usize) {
    for outcome in RequestOutcome::ALL {
        for endpoint in Endpoint::ALL {
            metrics.answered(endpoint, outcome, Duration::from_secs(9), None);
        }
        for number in 0..namespaces {
            answer(metrics, &format!("team-{number}"), true, outcome);
        }
    }
    for reason in Reason::ALL {
        metrics.decided(&Decision::skipped(*reason), true);
    }
    for number in 0..profiles {
        let profile = applied(&format!("p{number}"));
        for reason in Reason::ALL {
            let decided = ProfileDecision { outcome: ProfileOutcome::Skipped, reason: *reason, ..profile.clone() };
            metrics.decided(&injected(vec![decided]), false);
        }
    }
}

/// Registers the metrics of this crate as the binary does, except for those of the serving certificate.
fn register_all(settings: &MetricsSettings) -> (Metrics, Exposition) {
    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, settings);
    metrics.register_snapshot(&mut registry, Arc::default());
    drop(ReloadMetrics::register(&mut registry));
    crate::health::Readiness::default().register(&mut registry, PREFIX);
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
                metrics.answered(endpoint, outcome, Duration::from_micros(300), None);
            }
        }
    }
    let text = text(&registry);
    for (times, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
        for endpoint in Endpoint::ALL {
            let (endpoint, outcome) = (endpoint.as_str(), outcome.as_str());
            let line = format!(
                "pillion_webhook_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}} {}\n",
                times + 1
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        if let RequestOutcome::Decided(outcome) = outcome {
            let count = (times + 1) * Endpoint::ALL.len();
            let line =
                format!("pillion_webhook_request_duration_seconds_count{{outcome=\"{}\"}} {count}\n", outcome.as_str());
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    // The outcomes `bad_request`, `error` and `shed` occurred 6, 7 and 8 times on each path.
    let failed = (6 + 7 + 8) * Endpoint::ALL.len();
    let line = format!("pillion_webhook_request_duration_seconds_count{{outcome=\"failed\"}} {failed}\n");
    assert!(text.contains(&line), "{line} is not in\n{text}");
    assert!(text.contains("pillion_build_info{component=\"webhook\","), "{text}");
}

#[test]
fn decisions_get_series_on_first_use() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    assert!(!text(&registry).contains("pillion_webhook_decisions_total{"));
    for reason in Reason::ALL {
        metrics.decided(&Decision::skipped(*reason), false);
        metrics.decided(&Decision::denied(*reason, "for a test"), false);
        metrics.decided(&Decision::denied(*reason, "for a test"), true);
        let text = text(&registry);
        let reason = reason.as_str();
        for (outcome, times) in [("skipped", 1), ("denied", 2)] {
            let line = format!(
                "pillion_webhook_decisions_total{{profile=\"{NONE}\",outcome=\"{outcome}\",reason=\"{reason}\"}} {times}\n"
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    let text = text(&registry);
    let series = text.lines().filter(|line| line.starts_with("pillion_webhook_decisions_total{")).count();
    assert_eq!(series, 2 * Reason::ALL.len());
    assert!(text.contains(&format!("pillion_webhook_dry_runs_total {}\n", Reason::ALL.len())), "{text}");
}

#[test]
fn scrape_exports_current_snapshot() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    metrics.register_snapshot(&mut registry, Arc::clone(&snapshot));
    assert!(text(&registry).contains("pillion_webhook_namespaces 0\n"), "{}", text(&registry));
    snapshot.store(Arc::new(Snapshot::default().with_namespace("team-a", Some(Namespace::default()))));
    let text = text(&registry);
    assert!(text.contains("pillion_webhook_namespaces 1\n") && text.contains("pillion_webhook_profiles 0\n"), "{text}");
}

#[test]
fn only_known_namespaces_get_series_up_to_limit() {
    let injected = RequestOutcome::Decided(Outcome::Injected);
    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, &limits(0, 0));
    answer(&metrics, "team-a", true, injected);
    assert!(text(&registry).contains("{tenant=\"_other\",outcome=\"injected\"} 1\n"), "{}", text(&registry));
    assert!(!text(&registry).contains("team-a"), "{}", text(&registry));

    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, &limits(2, 0));
    for (namespace, known) in [("team-a", true), ("made-up", false), ("team-b", true), ("team-c", true)] {
        answer(&metrics, namespace, known, injected);
    }
    answer(&metrics, "team-a", true, RequestOutcome::Shed);
    // The namespace of this request was never set, so the request is not counted.
    metrics.tenants.request().answered(RequestOutcome::BadRequest, false);
    let incomplete = metrics.tenants.request();
    incomplete.set_namespace("team-b", true);
    incomplete.answered(injected, true);
    let text = text(&registry);
    let mut shown: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pillion_webhook_tenant_requests_total")?.split_once(' '))
        .collect();
    shown.retain(|(_, count)| *count != "0");
    let expected = [
        ("{tenant=\"team-a\",outcome=\"injected\"}", "1"),
        ("{tenant=\"team-a\",outcome=\"failed\"}", "1"),
        ("{tenant=\"team-b\",outcome=\"injected\"}", "1"),
        ("{tenant=\"team-b\",outcome=\"incomplete\"}", "1"),
        ("{tenant=\"_other\",outcome=\"injected\"}", "2"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn decisions_are_counted_by_profile() {
    let mut registry = Registry::default();
    let metrics = Metrics::register_with(&mut registry, &limits(0, 3));
    metrics.decided(&injected(vec![applied("nginx"), applied("otel")]), false);
    metrics.decided(&injected(vec![applied("nginx")]), false);
    let skipped =
        ProfileDecision { outcome: ProfileOutcome::Skipped, reason: Reason::ExpressionFailed, ..applied("vault") };
    metrics.decided(&injected(vec![skipped, applied("beyond")]), false);
    let text = text(&registry);
    for line in [
        "{profile=\"nginx\",outcome=\"applied\",reason=\"injected\"} 2\n",
        "{profile=\"otel\",outcome=\"applied\",reason=\"injected\"} 1\n",
        "{profile=\"vault\",outcome=\"skipped\",reason=\"expression_failed\"} 1\n",
        "{profile=\"_other\",outcome=\"applied\",reason=\"injected\"} 1\n",
    ] {
        assert!(text.contains(&format!("pillion_webhook_decisions_total{line}")), "{line} is not in\n{text}");
    }
    assert!(!text.contains("beyond"), "{text}");
}

#[test]
fn deleted_profile_loses_its_series() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (stays, goes) = (applied("stays"), applied("goes"));
    let snapshot = Snapshot::new(ProfileSet::new([Arc::clone(&stays.profile)]));
    metrics.register_snapshot(&mut registry, Arc::new(ArcSwap::from_pointee(snapshot)));
    metrics.decided(&injected(vec![stays, goes]), false);
    // The first scrape detects that the profile was deleted.
    drop(text(&registry));
    let later = std::time::Instant::now() + GRACE;
    metrics.decisions.profiles.release(later, |name| name == "stays");
    let text = text(&registry);
    assert!(text.contains("{profile=\"stays\",") && !text.contains("goes"), "{text}");
}

/// An allowance for the series of the program's other crates, such as those of lookups and caches.
const OTHER_SERIES: usize = 80;

#[test]
fn number_of_series_is_bounded() {
    let (metrics, exposition) = register_all(&limits(0, 0));
    create_all_series(&metrics, 0, 10_000);
    let without_names = series(&exposition);
    assert!(without_names + OTHER_SERIES <= 400, "{without_names}");
    assert!(!exposition.text(Format::Classic).unwrap().contains("team-"), "no tenant has series of its own");

    let settings = MetricsSettings::default();
    let (metrics, exposition) = register_all(&settings);
    create_all_series(&metrics, settings.max_profiles + 10, 10_000);
    let began = std::time::Instant::now();
    let all = series(&exposition);
    println!("{without_names} series, {all} with tenants and profiles, written in {:?}", began.elapsed());
    let expected = without_names + 5 * settings.max_tenants + (settings.max_profiles + 1) * Reason::ALL.len();
    assert_eq!(all, expected, "each tenant has 5 series, each profile one for each reason");
    let text = exposition.text(Format::OpenMetrics).unwrap();
    assert!(text.contains(&format!("{{tenant=\"{OTHER}\",outcome=\"injected\"}} 9900\n")), "{text}");
}
