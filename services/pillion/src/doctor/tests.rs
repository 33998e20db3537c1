use std::sync::LazyLock;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::{Settings, mutating};
use pillion_control::Release;
use pillion_control::certificates::ca::{Issuing, Lifetimes, ServingMaterial};
use pillion_control::certificates::rotation::Generation;
use serde_json::json;

use super::*;
use crate::availability::WebhookDeployment;
use crate::installation::NotRead;

/// Returns the release's serving certificate with its key and its CA.
fn ca() -> &'static ServingMaterial {
    static MADE: LazyLock<ServingMaterial> = LazyLock::new(|| {
        let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
        let (lifetimes, now) = (Lifetimes::default(), "2026-11-22T00:00:00Z".parse().unwrap());
        let issuing = Issuing { release: &release, lifetimes: &lifetimes, now };
        let ca = issuing.ca(Generation(1)).unwrap();
        issuing.serving_certificate(&ca, &release.server_names()).unwrap()
    });
    &MADE
}

fn serving() -> Secret {
    let release = Release::new("pillion", "pillion-system", "cluster.local").unwrap();
    ca().secret(&release, 1, None)
}

/// Returns the facts of a healthy release.
fn well() -> Facts {
    let now: Timestamp = "2026-11-22T00:00:00Z".parse().unwrap();
    let lease = json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-11-21T23:59:55.000000Z"}});
    Facts {
        release: Release::new("pillion", "pillion-system", "cluster.local").unwrap(),
        now,
        opt_in: OptIn::default(),
        has_crds: true,
        configurations: Some(vec![mutating(&Settings::new("pillion-system", ca().ca_pem()))]),
        switch: Ok(None),
        endpoints: Some(vec![("10.0.0.1".to_owned(), true), ("10.0.0.2".to_owned(), true)]),
        deployment: WebhookDeployment::Replicas(2),
        serving: Ok(Some(serving())),
        probed: Vec::new(),
        dry_run: tried(0, &[]),
        permissions: vec![("pillion-webhook".to_owned(), "list namespaces".to_owned(), true)],
        request_keys: vec!["pillion.dev/inject-nginx".to_owned()],
        missing_accounts: Vec::new(),
        namespaces: vec![("shop".to_owned(), labels(&[(INJECTION_LABEL, "enabled")]))],
        stored: Vec::new(),
        broken: Vec::new(),
        lease: Ok(Some(serde_json::from_value(lease).unwrap())),
        images: vec![("a".to_owned(), format!("ghcr.io/pillion-dev/pillion:{}", env!("CARGO_PKG_VERSION")))],
        unrequested: BTreeSet::new(),
        unread: Vec::new(),
    }
}

fn tried(untouched: usize, refused: &[&str]) -> DryRun {
    DryRun::Tried {
        namespace: "shop".to_owned(),
        profile: "nginx".to_owned(),
        tries: 6,
        untouched,
        refused: refused.iter().map(|&said| said.to_owned()).collect(),
    }
}

fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn codes(facts: &Facts) -> Vec<&'static str> {
    judge(facts).into_iter().flat_map(|(_, findings)| findings).map(|finding| finding.code.as_str()).collect()
}

#[test]
fn healthy_release_has_no_findings() {
    assert_eq!(codes(&well()), Vec::<&str>::new());
}

