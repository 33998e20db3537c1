//! Loads the serving certificate from a watched Secret or from files, and the CA of clients from a file. `dev` creates
//! its own certificate.
//!
//! cert-manager and the kubelet replace files at run time. The files are polled. A watch would miss changes, because
//! the kubelet replaces a symbolic link to the files' folder.
//!
//! The Secret may not exist yet when a replica starts. Until it has a valid certificate, the replica listens but is not
//! ready, and ends each TLS handshake immediately with an alert. So clients fail fast, and never receive an untrusted
//! certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use kube::Client;
use pillion_api::names::{is_dns_label, is_dns_name};
use pillion_control::certificates::serving_secret::{SecretChange, ServingPair, WatchedSecret};
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::health::Component;
use pillion_webhook::metrics::{ReloadMetrics, ReloadResult};
use pillion_webhook::tls::{PemText, ServingCertificate};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::follow::Ticks;
use crate::output;

/// How often the files are read.
pub(crate) const POLL: Duration = Duration::from_secs(10);

/// Arguments for the serving certificate.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertificateArgs {
    /// The Secret with the serving certificate, as the controller writes it. The replica watches the Secret, serves a
    /// new certificate within a second, and ignores an invalid one.
    #[arg(long, value_name = "[NAMESPACE/]NAME", env = "PILLION_SERVING_SECRET", value_parser = secret_name)]
    #[arg(required_unless_present_any = ["check_config", "tls_cert", "tls_key"], conflicts_with_all = ["tls_cert", "tls_key"])]
    pub(crate) serving_secret: Option<SecretName>,
    /// A name that the certificate in the Secret must have. To give several names, repeat the flag or separate the
    /// names with commas. Default for a Secret RELEASE-serving: RELEASE.NAMESPACE.svc, the name that API servers call.
    #[arg(long = "server-name", value_name = "NAME", env = "PILLION_SERVER_NAME", value_delimiter = ',')]
    #[arg(requires = "serving_secret", conflicts_with_all = ["tls_cert", "tls_key"])]
    pub(crate) server_names: Vec<String>,
    /// PEM file with the serving certificate, followed by its intermediate certificates. Reloaded when it changes.
    #[arg(long, value_name = "FILE", env = "PILLION_TLS_CERT")]
    #[arg(required_unless_present_any = ["check_config", "serving_secret"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the serving certificate. Reloaded when it changes.
    #[arg(long, value_name = "FILE", env = "PILLION_TLS_KEY")]
    #[arg(required_unless_present_any = ["check_config", "serving_secret"])]
    pub(crate) tls_key: Option<PathBuf>,
}

/// The name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretName {
    /// The namespace; `None` means the namespace of the process.
    namespace: Option<String>,
    name: String,
}

/// The source of the serving certificate.
#[derive(Debug)]
pub(crate) enum CertificateSource {
    /// From files.
    Files(CertificateFiles),
    /// From a Secret.
    Secret(CertificateSecret),
}

/// A watched Secret that contains the certificate and its key, and the active certificate.
#[derive(Debug)]
pub(crate) struct CertificateSecret {
    watched: WatchedSecret,
    serving: Arc<ServingCertificate>,
}

/// The files that contain the certificate and its key, and the active certificate.
#[derive(Debug)]
pub(crate) struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    seen: Contents,
    serving: Arc<ServingCertificate>,
}

#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Contents {
    /// Omits the contents, because they include a private key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl CertificateArgs {
    /// Reads and validates the certificate files. A Secret is read later, by [`CertificateSource::follow`]. Returns
    /// `None` if the command line specifies no certificate.
    ///
    /// # Errors
    /// A file cannot be read, the files are not a certificate with its key, the arguments are incomplete, or the name
    /// that the Secret's certificate must have is unknown.
    pub(crate) async fn load(&self, default_namespace: &str) -> anyhow::Result<Option<CertificateSource>> {
        match (&self.serving_secret, &self.tls_cert, &self.tls_key) {
            (Some(secret), None, None) => {
                let watched = secret.watched(&self.server_names, default_namespace)?;
                let serving = ServingCertificate::awaited();
                Ok(Some(CertificateSource::Secret(CertificateSecret { watched, serving })))
            }
            (None, Some(certificate), Some(key)) => {
                let files = CertificateFiles::load(certificate.clone(), key.clone()).await?;
                Ok(Some(CertificateSource::Files(files)))
            }
            (None, None, None) => Ok(None),
            (None, Some(_), None) => bail!("--tls-cert is given without its key: expected --tls-key"),
            (None, None, Some(_)) => bail!("--tls-key is given without its certificate: expected --tls-cert"),
            (Some(_), ..) => {
                bail!("the certificate comes from --serving-secret or from --tls-cert: expected one of them")
            }
        }
    }
}

