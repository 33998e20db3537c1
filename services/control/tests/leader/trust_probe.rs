//! Tests trust probes of two real API servers on one etcd.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pillion_api::trust_probe::{InjectionTrustProbe, PATH, PLURAL, VALIDATE_PATH, WEBHOOK, path};
use pillion_control::certificates::rotation::{Generation, Propagation};
use pillion_control::trust_probe::{
    self, ApiServerProber, Identity, ServerOutcome, Settings, Silence, TrustProbe, TrustProbeMetrics, TrustRound,
};
use pillion_testkit::namespace::{API_SERVER, SECOND_API_SERVER};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, TestCa, eventually, register_webhook};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::leader::{SOON, release};

const CONTROLLER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 111, 2, 1));
const NEWEST: Generation = Generation(2);

/// A controller's trust probe, with the objects that route API servers to it.
struct Rig {
    control_plane: ControlPlane,
    trust_probe: TrustProbe,
    asker: ApiServerProber,
    metrics: TrustProbeMetrics,
    newest: TestCa,
    stop: CancellationToken,
    /// The epoch of the configurations that a proof requires. `writes` is the epoch for which they are written.
    epoch: u64,
    writes: u64,
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    // Shortly after a CRD is established, an API server delays each creation of an object of its kind by two seconds.
    settings.timeout = Duration::from_secs(4);
    settings.keep_unlisted_for = Duration::from_secs(30);
    settings
}

impl Rig {
    async fn start(control_plane: ControlPlane) -> anyhow::Result<Self> {
        let client = control_plane.client();
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        let release = Arc::new(release());
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        services.create(&PostParams::default(), &trust_probe::service(&release)?).await?;
        let (metrics, stop, newest) = (TrustProbeMetrics::default(), CancellationToken::new(), TestCa::new()?);
        let trust_probe = TrustProbe::new(metrics.clone());
        let listener = TcpListener::bind((CONTROLLER, 8444)).await?;
        let address = listener.local_addr()?;
        let (serving, until) = (trust_probe.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, &settings(), until).await });
        let asker = ApiServerProber::new(
            (client, control_plane.config()?),
            release,
            trust_probe.clone(),
            address,
            settings(),
            metrics.clone(),
        );
        Ok(Self { control_plane, trust_probe, asker, metrics, newest, stop, epoch: 0, writes: 0 })
    }

    fn show(&self, generation: Generation, ca: &TestCa) -> anyhow::Result<()> {
        let (cert, key) = ca.serving(&[&release().trust_probe_names()[0]])?;
        self.trust_probe.show(Some(Identity::new(generation, cert.as_bytes(), key.as_bytes())?));
        Ok(())
    }

    /// Writes the configurations with these CAs in their bundles.
    async fn trust(&self, cas: &[&TestCa]) -> anyhow::Result<()> {
        let bundle: String = cas.iter().map(|ca| ca.bundle_pem()).collect();
        let configuration = |kind: &str, path: &str| {
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": "pillion"},
                "webhooks": [{
                    "name": WEBHOOK,
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 2,
                    "clientConfig": {
                        "service": {"namespace": NAMESPACE, "name": release().trust_probe_service(), "path": path, "port": 443},
                        "caBundle": STANDARD.encode(&bundle),
                    },
                    "rules": [{
                        "apiGroups": ["pillion.dev"], "apiVersions": ["v1alpha1"],
                        "operations": ["CREATE"], "resources": [PLURAL], "scope": "Cluster",
                    }],
                }],
            })
        };
        let client = self.control_plane.client();
        let mutating = serde_json::from_value(configuration("MutatingWebhookConfiguration", &path(PATH, self.writes)))?;
        register_webhook(&client, &mutating).await?;
        let validating: ValidatingWebhookConfiguration =
            serde_json::from_value(configuration("ValidatingWebhookConfiguration", &path(VALIDATE_PATH, self.writes)))?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
        configurations.patch("pillion", &PatchParams::apply("test").force(), &Patch::Apply(&validating)).await?;
        Ok(())
    }

    async fn ask(&mut self) -> TrustRound {
        self.asker.ask(NEWEST, self.epoch).await
    }

    /// Sends trust probes until the summary has these numbers.
    async fn becomes(&mut self, proven: usize, behind: usize, silent: usize) -> anyhow::Result<TrustRound> {
        let wanted = Propagation { proven, behind, silent };
        eventually(SOON, "the API servers have this summary", async || {
            let asked = self.ask().await;
            ensure!(asked.propagation == wanted, "{asked:?}");
            Ok(asked)
        })
        .await
    }

    /// Sends trust probes until this many API servers are silent, all for this reason. The first responses may be late.
    async fn are_silent(&mut self, count: usize, why: &Silence) -> anyhow::Result<()> {
        let (wanted, why) = (Propagation { proven: 0, behind: 0, silent: count }, ServerOutcome::Silent(why.clone()));
        eventually(SOON, "the API servers are silent", async || {
            let asked = self.ask().await;
            ensure!(asked.propagation == wanted && asked.answers.iter().all(|each| each.outcome == why), "{asked:?}");
            Ok(())
        })
        .await
    }
}

