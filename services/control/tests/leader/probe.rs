//! Tests probes of endpoints in real endpoint slices.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::Router;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, Patch, PatchParams, PostParams};
use pillion_control::certificates::ca::certificates;
use pillion_control::certificates::clock::{self, Clock, ClockMetrics};
use pillion_control::certificates::rotation::{Generation, ProbeSummary};
use pillion_control::leader::LeaderContext;
use pillion_control::probe::{
    self, Defect, Expected, KnownCa, ProbeMetrics, ProbeRound, Prober, Settings, Unreachable, Verdict,
};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME};
use pillion_testkit::{ControlPlane, TestCa, eventually, https, isolated, register_service, register_webhook};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::leader::{SOON, release};

const PORT: u16 = 8443;

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.gap = Duration::from_millis(200);
    // The timeout is long enough for an endpoint on a busy machine.
    settings.timeout = Duration::from_secs(4);
    settings
}

/// The task of a test HTTPS server that stands in for a replica. The server stops when this value is dropped.
struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(address: IpAddr, ca: &TestCa, name: &str) -> anyhow::Result<Serving> {
    let (cert, key) = ca.serving(&[name])?;
    let tls = https::server_config(cert.as_bytes(), key.as_bytes())?;
    // The previous replica may have released the address a moment ago.
    let listener = eventually(SOON, "the port is free", async || Ok(TcpListener::bind((address, PORT)).await?)).await?;
    Ok(Serving(tokio::spawn(https::serve(listener, tls, Router::new()))))
}

fn known(generation: u32, ca: &TestCa) -> KnownCa {
    KnownCa { generation: Generation(generation), certificate: certificates(ca.bundle_pem().as_bytes()).remove(0) }
}

fn expected(known: &[KnownCa], newest: u32, certificate_epoch: u64) -> Arc<Expected> {
    let bundle = known.iter().map(|known| known.certificate.clone()).collect();
    Arc::new(Expected::of(&release(), known.to_vec(), Some(Generation(newest)), bundle, certificate_epoch).unwrap())
}

fn verdicts(found: &ProbeRound) -> Vec<(String, Verdict)> {
    found.probed.iter().map(|probed| (probed.endpoint.address.clone(), probed.verdict)).collect()
}

#[test]
fn probes_all_endpoints_and_pods() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client();
        let (old, new, foreign_ca) = (TestCa::new()?, TestCa::new()?, TestCa::new()?);
        let addresses: Vec<_> = (1..=6).map(replica_address).collect();
        let service = register_service(&client, &addresses).await?;
        service.set_ready(addresses[2], false).await?;
        let _newest = serve(addresses[0], &new, SERVER_NAME).await?;
        let older = serve(addresses[1], &old, SERVER_NAME).await?;
        let untrusted = serve(addresses[2], &foreign_ca, SERVER_NAME).await?;
        let misnamed = serve(addresses[3], &new, "other.pillion-system.svc").await?;
        // One endpoint hangs, and one does not exist.
        let hangs = TcpListener::bind((addresses[4], PORT)).await?;

        let known = [known(1, &old), known(2, &new)];
        let (expected, mut prober) = (expected(&known, 2, 7), Prober::new(settings(), ProbeMetrics::default()));
        let release = release();
        let found = prober.round(&client, &release, &expected).await?;
        let verdicts = verdicts(&found);
        let right = [
            Verdict::Newest,
            Verdict::Older(Generation(1)),
            Verdict::Untrusted,
            Verdict::Invalid(Defect::WrongName),
            Verdict::Unreachable(Unreachable::Timeout),
            Verdict::Unreachable(Unreachable::Connection),
        ];
        let right: Vec<_> = addresses.iter().map(ToString::to_string).zip(right).collect();
        ensure!(verdicts == right, "{verdicts:?}");
        let folded =
            ProbeSummary { answering: 2, rounds: 0, is_other_ca_served: true, untrusted: true, unreachable: 2 };
        ensure!(found.endpoints == folded, "{:?}", found.endpoints);

        // Only endpoints with the newest certificate remain.
        drop((untrusted, misnamed, hangs));
        for address in addresses.iter().skip(2) {
            service.remove(*address).await?;
        }
        drop(older);
        let _second = serve(addresses[1], &new, SERVER_NAME).await?;
        for round in 1..=3 {
            let found = prober.round(&client, &release, &expected).await?;
            ensure!(
                found.endpoints == ProbeSummary { answering: 2, rounds: round, ..nothing() },
                "{:?}",
                found.endpoints
            );
            tokio::time::sleep(settings().gap).await;
        }
        // A new endpoint restarts the count. Without endpoints, no round is passed.
        let third = serve(addresses[5], &new, SERVER_NAME).await?;
        service.set_ready(addresses[5], false).await?;
        let found = prober.round(&client, &release, &expected).await?;
        ensure!(found.endpoints == ProbeSummary { answering: 3, rounds: 1, ..nothing() }, "{:?}", found.endpoints);
        drop(third);
        for address in [addresses[0], addresses[1], addresses[5]] {
            service.remove(address).await?;
        }
        let found = prober.round(&client, &release, &expected).await?;
        ensure!(found.endpoints == nothing(), "{:?}", found.endpoints);

        // The pods created here are in no endpoint slice yet.
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        for (name, app) in [("a-replica", "pillion"), ("another", "other")] {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"app": app}},
                "spec": {"containers": [{"name": "webhook", "image": "pillion:1"}]},
            }))?;
            pods.create(&PostParams::default(), &pod).await?;
            let ip = addresses[0].to_string();
            let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
            pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        let found = prober.round(&client, &release, &expected).await?;
        ensure!(found.endpoints == nothing(), "the Service selects no pods: {:?}", found.endpoints);
        let selects = json!({"spec": {"selector": {"app": "pillion"}, "ports": [
            {"name": "https", "port": 443, "targetPort": PORT}]}});
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        services.patch(release.service(), &PatchParams::default(), &Patch::Merge(&selects)).await?;
        let found = prober.round(&client, &release, &expected).await?;
        ensure!(found.endpoints == ProbeSummary { answering: 1, rounds: 1, ..nothing() }, "{:?}", found.endpoints);
        Ok(())
    });
}