impl SecretName {
    fn watched(&self, names: &[String], default_namespace: &str) -> anyhow::Result<WatchedSecret> {
        let Self { namespace, name } = self;
        let namespace = namespace.as_deref().unwrap_or(default_namespace).to_owned();
        if let Some(wrong) = names.iter().find(|name| !is_dns_name(name)) {
            bail!("--server-name {wrong:?} is not a DNS name, such as pillion.pillion-system.svc");
        }
        let names = if names.is_empty() {
            let release = name.strip_suffix("-serving").ok_or_else(|| {
                anyhow!(
                    "the name that the certificate in the Secret {name} must have is unknown: expected --server-name, \
                     such as --server-name pillion.{namespace}.svc"
                )
            })?;
            vec![format!("{release}.{namespace}.svc")]
        } else {
            names.to_vec()
        };
        Ok(WatchedSecret { namespace, name: name.clone(), names })
    }
}

/// Parses `NAME` or `NAMESPACE/NAME`.
fn secret_name(text: &str) -> Result<SecretName, String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    if !is_dns_name(name) || namespace.is_some_and(|namespace| !is_dns_label(namespace)) {
        return Err("expected [NAMESPACE/]NAME, such as pillion-system/pillion-serving".to_owned());
    }
    Ok(SecretName { namespace: namespace.map(ToOwned::to_owned), name: name.to_owned() })
}

impl CertificateSource {
    /// Returns the active certificate.
    pub(crate) fn serving(&self) -> Arc<ServingCertificate> {
        match self {
            Self::Files(files) => files.serving(),
            Self::Secret(secret) => Arc::clone(&secret.serving),
        }
    }

    /// Activates new certificates until `stop`. If one is invalid, the last valid certificate remains active.
    /// `ready` is set once there is a certificate, and remains set.
    pub(crate) async fn follow(
        self,
        client: Client,
        reloads: ReloadMetrics,
        ready: Component,
        stop: CancellationToken,
    ) {
        match self {
            Self::Files(files) => {
                ready.set_ready(true);
                files.follow(POLL, reloads, stop).await;
            }
            Self::Secret(CertificateSecret { watched, serving }) => {
                let WatchedSecret { namespace, name, .. } = &watched;
                let source = format!("Secret {namespace}/{name}");
                let tell = |news| reloads.count_check(take(&source, &serving, &ready, news));
                watched.clone().follow(client, stop, tell).await;
            }
        }
    }
}

/// Activates the Secret's certificate if it is valid, and returns the result. Logs the result unless the certificate is
/// unchanged.
fn take(secret: &str, serving: &ServingCertificate, ready: &Component, news: SecretChange) -> ReloadResult {
    let last =
        || if serving.der().is_some() { "the last valid one remains active" } else { "no certificate is served yet" };
    let pair = match news {
        SecretChange::Valid(pair) => pair,
        SecretChange::Invalid(why) => {
            let reason = why.reason.as_str();
            warn!(secret, reason, "the new serving certificate is invalid, {}: {why}", last());
            return ReloadResult::Invalid;
        }
        SecretChange::Older { served, offered } => {
            let (served, offered) = (served.0, offered.0);
            warn!(
                secret,
                reason = "older",
                served,
                offered,
                "the Secret has a serving certificate of an older CA, such as from a restored backup; the served one \
                 remains active until the controller writes a new one"
            );
            return ReloadResult::Invalid;
        }
        SecretChange::Gone => {
            warn!(secret, "the Secret with the serving certificate does not exist, {}", last());
            return ReloadResult::Unreadable;
        }
    };
    let ServingPair { certificate, key, fit, epoch, generation } = *pair;
    let (certificate_source, key_source) = (format!("{secret}, tls.crt"), format!("{secret}, tls.key"));
    let certificate = PemText { source: &certificate_source, text: &certificate };
    match serving.swap(certificate, PemText { source: &key_source, text: &key }) {
        Ok(changed) => {
            ready.set_ready(true);
            if !changed {
                return ReloadResult::Unchanged;
            }
            let (generation, not_after) = (generation.as_deref(), fit.not_after);
            info!(secret, generation, epoch, %not_after, "a new serving certificate is served");
            ReloadResult::Served
        }
        Err(error) => {
            warn!(secret, "the new serving certificate is invalid, {}: {error}", last());
            ReloadResult::Invalid
        }
    }
}