#[test]
fn each_api_server_proves_its_own_trust() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(10)).run(|| async {
        let mut control_plane = ControlPlane::start().await?;
        let mut second = control_plane.second_api_server().await?;
        // The test pauses the second API server later, so it must be a separate process. The first one belongs to the
        // leased control plane, so `api_server` returns `None`.
        ensure!(control_plane.api_server().is_none() && second.process().exited()?.is_none());
        let mut rig = Rig::start(control_plane).await?;
        let old = TestCa::new()?;

        // The trust probe has no certificate yet, and there is no webhook entry.
        let asked = rig.ask().await;
        ensure!(asked.propagation == Propagation { proven: 0, behind: 0, silent: 1 }, "{asked:?}");
        rig.show(NEWEST, &rig.newest)?;
        rig.are_silent(2, &Silence::NotCalled).await?;

        // The bundle has only the old CA at first, and then also the newest.
        rig.trust(&[&old]).await?;
        let asked = rig.becomes(0, 2, 0).await?;
        let servers: Vec<_> = asked.answers.iter().filter_map(|each| each.server).map(|each| each.ip()).collect();
        ensure!(servers == [API_SERVER, SECOND_API_SERVER], "{servers:?}");
        ensure!(rig.metrics.calls() == 0, "an untrusted endpoint gets no call");
        rig.trust(&[&old, &rig.newest]).await?;
        rig.becomes(2, 0, 0).await?;
        ensure!(rig.metrics.calls() >= 2);

        // A paused API server counts as silent, although it proved its trust before.
        second.process().pause()?;
        eventually(SOON, "the running API server is asked in time", async || {
            let since = Instant::now();
            let asked = rig.ask().await;
            ensure!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
            ensure!(asked.propagation == Propagation { proven: 1, behind: 0, silent: 1 }, "{asked:?}");
            Ok(())
        })
        .await?;
        rig.trust(&[&old]).await?;
        rig.becomes(0, 1, 1).await?;
        // The paused API server leaves the list of endpoints after a while, but is still asked.
        let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
            Api::namespaced(rig.control_plane.client(), "default");
        eventually(SOON, "the paused API server has left the endpoints", async || {
            let all = slices.list(&ListParams::default().labels("kubernetes.io/service-name=kubernetes")).await?;
            let addresses = all.items.iter().flat_map(|slice| slice.endpoints.iter().flatten()).count();
            ensure!(addresses == 1, "{addresses}");
            Ok(())
        })
        .await?;
        rig.becomes(0, 1, 1).await?;
        rig.trust(&[&old, &rig.newest]).await?;
        rig.becomes(1, 0, 1).await?;

        // The API server resumes with its old configuration, and catches up.
        second.process().resume()?;
        rig.becomes(2, 0, 0).await?;
        rig.stop.cancel();
        Ok(())
    });
}

