//! A replica reads its certificate from a Secret on a real API server. The API server also verifies the certificate
//! that the replica serves.

#![allow(clippy::print_stdout, reason = "the test prints its measurements")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_control::Release;
use pillion_control::certificates::ca::{CaSecret, Issuing, KnownCas, Lifetimes, ServingMaterial};
use pillion_control::certificates::rotation::{Generation, Phase, Record};
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::registration::{NAMESPACE, SERVER_NAME};
use pillion_testkit::replica::WEBHOOK_PORT;
use pillion_testkit::{
    ControlPlane, Replica, ReplicaSpec, eventually, isolated_with_crds, namespace, register_service, register_webhook,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;

use crate::direct::metric;
use crate::rig::{NGINX, SOON, bare_pod, install_crds, names, quickest};

/// Time limit for a replica to serve a new certificate.
const SWAPPED_WITHIN: Duration = Duration::from_secs(2);
/// The minimal permissions of a replica.
const ROLE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: serving, namespace: pillion-system}
rules:
- {apiGroups: [''], resources: [secrets], resourceNames: [pillion-serving], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: serving, namespace: pillion-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: serving}
subjects: [{kind: ServiceAccount, name: replica, namespace: pillion-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pillion-replica}
rules:
- {apiGroups: [''], resources: [namespaces], verbs: [get, list, watch]}
- {apiGroups: [pillion.dev], resources: [clusterinjectionprofiles, injectionprofiles], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pillion-replica}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pillion-replica}
subjects: [{kind: ServiceAccount, name: replica, namespace: pillion-system}]
";

/// Accepts any certificate. The tests check the certificate afterwards.
#[derive(Debug)]
struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the serving certificate of a new connection.
async fn served_certificate(replica: &Replica) -> Result<CertificateDer<'static>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    let tcp = TcpStream::connect((replica.address(), WEBHOOK_PORT)).await?;
    let name = ServerName::try_from(SERVER_NAME)?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates().and_then(<[_]>::first).context("no certificate")?;
    Ok(certificate.clone().into_owned())
}

/// Issues certificates and writes the serving Secret, like the controller.
struct Controller {
    release: Release,
    known: KnownCas,
    secrets: Api<Secret>,
}

impl Controller {
    fn new(control_plane: &ControlPlane) -> Result<Self> {
        let release = Release::new("pillion", NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?;
        // The CA is old enough that a certificate issued by it can have expired.
        let now = Timestamp::now() - Duration::from_hours(24 * 20);
        let lifetimes = Lifetimes::default();
        let ca = Issuing { release: &release, lifetimes: &lifetimes, now }.ca(Generation(1))?;
        let record = Record {
            phase: Phase::Stable,
            since: now,
            epoch: 1,
            bundle_epoch: 1,
            certificate_epoch: 1,
            active: Some(ca.facts),
            next: None,
            trigger: None,
        };
        let known = CaSecret::read(None, &release).with(record, Some(ca))?;
        let secrets = Api::namespaced(control_plane.client(), NAMESPACE);
        Ok(Self { release, known, secrets })
    }

    /// Returns a serving certificate for these names that was issued at the time `now`.
    fn issue_certificate(&self, now: Timestamp, names: &[String]) -> Result<ServingMaterial> {
        let lifetimes = Lifetimes::default();
        let issuing = Issuing { release: &self.release, lifetimes: &lifetimes, now };
        Ok(self.known.sign(Generation(1), names, issuing)?)
    }

    /// Writes the Secret that `change` returns. The argument of `change` is the existing Secret, or `None`.
    async fn write(&self, change: impl FnOnce(Option<&Secret>) -> Secret) -> Result<()> {
        let existing = self.secrets.get_opt("pillion-serving").await?;
        let secret = change(existing.as_ref());
        match existing {
            Some(_) => self.secrets.replace("pillion-serving", &PostParams::default(), &secret).await?,
            None => self.secrets.create(&PostParams::default(), &secret).await?,
        };
        Ok(())
    }

    async fn serve(&self, certificate: &ServingMaterial, epoch: u64) -> Result<()> {
        self.write(|existing| certificate.secret(&self.release, epoch, existing)).await
    }

    async fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.write(|existing| {
            let mut secret = existing.cloned().unwrap_or_default();
            secret.data.get_or_insert_default().insert(key.to_owned(), ByteString(value.to_vec()));
            secret
        })
        .await
    }
}