impl CertificateFiles {
    /// Reads and validates the files.
    ///
    /// # Errors
    /// A file cannot be read, or the files are not a certificate with its key.
    pub(crate) async fn load(certificate: PathBuf, key: PathBuf) -> anyhow::Result<Self> {
        let seen = read(&certificate, &key).await?;
        let (first, second) = pem(&certificate, &key, &seen);
        let serving = ServingCertificate::new(first.as_text(), second.as_text())?;
        Ok(Self { certificate, key, seen, serving })
    }

    /// Returns the active certificate.
    pub(crate) fn serving(&self) -> Arc<ServingCertificate> {
        Arc::clone(&self.serving)
    }

    /// Polls the files until `stop`. If the content is invalid, the last valid certificate remains active.
    pub(crate) async fn follow(mut self, every: Duration, reloads: ReloadMetrics, stop: CancellationToken) {
        let mut ticks = Ticks::new(every, stop);
        while ticks.next().await {
            if let Some(result) = self.check_for_changes().await {
                reloads.count_check(result);
            }
        }
    }

    /// Checks the files. Returns the result, or `None` if they have not changed.
    async fn check_for_changes(&mut self) -> Option<ReloadResult> {
        let fresh = match read(&self.certificate, &self.key).await {
            Ok(fresh) => fresh,
            Err(error) => {
                warn!(
                    "the serving certificate cannot be read, the last valid one remains active: {}",
                    output::causes(&error)
                );
                return Some(ReloadResult::Unreadable);
            }
        };
        // Invalid content is loaded again only after a file changes, so it is reported once. If the certificate was
        // read before its key was replaced, the new key is such a change.
        if fresh == self.seen {
            return None;
        }
        let (certificate, key) = pem(&self.certificate, &self.key, &fresh);
        let result = match self.serving.swap(certificate.as_text(), key.as_text()) {
            Ok(true) => {
                info!(certificate = %self.certificate.display(), "a new serving certificate is served");
                ReloadResult::Served
            }
            Ok(false) => ReloadResult::Unchanged,
            Err(error) => {
                warn!("the new serving certificate is invalid, the last valid one remains active: {error}");
                ReloadResult::Invalid
            }
        };
        self.seen = fresh;
        Some(result)
    }
}

/// The path of a file as a string, and the file's content.
struct Named<'c> {
    path: String,
    content: &'c [u8],
}

impl Named<'_> {
    fn as_text(&self) -> PemText<'_> {
        PemText { source: &self.path, text: self.content }
    }
}

fn pem<'c>(certificate: &Path, key: &Path, contents: &'c Contents) -> (Named<'c>, Named<'c>) {
    let named = |path: &Path, content| Named { path: path.display().to_string(), content };
    (named(certificate, &contents.certificate), named(key, &contents.key))
}

async fn read(certificate: &Path, key: &Path) -> anyhow::Result<Contents> {
    let file = async |what: &str, path: &Path| {
        tokio::fs::read(path).await.with_context(|| format!("cannot read {what} {}", path.display()))
    };
    Ok(Contents { certificate: file("the certificate", certificate).await?, key: file("the private key", key).await? })
}