#[test]
fn only_calls_with_newest_certificate_are_proof() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(10)).run(|| async {
        let mut rig = Rig::start(ControlPlane::start().await?).await?;
        let old = TestCa::new()?;
        rig.show(Generation(1), &old)?;
        rig.trust(&[&old, &rig.newest]).await?;
        // The trust probe serves a certificate of another CA.
        let asked = rig.ask().await;
        ensure!(asked.propagation == Propagation { proven: 0, behind: 0, silent: 1 }, "{asked:?}");
        ensure!(asked.answers[0].outcome == ServerOutcome::Silent(Silence::NoCertificate), "{asked:?}");
        let asked = eventually(SOON, "trust in the old CA is proven", async || {
            let asked = rig.asker.ask(Generation(1), 0).await;
            ensure!(asked.propagation.proven == 1, "{asked:?}");
            Ok(asked)
        })
        .await?;
        ensure!(asked.propagation.silent == 0, "{asked:?}");
        // Calls on connections with the old certificate must not count as proof of trust in the new CA.
        rig.trust(&[&old]).await?;
        let trust_probes: Api<InjectionTrustProbe> = Api::all(rig.control_plane.client());
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually(SOON, "a call succeeds with the old certificate", async || {
            let before = rig.metrics.calls();
            trust_probes.create(&dry_run, &InjectionTrustProbe::new("by-hand")).await?;
            ensure!(rig.metrics.calls() > before);
            Ok(())
        })
        .await?;
        rig.show(NEWEST, &rig.newest)?;
        rig.becomes(0, 1, 0).await?;
        rig.trust(&[&rig.newest]).await?;
        rig.becomes(1, 0, 0).await?;
        ensure!(trust_probes.list(&ListParams::default()).await?.items.is_empty(), "no object is stored");

        // A certificate for other names is not trusted either. A call through only one of the configurations is no
        // proof.
        let (cert, key) = rig.newest.serving(&["other.pillion-system.svc"])?;
        rig.trust_probe.show(Some(Identity::new(NEWEST, cert.as_bytes(), key.as_bytes())?));
        rig.becomes(0, 1, 0).await?;
        rig.show(NEWEST, &rig.newest)?;
        rig.becomes(1, 0, 0).await?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(rig.control_plane.client());
        configurations.delete("pillion", &DeleteParams::default()).await?;
        rig.are_silent(1, &Silence::NotCalled).await?;
        rig.trust(&[&rig.newest]).await?;
        rig.becomes(1, 0, 0).await?;

        // A call through an entry of an earlier epoch does not prove that the API server has the last write.
        rig.epoch = 5;
        rig.are_silent(1, &Silence::Stale).await?;
        rig.writes = 5;
        rig.trust(&[&rig.newest]).await?;
        rig.becomes(1, 0, 0).await?;

        // Three API servers share one address, so two of them were not asked.
        for number in 1..=3 {
            let lease: k8s_openapi::api::coordination::v1::Lease = serde_json::from_value(json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": format!("apiserver-of-a-test-{number}"),
                    "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"},
                },
                "spec": {"holderIdentity": format!("{number}"), "leaseDurationSeconds": 3600,
                    "renewTime": "2999-01-01T00:00:00.000000Z"},
            }))?;
            Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(rig.control_plane.client(), "kube-system")
                .patch(
                    &format!("apiserver-of-a-test-{number}"),
                    &PatchParams::apply("test").force(),
                    &Patch::Apply(&lease),
                )
                .await?;
        }
        eventually(SOON, "two API servers are silent", async || {
            let asked = rig.ask().await;
            ensure!(asked.propagation.proven == 1 && asked.propagation.silent >= 2, "{asked:?}");
            Ok(())
        })
        .await?;

        // An unreachable trust probe proves nothing about trust.
        rig.stop.cancel();
        eventually(SOON, "no API server is proven or behind", async || {
            let asked = rig.ask().await;
            ensure!(asked.propagation.proven == 0 && asked.propagation.behind == 0, "{asked:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn asks_configured_address_without_listed_api_servers() {
    Isolation::new().with_crds().run(|| async {
        let rig = Rig::start(ControlPlane::start().await?).await?;
        rig.show(NEWEST, &rig.newest)?;
        rig.trust(&[&rig.newest]).await?;
        let mut by_name = ApiServerProber::new(
            (rig.control_plane.client(), rig.control_plane.config()?),
            Arc::new(release()),
            rig.trust_probe.clone(),
            SocketAddr::new(CONTROLLER, 8444),
            {
                let mut settings = settings();
                // No API server's certificate has this name, so none can be asked at its own address.
                settings.server_name = "nobody.example.org".to_owned();
                settings
            },
            rig.metrics.clone(),
        );
        let asked = eventually(SOON, "the configured address is asked", async || {
            let asked = by_name.ask(NEWEST, 0).await;
            ensure!(asked.propagation.proven == 1, "{asked:?}");
            Ok(asked)
        })
        .await?;
        let outcomes: Vec<_> = asked.answers.iter().map(|each| (each.server.is_some(), each.outcome.clone())).collect();
        ensure!(
            outcomes == [(true, ServerOutcome::Silent(Silence::Unreachable)), (false, ServerOutcome::Proven)],
            "{outcomes:?}"
        );
        Ok(())
    });
}