const fn nothing() -> ProbeSummary {
    ProbeSummary { answering: 0, rounds: 0, is_other_ca_served: false, untrusted: false, unreachable: 0 }
}

#[test]
fn probes_follow_changed_requirements() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let (old, new) = (TestCa::new()?, TestCa::new()?);
        let address = replica_address(1);
        let service = register_service(&control_plane.client(), &[address]).await?;
        let replica = serve(address, &old, SERVER_NAME).await?;
        let known = [known(1, &old), known(2, &new)];
        let (first, second) = (expected(&known, 1, 1), expected(&known, 2, 4));

        let (wanted, wants) = watch::channel(None);
        let (finds, mut found) = watch::channel(None);
        let leading = LeaderContext {
            client: control_plane.client(),
            release: Arc::new(release()),
            stop: CancellationToken::new(),
        };
        let stop = leading.stop.clone();
        let mut registry = Registry::default();
        let metrics = ProbeMetrics::register(&mut registry);
        let clock = Clock::new(clock::Settings::default(), ClockMetrics::default());
        let running = tokio::spawn(probe::run(leading, settings(), metrics, clock, wants, finds));

        wanted.send_replace(Some(Arc::clone(&first)));
        let enough = |expected: Arc<Expected>| {
            move |found: &Option<ProbeRound>| ProbeRound::of(found.as_ref(), &expected).rounds >= 3
        };
        tokio::time::timeout(SOON, found.wait_for(enough(Arc::clone(&first)))).await??;
        // The new requirements need another certificate, so rounds that were passed for the first requirements do not
        // count.
        ensure!(ProbeRound::of(found.borrow().as_ref(), &second) == nothing());
        wanted.send_replace(Some(Arc::clone(&second)));
        let older = |found: &Option<ProbeRound>| ProbeRound::of(found.as_ref(), &second).is_other_ca_served;
        tokio::time::timeout(SOON, found.wait_for(older)).await??;
        drop(replica);
        let _replica = serve(address, &new, SERVER_NAME).await?;
        tokio::time::timeout(SOON, found.wait_for(enough(Arc::clone(&second)))).await??;
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry)?;
        ensure!(page.contains("pillion_controller_endpoints{state=\"newest\"} 1"), "{page}");

        // An endpoint that does not respond counts as unreachable, so no round is passed.
        service.set_ready(replica_address(2), true).await?;
        let silent = |found: &Option<ProbeRound>| {
            let seen = ProbeRound::of(found.as_ref(), &second);
            seen.unreachable == 1 && seen.rounds == 0
        };
        tokio::time::timeout(SOON, found.wait_for(silent)).await??;

        stop.cancel();
        running.await?;
        ensure!(found.borrow().is_none(), "a controller that does not lead has no results");
        Ok(())
    });
}

