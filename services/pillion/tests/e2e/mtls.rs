//! Tests client authentication. The API server presents a client certificate, configured as in `docs/certificates.md`.
//! The webhook must reject all other clients.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pillion_testkit::control_plane::Builder;
use pillion_testkit::registration::SERVER_NAME;
use pillion_testkit::replica::WEBHOOK_PORT;
use pillion_testkit::{ControlPlane, Isolation, Replica, TestCa, eventually, isolated_with_crds, namespace};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Rig, SOON, bare_pod, names};

/// The documentation page, whose configuration files the test uses. Only their folder is replaced.
const PAGE: &str = include_str!("../../../../docs/certificates.md");
const CLIENT_NAME: &str = "kube-apiserver-pillion";

/// Returns the first `yaml` block of the page that contains the text `says`.
fn block(says: &str) -> Result<&'static str> {
    let blocks = PAGE.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks
        .into_iter()
        .find(|block| block.contains(says))
        .with_context(|| format!("no block with {says} in docs/certificates.md"))
}

/// Returns a builder of an API server that uses the configuration files on the page. Writes these files to the folder.
fn with_certificate(ca: &TestCa, folder: &Path) -> Result<Builder> {
    ca.client_files(folder, "pillion-client", CLIENT_NAME)?;
    let folder_text = folder.to_str().context("a folder of text")?;
    for (file, says) in [("admission.yaml", "kind: AdmissionConfiguration"), ("webhooks.kubeconfig", "kind: Config")] {
        std::fs::write(folder.join(file), block(says)?.replace("/etc/kubernetes/pillion", folder_text))?;
    }
    let argument = format!("--admission-control-config-file={folder_text}/admission.yaml");
    Ok(ControlPlane::builder().api_server_arg(argument))
}

/// Sends a forged review without a client certificate. Returns the status of the response. The client trusts the CA in
/// the file `root`.
async fn forged(replica: &Replica, root: &Path) -> Result<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect((replica.address(), WEBHOOK_PORT)).await?;
    let mut stream =
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(SERVER_NAME)?, tcp).await?;
    // The request announces a body but sends none, because the webhook must respond without reading it.
    let head =
        "POST /mutate/required HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(std::str::from_utf8(&status)?.split(' ').nth(1).context("a status")?.parse()?)
}

fn value(metrics: &str, series: &str) -> Result<f64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("no series {series}"))?.parse()?)
}

const NO_CERTIFICATE: &str = "pillion_webhook_unauthorized_requests_total{reason=\"no_certificate\"}";

/// Waits until the metrics count a client without a certificate.
async fn is_counted(replica: &Replica) -> Result<()> {
    eventually(SOON, "a client without a certificate is counted", async || {
        ensure!(value(&replica.metrics_text().await?, NO_CERTIFICATE)? > 0.5, "not yet");
        Ok(())
    })
    .await
}

#[test]
fn only_certified_api_server_gets_responses() {
    Isolation::new().own_network("gives the API server a client certificate").run(|| async {
        let folder = namespace::directory()?;
        let ca = TestCa::new()?;
        let control_plane = with_certificate(&ca, &folder)?;
        let file = folder.join("clients.crt");
        std::fs::write(&file, ca.bundle_pem())?;
        let arguments = ["--client-ca", file.to_str().context("text")?, "--client-name", CLIENT_NAME];
        let rig = Rig::start_with(control_plane, &arguments, 1).await?;
        rig.namespace("team-a", Some("enabled")).await?;
        rig.wait_until_called("team-a").await?;
        rig.namespace("strict", Some("required")).await?;
        let created = rig.create("strict", &bare_pod("web")).await?;
        ensure!(names(&created).contains(&"sidecar-nginx".to_owned()), "{created}");

        let replica = &rig.replicas[0];
        let metrics = replica.metrics_text().await?;
        ensure!(value(&metrics, NO_CERTIFICATE)? < 0.5, "the API server was rejected");
        ensure!(value(&metrics, "pillion_webhook_tls_handshakes_total{result=\"ok\"}")? > 0.5);
        let root = rig.control_plane.directory().join("serving-ca.crt");
        std::fs::write(&root, &rig.serving_ca)?;
        ensure!(forged(replica, &root).await? == 401);
        is_counted(replica).await?;
        // Probes work without a client certificate.
        ensure!(replica.get("/readyz").await?.0.is_success());
        Ok(())
    });
}

#[test]
fn api_server_without_certificate_gets_clear_error() {
    isolated_with_crds(|| async {
        let folder = namespace::directory()?;
        let file = folder.join("clients.crt");
        std::fs::write(&file, TestCa::new()?.bundle_pem())?;
        let arguments = ["--client-ca", file.to_str().context("text")?];
        let rig = Rig::start_with(ControlPlane::builder(), &arguments, 1).await?;
        rig.namespace("strict", Some("required")).await?;
        eventually(SOON, "the API server is rejected", async || {
            let refused =
                rig.dry_run("strict", &bare_pod("web")).await.err().context("the webhook is not called yet")?;
            ensure!(format!("{refused:#}").contains("provide credentials"), "{refused:#}");
            Ok(())
        })
        .await?;
        let replica = &rig.replicas[0];
        is_counted(replica).await?;
        eventually(SOON, "the log says what is missing", async || {
            ensure!(replica.log_text()?.contains("--admission-control-config-file"), "{}", replica.log_text()?);
            Ok(())
        })
        .await
    });
}