#[test]
fn each_mistake_has_its_code() {
    let map = |key: &str, word: &str| -> Result<Option<ConfigMap>, NotRead> {
        Ok(serde_json::from_value(json!({"data": {key: word}})).ok())
    };
    let namespaces = |found: &[(&str, &str)]| vec![("shop".to_owned(), labels(found))];
    let unrequested = Unrequested {
        namespace: "shop".to_owned(),
        profile: "nginx".to_owned(),
        container: "sidecar-nginx".to_owned(),
        field: "requests.cpu",
        by: ("ResourceQuota", "compute".to_owned()),
    };
    let cases: Vec<(Facts, &[&str])> = vec![
        (Facts { serving: Ok(None), ..well() }, &["certificate_invalid"]),
        (Facts { switch: map("injection", "maybe"), ..well() }, &["switch_unreadable"]),
        (Facts { switch: map("webhooks", "of"), ..well() }, &["switch_unreadable"]),
        (Facts { has_crds: false, ..well() }, &["crd_missing"]),
        (Facts { switch: map("injection", "disabled"), ..well() }, &["switched_off"]),
        (
            Facts { switch: map("webhooks", "disabled"), configurations: Some(Vec::new()), ..well() },
            &["webhooks_disabled"],
        ),
        (Facts { configurations: Some(Vec::new()), ..well() }, &["not_registered"]),
        // Without a ready replica, the check of the connections to replicas is not reported as passed.
        (Facts { endpoints: Some(Vec::new()), ..well() }, &["no_ready_replica", "unreadable"]),
        (Facts { endpoints: Some(vec![("10.0.0.1".to_owned(), true)]), ..well() }, &["few_ready_replicas"]),
        (Facts { dry_run: tried(2, &[]), ..well() }, &["dry_run_failed"]),
        (Facts { serving: Err(NotRead), ..well() }, &[]),
        (
            Facts { dry_run: tried(0, &["failed calling webhook: x509: unknown authority"]), ..well() },
            &["ca_bundle_mismatch", "dry_run_failed"],
        ),
        (Facts { dry_run: DryRun::NotTried("why".to_owned()), ..well() }, &["dry_run_not_tried"]),
        (
            Facts { permissions: vec![("pillion-webhook".to_owned(), "list namespaces".to_owned(), false)], ..well() },
            &["permission_missing"],
        ),
        (Facts { missing_accounts: vec!["pillion-webhook".to_owned()], ..well() }, &["service_account_missing"]),
        (Facts { unrequested: [unrequested].into(), ..well() }, &["requests_missing"]),
        (Facts { lease: Ok(None), ..well() }, &["no_leader"]),
        (Facts { now: "2026-11-22T00:01:00Z".parse().unwrap(), ..well() }, &["no_leader"]),
        (Facts { namespaces: namespaces(&[(INJECTION_LABEL, "true")]), ..well() }, &["opt_in_value_unknown"]),
        (Facts { namespaces: namespaces(&[(INJECTION_LABEL, "disabled")]), ..well() }, &[]),
        (
            Facts { namespaces: namespaces(&[("pillion.dev/injecton", "enabled")]), ..well() },
            &["opt_in_label_misspelt"],
        ),
        (Facts { namespaces: namespaces(&[("pillion.dev/inject", "true")]), ..well() }, &["opt_in_label_misspelt"]),
        (Facts { namespaces: namespaces(&[("pillion.dev/inject-nginx", "true")]), ..well() }, &[]),
        (Facts { namespaces: namespaces(&[("istio-injection", "enabled")]), ..well() }, &[]),
        (
            Facts {
                images: vec![("a".to_owned(), "x/pillion:1".to_owned()), ("b".to_owned(), "x/pillion:2".to_owned())],
                ..well()
            },
            &["version_skew"],
        ),
        (Facts { images: vec![("a".to_owned(), "x/pillion:v0.0.1-rc.1".to_owned())], ..well() }, &["version_skew"]),
        // Neither the tag of a local build nor a digest identifies a version, so there is no finding.
        (Facts { images: vec![("a".to_owned(), "x/pillion:dev".to_owned())], ..well() }, &[]),
        (Facts { images: vec![("a".to_owned(), format!("x:5000/pillion@sha256:{}", "0".repeat(64)))], ..well() }, &[]),
    ];
    for (facts, expected) in cases {
        assert_eq!(codes(&facts), expected, "{facts:?}");
    }
}