#[test]
fn first_endpoint_is_found_soon() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let (ca, address) = (TestCa::new()?, replica_address(1));
        register_service(&control_plane.client(), &[address]).await?;
        // No API server trusts a CA yet, so the bundle is empty.
        let first = Expected::of(&release(), vec![known(1, &ca)], Some(Generation(1)), Vec::new(), 1).map(Arc::new);

        let (_wanted, wants) = watch::channel(first.clone());
        let (finds, mut found) = watch::channel(None);
        let stop = CancellationToken::new();
        let leading =
            LeaderContext { client: control_plane.client(), release: Arc::new(release()), stop: stop.clone() };
        let mut settings = settings();
        settings.gap = Duration::from_hours(1);
        let clock = Clock::new(clock::Settings::default(), ClockMetrics::default());
        let running = tokio::spawn(probe::run(leading, settings, ProbeMetrics::default(), clock, wants, finds));

        let summary = |found: &Option<ProbeRound>| first.as_ref().map(|first| ProbeRound::of(found.as_ref(), first));
        let unreachable = |found: &Option<ProbeRound>| summary(found).is_some_and(|found| found.unreachable == 1);
        tokio::time::timeout(SOON, found.wait_for(unreachable)).await??;
        let _replica = serve(address, &ca, SERVER_NAME).await?;
        let answering = |found: &Option<ProbeRound>| summary(found).is_some_and(|found| found.answering == 1);
        tokio::time::timeout(SOON, found.wait_for(answering)).await??;
        stop.cancel();
        running.await?;
        Ok(())
    });
}

#[test]
fn reports_certificates_of_other_issuers() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client();
        let (theirs, foreign_ca) = (TestCa::new()?, TestCa::new()?);
        let addresses = [replica_address(1), replica_address(2)];
        register_service(&client, &addresses).await?;
        let _foreign = serve(addresses[1], &foreign_ca, SERVER_NAME).await?;
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": "pillion"},
            "webhooks": [{
                "name": "enabled.pillion.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {
                    "service": {"namespace": "pillion-system", "name": "pillion", "path": "/mutate/enabled"},
                    "caBundle": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, theirs.bundle_pem()),
                },
            }],
        }))?;
        register_webhook(&client, &configuration).await?;

        let mut registry = Registry::default();
        let metrics = ProbeMetrics::register(&mut registry);
        let switches: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let leading = LeaderContext { client, release: Arc::new(release()), stop: CancellationToken::new() };
        let stop = leading.stop.clone();
        let running = tokio::spawn(probe::report(leading, settings(), metrics));
        let reported = async |trusted: usize| {
            eventually(SOON, "the results are reported", async || {
                let mut page = String::new();
                prometheus_client::encoding::text::encode(&mut page, &registry)?;
                for line in [
                    format!("pillion_controller_endpoints{{state=\"trusted\"}} {trusted}"),
                    "pillion_controller_endpoints{state=\"untrusted\"} 1".to_owned(),
                ] {
                    ensure!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
                }
                Ok(page)
            })
            .await
        };
        reported(0).await?;
        tokio::time::sleep(2 * settings().gap).await;
        ensure!(
            switches.get_opt("pillion").await?.is_none(),
            "the ConfigMap must not exist before a replica is trusted"
        );

        // The controller creates the ConfigMap of the kill switch, which guardrails need.
        let _trusted = serve(addresses[0], &theirs, SERVER_NAME).await?;
        ensure!(reported(1).await?.contains("endpoint_certificate_not_after_timestamp_seconds "), "no expiry");
        let data = eventually(SOON, "the kill switch exists", async || {
            switches.get_opt("pillion").await?.and_then(|map| map.data).context("no kill switch")
        })
        .await?;
        ensure!(json!(data) == json!({"injection": "enabled", "webhooks": "enabled"}), "{data:?}");

        // The controller does not overwrite an administrator's change.
        let disabled = Patch::Merge(json!({"data": {"injection": "disabled"}}));
        switches.patch("pillion", &PatchParams::default(), &disabled).await?;
        tokio::time::sleep(2 * settings().gap).await;
        ensure!(switches.get("pillion").await?.data.context("no data")?["injection"] == "disabled");
        stop.cancel();
        running.await?;
        Ok(())
    });
}