fn reloads(result: &str) -> String {
    format!("pillion_webhook_certificate_reloads_total{{result=\"{result}\"}}")
}

/// Waits until the replica has counted exactly this many reloads with this result.
async fn wait_for_reloads(replica: &Replica, result: &str, times: f64) -> Result<()> {
    let series = reloads(result);
    eventually(SOON, &format!("{series} is {times}"), async || {
        let found = metric(replica, &series).await?;
        ensure!((found - times).abs() < 0.5, "the value is {found}");
        Ok(())
    })
    .await
}

async fn wait_until_served(replica: &Replica, certificate: &ServingMaterial) -> Result<Duration> {
    let began = Instant::now();
    eventually(SOON, "the new certificate is served", async || {
        ensure!(served_certificate(replica).await? == *certificate.certificate(), "the old certificate is served");
        Ok(())
    })
    .await?;
    Ok(began.elapsed())
}

async fn start(control_plane: &ControlPlane, roles: &str) -> Result<Replica> {
    install_crds(control_plane).await?;
    control_plane.apply_yaml(NGINX).await?;
    control_plane.create_namespace(NAMESPACE, &[]).await?;
    control_plane.apply_yaml(roles).await?;
    let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, "replica").await?;
    let mut spec = ReplicaSpec::new(env!("CARGO_BIN_EXE_pillion"), kubeconfig, None);
    spec.args =
        ["--serving-secret", "pillion-system/pillion-serving", "--drain-minimum", "0"].map(ToOwned::to_owned).into();
    Replica::spawn(&spec, namespace::replica_address(1))
}