/// Arguments for client authentication.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClientArgs {
    /// PEM file of CAs. The webhook then accepts only clients with a certificate of one of these CAs. API servers must
    /// be configured to send such a certificate (docs/certificates.md). Reloaded when it changes. Default: the webhook
    /// accepts all clients.
    #[arg(long, value_name = "FILE", env = "PILLION_CLIENT_CA")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Accept only clients whose certificate has this name: the common name of its subject, or a DNS name, URI or
    /// e-mail address among its alternative names. To give several names, repeat the flag or separate the names with
    /// commas. Requires --client-ca. Default: any name.
    #[arg(long, value_name = "NAME", env = "PILLION_CLIENT_NAME", value_delimiter = ',')]
    pub(crate) client_name: Vec<String>,
}

/// The file with the CAs of clients, and its active content.
#[derive(Debug)]
pub(crate) struct ClientCaFile {
    path: PathBuf,
    seen: Vec<u8>,
    clients: Arc<ClientCertificates>,
}

impl ClientArgs {
    /// Reads and validates the CA file; `None` without `--client-ca`.
    ///
    /// # Errors
    /// The file cannot be read, has no certificate or has one that is not a valid CA, or `--client-name` is set without
    /// `--client-ca`.
    pub(crate) async fn load(self) -> anyhow::Result<Option<ClientCaFile>> {
        let Some(path) = self.client_ca else {
            if !self.client_name.is_empty() {
                bail!("--client-name requires --client-ca, which verifies the certificates that contain the names");
            }
            return Ok(None);
        };
        let seen = read_file(&path).await.context("--client-ca cannot be used")?;
        let source = path.display().to_string();
        let clients = ClientCertificates::new(PemText { source: &source, text: &seen }, self.client_name)
            .context("--client-ca cannot be used")?;
        Ok(Some(ClientCaFile { path, seen, clients }))
    }
}

impl ClientCaFile {
    /// Returns the active CAs and names.
    pub(crate) fn clients(&self) -> Arc<ClientCertificates> {
        Arc::clone(&self.clients)
    }

    /// Polls the file until `stop`. If the content is invalid, the last valid CAs remain active.
    pub(crate) async fn follow(mut self, every: Duration, stop: CancellationToken) {
        let mut ticks = Ticks::new(every, stop);
        while ticks.next().await {
            self.check_for_changes().await;
        }
    }

    async fn check_for_changes(&mut self) {
        let fresh = match read_file(&self.path).await {
            Ok(fresh) => fresh,
            Err(error) => {
                return warn!(
                    "the client CA cannot be read, the last valid one remains active: {}",
                    output::causes(&error)
                );
            }
        };
        // Invalid content is not loaded again until the file changes, so it is reported once.
        if fresh == self.seen {
            return;
        }
        let source = self.path.display().to_string();
        match self.clients.swap(PemText { source: &source, text: &fresh }) {
            Ok(true) => info!(file = %source, "a new client CA is active"),
            Ok(false) => {}
            Err(error) => warn!("the new client CA is invalid, the last valid one remains active: {error}"),
        }
        self.seen = fresh;
    }
}

async fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(path).await.with_context(|| format!("cannot read {}", path.display()))
}

