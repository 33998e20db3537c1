//! Loads the CA of clients from a file that changes, since the operators of API servers renew it at run time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use pillion_webhook::clients::ClientCertificates;
use pillion_webhook::tls::PemText;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::causes;
use crate::ticks::Ticks;

/// Arguments that say who may send reviews.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClientArgs {
    /// Answer only clients with a certificate of an authority in this file, PEM: the API servers, if they are set up for
    /// it (docs/mtls.md). Read again when it changes. Default: anybody is answered.
    #[arg(long, value_name = "FILE", env = "PILLION_CLIENT_CA")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Of these, answer only those whose certificate has this name: the common name of its subject, or a DNS name, URI or
    /// e-mail address among its alternative names. May be given several times, and with commas. Default: any of them.
    #[arg(long, value_name = "NAME", env = "PILLION_CLIENT_NAME", value_delimiter = ',')]
    pub(crate) client_name: Vec<String>,
}

/// The CA file and its active content.
#[derive(Debug)]
pub(crate) struct ClientAuthorityFile {
    path: PathBuf,
    seen: Vec<u8>,
    clients: Arc<ClientCertificates>,
}

impl ClientArgs {
    /// Reads and validates the file; `None` if none is given.
    ///
    /// # Errors
    /// The file cannot be read or has no CA certificate, or there are names without a CA.
    pub(crate) async fn load(self) -> anyhow::Result<Option<ClientAuthorityFile>> {
        let Some(path) = self.client_ca else {
            if !self.client_name.is_empty() {
                bail!("--client-name says nothing without --client-ca: a name is believed only by a certificate");
            }
            return Ok(None);
        };
        let seen = read(&path).await.context("--client-ca cannot be used")?;
        let source = path.display().to_string();
        let clients = ClientCertificates::new(PemText { source: &source, text: &seen }, self.client_name)
            .context("--client-ca cannot be used")?;
        Ok(Some(ClientAuthorityFile { path, seen, clients }))
    }
}

impl ClientAuthorityFile {
    /// Returns the active CA and names.
    pub(crate) fn clients(&self) -> Arc<ClientCertificates> {
        Arc::clone(&self.clients)
    }

    /// Polls the file until `stop`. Invalid content leaves the last good CA active.
    pub(crate) async fn follow(mut self, every: Duration, stop: CancellationToken) {
        let mut ticks = Ticks::new(every, stop);
        while ticks.next().await {
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let fresh = match read(&self.path).await {
            Ok(fresh) => fresh,
            Err(error) => {
                return warn!(
                    "the authority of clients cannot be read, the last good one stays: {}",
                    causes::told(&error)
                );
            }
        };
        // Invalid content is not tried again until the file changes, so it is reported once.
        if fresh == self.seen {
            return;
        }
        let source = self.path.display().to_string();
        match self.clients.swap(PemText { source: &source, text: &fresh }) {
            Ok(true) => info!(file = %source, "clients are known by a new authority"),
            Ok(false) => {}
            Err(error) => warn!("the new authority of clients cannot be used, the last good one stays: {error}"),
        }
        self.seen = fresh;
    }
}

async fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(path).await.with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::self_made;

    fn authority() -> String {
        self_made::certificate(std::net::Ipv4Addr::LOCALHOST.into()).unwrap().authority
    }

    async fn load(path: &Path) -> anyhow::Result<ClientAuthorityFile> {
        let args = ClientArgs { client_ca: Some(path.to_owned()), client_name: Vec::new() };
        args.load().await.map(Option::unwrap)
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_told_with_the_flag_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        let error = format!("{:#}", load(&path).await.unwrap_err());
        assert!(error.contains("--client-ca") && error.contains("ca.crt"), "{error}");
        let leaf = self_made::certificate(std::net::Ipv4Addr::LOCALHOST.into()).unwrap().certificate;
        for (text, expected) in [("", "has no certificate"), (&*leaf, "is not a CA")] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", load(&path).await.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let args = ClientArgs { client_ca: None, client_name: vec!["kube-apiserver".to_owned()] };
        assert!(args.load().await.unwrap_err().to_string().contains("--client-ca"));
        assert!(ClientArgs::default().load().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_new_authority_is_taken_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        std::fs::write(&path, authority()).unwrap();
        let mut file = load(&path).await.unwrap();
        // Swapping to the active CA returns false.
        let at_work = |file: &ClientAuthorityFile, text: &str| {
            !file.clients.swap(PemText { source: "a test", text: text.as_bytes() }).unwrap()
        };

        let second = authority();
        std::fs::write(&path, &second).unwrap();
        file.look().await;
        assert!(at_work(&file, &second));
        for broken in ["", "-----BEGIN CERTIFICATE-----\nMIIB\n"] {
            std::fs::write(&path, broken).unwrap();
            file.look().await;
        }
        std::fs::remove_file(&path).unwrap();
        file.look().await;
        assert!(at_work(&file, &second));
        let third = authority();
        std::fs::write(&path, &third).unwrap();
        file.look().await;
        assert!(at_work(&file, &third));
    }
}