#[test]
fn certificate_follows_secret_but_never_downgrades() {
    isolated_with_crds(|| async {
        let mut control_plane = ControlPlane::start().await?;
        let mut replica = start(&control_plane, ROLE).await?;
        let controller = Controller::new(&control_plane)?;
        let names_of_release = controller.release.server_names();

        // Without the Secret, only the certificate is missing for readiness, and the replica rejects connections at
        // once.
        eventually(SOON, "only the certificate is missing for readiness", async || {
            let (status, text) = replica.get("/readyz").await?;
            ensure!(status.as_u16() == 503 && text.trim_end().ends_with("waiting for serving certificate"), "{text}");
            ensure!(!text.contains("first lists"), "{text}");
            Ok(())
        })
        .await?;
        quickest(Duration::from_secs(1), "messages", async || {
            let began = Instant::now();
            served_certificate(&replica).await.err().context("a certificate is served")?;
            Ok(began.elapsed())
        })
        .await?;
        ensure!(replica.get("/livez").await?.0.is_success());
        wait_for_reloads(&replica, "unreadable", 1.0).await?;

        // The replica does not become ready with an expired certificate.
        let expired =
            controller.issue_certificate(Timestamp::now() - Duration::from_hours(24 * 8), &names_of_release)?;
        controller.serve(&expired, 1).await?;
        wait_for_reloads(&replica, "invalid", 1.0).await?;
        ensure!(replica.get("/readyz").await?.0.as_u16() == 503);
        served_certificate(&replica).await.err().context("a certificate is served")?;

        let first = controller.issue_certificate(Timestamp::now(), &names_of_release)?;
        controller.serve(&first, 1).await?;
        let took = wait_until_served(&replica, &first).await?;
        replica.ready().await?;

        // The replica is registered as a webhook, to test that the API server accepts the certificate too.
        register_service(&control_plane.client(), &[replica.address()]).await?;
        let bundle = controller.known.bundle(&[Generation(1)], &[])?;
        register_webhook(&control_plane.client(), &webhook_configuration::mutating(&Settings::new(NAMESPACE, bundle)))
            .await?;
        control_plane.create_namespace("strict", &[("pillion.dev/injection", "required")]).await?;
        let pods = Api::<Pod>::namespaced(control_plane.client(), "strict");
        let injected = async || {
            let parameters = PostParams { dry_run: true, ..PostParams::default() };
            let pod = pods.create(&parameters, &serde_json::from_value(bare_pod("web"))?).await?;
            let pod = serde_json::to_value(pod)?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "not injected: {pod}");
            anyhow::Ok(())
        };
        eventually(SOON, "the API server calls the webhook", injected).await?;

        // The replica must serve each of ten new certificates within two seconds.
        let mut all = vec![took];
        let mut served = first;
        for epoch in 2..12 {
            served = controller.issue_certificate(Timestamp::now(), &names_of_release)?;
            controller.serve(&served, epoch).await?;
            all.push(wait_until_served(&replica, &served).await?);
            injected().await?;
        }
        println!("the first, and 10 swaps: {all:?}");
        ensure!(all.iter().all(|took| *took < SWAPPED_WITHIN), "{all:?}");
        wait_for_reloads(&replica, "served", 11.0).await?;

        // The replica rejects and counts invalid certificates, and continues to serve the old one.
        let other = controller.issue_certificate(Timestamp::now(), &names_of_release)?;
        let for_trust_probe =
            controller.issue_certificate(Timestamp::now(), &controller.release.trust_probe_names())?;
        let ahead = controller.issue_certificate(Timestamp::now() + Duration::from_hours(3), &names_of_release)?;
        let foreign = Controller::new(&control_plane)?;
        controller.set("tls.crt", b"junk").await?;
        wait_for_reloads(&replica, "invalid", 2.0).await?;
        controller.serve(&served, 12).await?;
        wait_for_reloads(&replica, "unchanged", 1.0).await?;
        controller.set("tls.key", other.key().pem().as_bytes()).await?;
        wait_for_reloads(&replica, "invalid", 3.0).await?;
        controller.serve(&for_trust_probe, 13).await?;
        wait_for_reloads(&replica, "invalid", 4.0).await?;
        controller.serve(&expired, 14).await?;
        wait_for_reloads(&replica, "invalid", 5.0).await?;
        controller.serve(&ahead, 15).await?;
        wait_for_reloads(&replica, "invalid", 6.0).await?;
        controller.serve(&other, 16).await?;
        wait_until_served(&replica, &other).await?;
        let foreign_bundle = foreign.known.bundle(&[Generation(1)], &[])?;
        controller.set("ca.crt", foreign_bundle.as_bytes()).await?;
        wait_for_reloads(&replica, "invalid", 7.0).await?;
        ensure!(served_certificate(&replica).await? == *other.certificate());
        let log = replica.log_text()?;
        for reason in ["no_certificate", "mismatch", "name", "expired", "not_yet", "untrusted"] {
            ensure!(log.contains(&format!("reason=\"{reason}\"")), "{reason} is not in\n{log}");
        }

        // The replica continues to serve its certificate after the Secret is deleted, and while the API server is down.
        controller.secrets.delete("pillion-serving", &DeleteParams::default()).await?;
        wait_for_reloads(&replica, "unreadable", 2.0).await?;
        ensure!(
            served_certificate(&replica).await? == *other.certificate() && replica.get("/readyz").await?.0.is_success()
        );
        injected().await?;
        control_plane.stop_api_server()?;
        ensure!(
            served_certificate(&replica).await? == *other.certificate() && replica.get("/readyz").await?.0.is_success()
        );
        control_plane.start_api_server().await?;
        let last = controller.issue_certificate(Timestamp::now(), &names_of_release)?;
        controller.serve(&last, 17).await?;
        wait_until_served(&replica, &last).await?;
        wait_for_reloads(&replica, "unreadable", 2.0).await?;
        Ok(())
    });
}

#[test]
fn replica_reports_missing_secret_permission() {
    isolated_with_crds(|| async {
        let control_plane = ControlPlane::start().await?;
        let replica = start(&control_plane, &ROLE.replace("[pillion-serving]", "[another]")).await?;
        eventually(SOON, "the missing permission is logged", async || {
            let log = replica.log_text()?;
            ensure!(log.contains("get, list and watch for this object, by its name"), "{log}");
            Ok(())
        })
        .await?;
        let (status, text) = replica.get("/readyz").await?;
        ensure!(status.as_u16() == 503 && text.contains("serving certificate"), "{text}");
        Ok(())
    });
}