/// A serving certificate, its key, and its CA, all in PEM format.
pub(crate) struct SelfSigned {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Creates a certificate for a developer's machine, for `localhost`, the loopback addresses, and the listening address.
/// A separate CA signs it, because some clients reject a server certificate that is a CA. The CA's key is discarded.
///
/// # Errors
/// The cryptography library fails.
pub(crate) fn self_signed_certificate(listen: IpAddr) -> anyhow::Result<SelfSigned> {
    let mut params = named("Pillion dev CA")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = CertifiedIssuer::self_signed(params, new_key()?).context("cannot sign the CA")?;

    let mut params = named("Pillion dev")?;
    params.subject_alt_names =
        vec![SanType::DnsName("localhost".try_into().context("cannot set the name of the certificate")?)];
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    params.subject_alt_names.extend(loopback.map(SanType::IpAddress));
    if !listen.is_loopback() && !listen.is_unspecified() {
        params.subject_alt_names.push(SanType::IpAddress(listen));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = new_key()?;
    let certificate = params.signed_by(&key, &ca).context("cannot sign the certificate")?;
    Ok(SelfSigned { ca: ca.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Generates an ECDSA P-256 key.
fn new_key() -> anyhow::Result<KeyPair> {
    KeyPair::generate().context("cannot generate a key")
}

fn named(name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).context("cannot create the parameters of a certificate")?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path) -> String {
        let made = rcgen::generate_simple_self_signed(vec!["pillion.test".to_owned()]).unwrap();
        std::fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        made.cert.pem()
    }

    async fn load(dir: &Path) -> anyhow::Result<CertificateFiles> {
        CertificateFiles::load(dir.join("tls.crt"), dir.join("tls.key")).await
    }

    #[test]
    fn secret_determines_namespace_and_server_names() {
        let watched = |secret: &str, names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            secret_name(secret).unwrap().watched(&names, "here").map_err(|error| error.to_string())
        };
        for (secret, names, expected) in [
            ("pillion-serving", &[][..], ("here", "pillion-serving", &["pillion.here.svc"][..])),
            ("there/two-serving", &[], ("there", "two-serving", &["two.there.svc"])),
            ("there/mine", &["a.b.svc", "c.example"], ("there", "mine", &["a.b.svc", "c.example"])),
        ] {
            let found = watched(secret, names).unwrap();
            assert_eq!((&*found.namespace, &*found.name), (expected.0, expected.1));
            assert_eq!(found.names, expected.2);
        }
        let error = watched("there/mine", &[]).unwrap_err();
        assert!(error.contains("expected --server-name") && error.contains("pillion.there.svc"), "{error}");
        let error = watched("mine", &["a b"]).unwrap_err();
        assert!(error.contains("--server-name \"a b\" is not a DNS name"), "{error}");
        for wrong in ["", "/", "a/", "/a", "a/b/c", "a.b/c", "A/b", "a/B"] {
            let error = secret_name(wrong).unwrap_err();
            assert!(error.contains("[NAMESPACE/]NAME"), "{wrong}: {error}");
        }
    }

    #[test]
    fn first_valid_certificate_makes_replica_ready() {
        let pair = || {
            let made = rcgen::generate_simple_self_signed(vec!["pillion.test".to_owned()]).unwrap();
            (made.cert.pem(), made.signing_key.serialize_pem(), made.cert.der().clone())
        };
        let (certificate, key, der) = pair();
        let news = |key: &str| {
            let fit = pillion_control::certificates::ca::ValidCertificate {
                certificate: der.clone(),
                not_before: jiff::Timestamp::MIN,
                not_after: jiff::Timestamp::MAX,
            };
            let (certificate, key) = (certificate.clone().into_bytes(), key.as_bytes().to_vec());
            SecretChange::Valid(Box::new(ServingPair { certificate, key, fit, epoch: Some(1), generation: None }))
        };
        let readiness = pillion_webhook::health::Readiness::default();
        let (ready, serving) = (readiness.component("serving certificate"), ServingCertificate::awaited());
        let look = |news| take("Secret a/b", &serving, &ready, news);
        assert_eq!(look(SecretChange::Gone), ReloadResult::Unreadable);
        assert_eq!(look(news(&pair().1)), ReloadResult::Invalid);
        assert_eq!(serving.der(), None);
        assert_eq!(readiness.check().unwrap_err().waiting_for, ["serving certificate"]);
        assert_eq!(look(news(&key)), ReloadResult::Served);
        assert!(readiness.check().is_ok() && serving.der() == Some(der.clone()));
        assert_eq!(look(news(&key)), ReloadResult::Unchanged);
        assert_eq!(look(SecretChange::Gone), ReloadResult::Unreadable);
        assert!(readiness.check().is_ok() && serving.der() == Some(der.clone()));
    }

    #[tokio::test]
    async fn missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", load(dir.path()).await.unwrap_err());
        assert!(error.contains("cannot read the certificate") && error.contains("tls.crt"), "{error}");
    }

    #[tokio::test]
    async fn new_files_are_served_unless_broken() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let mut files = load(dir.path()).await.unwrap();
        let taken = |files: &CertificateFiles| files.seen.certificate.clone();

        assert_eq!(files.check_for_changes().await, None, "the files are unchanged");
        let second = write(dir.path());
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Served));
        assert_eq!(taken(&files), second.into_bytes());
        // Swapping to the active certificate returns false, which proves that the second one is active.
        let (certificate, key) = pem(&files.certificate, &files.key, &files.seen);
        assert!(!files.serving.swap(certificate.as_text(), key.as_text()).unwrap());

        std::fs::write(dir.path().join("tls.key"), "broken").unwrap();
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Invalid));
        std::fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Unreadable));
        let third = write(dir.path());
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Served));
        std::fs::write(dir.path().join("tls.crt"), format!("{third}\n")).unwrap();
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Unchanged));
        std::fs::write(dir.path().join("tls.crt"), &third).unwrap();
        assert_eq!(files.check_for_changes().await, Some(ReloadResult::Unchanged));
        assert_eq!(taken(&files), third.into_bytes());
        let (certificate, key) = pem(&files.certificate, &files.key, &files.seen);
        assert!(!files.serving.swap(certificate.as_text(), key.as_text()).unwrap());
    }

    #[tokio::test]
    async fn reload_results_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let files = load(dir.path()).await.unwrap();
        let mut registry = prometheus_client::registry::Registry::default();
        let reloads = ReloadMetrics::register(&mut registry);
        let stop = CancellationToken::new();
        let following = tokio::spawn(files.follow(Duration::from_millis(5), reloads.clone(), stop.clone()));
        let times = async |result, expected: u64| {
            let counted = async {
                while reloads.times(result) < expected {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), counted).await.unwrap();
        };
        write(dir.path());
        times(ReloadResult::Served, 1).await;
        std::fs::remove_file(dir.path().join("tls.key")).unwrap();
        times(ReloadResult::Unreadable, 2).await;
        stop.cancel();
        following.await.unwrap();
    }

    fn ca() -> String {
        self_signed_certificate(Ipv4Addr::LOCALHOST.into()).unwrap().ca
    }

    async fn load_clients(path: &Path) -> anyhow::Result<ClientCaFile> {
        let args = ClientArgs { client_ca: Some(path.to_owned()), client_name: Vec::new() };
        args.load().await.map(Option::unwrap)
    }

    #[tokio::test]
    async fn unusable_client_ca_error_names_flag_and_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        let error = format!("{:#}", load_clients(&path).await.unwrap_err());
        assert!(error.contains("--client-ca") && error.contains("ca.crt"), "{error}");
        let certificate = self_signed_certificate(Ipv4Addr::LOCALHOST.into()).unwrap().certificate;
        for (text, expected) in [("", "has no certificate"), (&*certificate, "is not a CA")] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", load_clients(&path).await.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let args = ClientArgs { client_ca: None, client_name: vec!["kube-apiserver".to_owned()] };
        assert!(args.load().await.unwrap_err().to_string().contains("--client-ca"));
        assert!(ClientArgs::default().load().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn new_client_ca_is_used_unless_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        std::fs::write(&path, ca()).unwrap();
        let mut file = load_clients(&path).await.unwrap();
        // Swapping to the active CA returns false.
        let is_active = |file: &ClientCaFile, text: &str| {
            !file.clients.swap(PemText { source: "a test", text: text.as_bytes() }).unwrap()
        };

        let second = ca();
        std::fs::write(&path, &second).unwrap();
        file.check_for_changes().await;
        assert!(is_active(&file, &second));
        for broken in ["", "-----BEGIN CERTIFICATE-----\nMIIB\n"] {
            std::fs::write(&path, broken).unwrap();
            file.check_for_changes().await;
        }
        std::fs::remove_file(&path).unwrap();
        file.check_for_changes().await;
        assert!(is_active(&file, &second));
        let third = ca();
        std::fs::write(&path, &third).unwrap();
        file.check_for_changes().await;
        assert!(is_active(&file, &third));
    }
}