#[test]
fn replica_is_unreachable_only_with_evidence() {
    use pillion_control::probe::{Endpoint, Probed, Unreachable};
    let probed = |address: &str, verdict: Verdict| Probed {
        endpoint: Endpoint { address: address.to_owned(), port: Some(8443) },
        verdict,
        trusted: verdict == Verdict::Trusted,
        not_after: None,
    };
    let silent = Verdict::Unreachable(Unreachable::Connection);
    let one = vec![probed("10.0.0.1", Verdict::Trusted), probed("10.0.0.2", silent)];
    assert_eq!(codes(&Facts { probed: one, ..well() }), ["replica_unreachable"]);
    let all = || vec![probed("10.0.0.1", silent), probed("10.0.0.2", silent)];
    assert_eq!(
        codes(&Facts { probed: all(), ..well() }),
        ["unreadable"],
        "replicas are unreachable from outside the cluster"
    );
    // An unchanged pod proves nothing if injection is disabled, or if another webhook may have reverted the change.
    let off = serde_json::from_value(json!({"data": {"injection": "disabled"}})).unwrap();
    let facts = Facts { probed: all(), dry_run: tried(6, &[]), switch: Ok(Some(off)), ..well() };
    assert_eq!(codes(&facts), ["switched_off", "unreadable", "dry_run_failed"]);
    let mut other = mutating(&Settings::new("mesh-system", "ca"));
    other.metadata.name = Some("mesh".to_owned());
    let configurations = Some(vec![other, well().configurations.unwrap().remove(0)]);
    let facts = Facts { probed: all(), dry_run: tried(6, &[]), configurations, ..well() };
    assert_eq!(codes(&facts), ["unreadable", "dry_run_failed", "other_injector"]);
    let expected = ["replica_unreachable", "replica_unreachable", "dry_run_failed"];
    assert_eq!(codes(&Facts { probed: all(), dry_run: tried(6, &[]), ..well() }), expected);
    let untrusted = vec![probed("10.0.0.1", Verdict::Untrusted), probed("10.0.0.2", Verdict::Trusted)];
    assert_eq!(codes(&Facts { probed: untrusted, ..well() }), ["ca_bundle_mismatch"]);
    // No replica shows a trusted certificate here, but the dry run succeeds. So a proxy between this program and the
    // cluster intercepts TLS.
    let others = || vec![probed("10.0.0.1", Verdict::Untrusted), probed("10.0.0.2", Verdict::Untrusted)];
    let found: Vec<_> = judge(&Facts { probed: others(), ..well() }).into_iter().flat_map(|(_, found)| found).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].code, found[0].severity), (Code::Unreadable, Severity::Info));
    assert!(found[0].message.contains("intercepts TLS"), "{found:?}");
    // Without a webhook entry, there is no `caBundle` that could be wrong.
    let new = Facts { probed: others(), configurations: Some(Vec::new()), ..well() };
    assert!(!codes(&new).contains(&"ca_bundle_mismatch"), "{:?}", codes(&new));
    assert!(codes(&new).contains(&"not_registered"), "{:?}", codes(&new));
    // Without a dry run, nothing proves that the API servers' calls succeed, so each replica is reported.
    let untried = Facts { probed: others(), dry_run: DryRun::NotTried("why".to_owned()), ..well() };
    assert_eq!(codes(&untried), ["ca_bundle_mismatch", "ca_bundle_mismatch", "dry_run_not_tried"]);
}

#[test]
fn other_webhook_is_reported_and_shared_label_warned() {
    let other = |key: &str| {
        let mut other = mutating(&Settings::new("mesh-system", "ca"));
        other.metadata.name = Some("mesh".to_owned());
        for entry in other.webhooks.iter_mut().flatten() {
            let expressions = entry.namespace_selector.as_mut().unwrap().match_expressions.as_mut().unwrap();
            expressions[0].key = key.to_owned();
        }
        let configurations = Some(vec![other, well().configurations.unwrap().remove(0)]);
        judge(&Facts { configurations, ..well() }).into_iter().flat_map(|(_, findings)| findings).collect::<Vec<_>>()
    };
    let apart = other("mesh-injection");
    assert_eq!((apart[0].code, apart[0].severity, apart.len()), (Code::OtherInjector, Severity::Info, 1));
    assert!(apart[0].message.contains("before Pillion, in no opted-in namespace"), "{}", apart[0].message);
    let same = other(INJECTION_LABEL);
    assert_eq!((same[0].code, same[0].severity), (Code::OtherInjector, Severity::Warning));
    assert!(same[0].message.contains("in 1 opted-in namespace: shop"), "{}", same[0].message);
}
