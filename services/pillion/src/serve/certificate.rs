//! The serving certificate from files that change: cert-manager and the kubelet replace them while we run.
//!
//! The files are read again and again instead of being watched: the kubelet swaps a link to their folder, which a watch of
//! the files does not see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pillion_webhook::metrics::{ReloadMetrics, ReloadResult};
use pillion_webhook::tls::{PemText, ServingCertificate};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ticks::Ticks;
use crate::causes;

/// How often the files are read.
pub(crate) const POLL: Duration = Duration::from_secs(10);

/// A certificate and its key in files, and what is served of them.
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
    /// Not the text: it is a private key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl CertificateFiles {
    /// Reads and checks them.
    ///
    /// # Errors
    /// A file cannot be read, or they are not a certificate with its key.
    pub(crate) async fn load(certificate: PathBuf, key: PathBuf) -> anyhow::Result<Self> {
        let seen = read(&certificate, &key).await?;
        let (first, second) = pem(&certificate, &key, &seen);
        let serving = ServingCertificate::new(first.as_text(), second.as_text())?;
        Ok(Self { certificate, key, seen, serving })
    }

    /// What is served.
    pub(crate) fn serving(&self) -> Arc<ServingCertificate> {
        Arc::clone(&self.serving)
    }

    /// Reads the files every so often until `stop`. What cannot be served leaves the last good certificate in place.
    pub(crate) async fn follow(mut self, every: Duration, reloads: ReloadMetrics, stop: CancellationToken) {
        let mut ticks = Ticks::new(every, stop);
        while ticks.next().await {
            if let Some(result) = self.look().await {
                reloads.looked(result);
            }
        }
    }

    /// What came of it; `None` if there was nothing new.
    async fn look(&mut self) -> Option<ReloadResult> {
        let fresh = match read(&self.certificate, &self.key).await {
            Ok(fresh) => fresh,
            Err(error) => {
                warn!("the serving certificate cannot be read, the last good one stays: {}", causes::told(&error));
                return Some(ReloadResult::Unreadable);
            }
        };
        // What could not be served is not tried again until a file changes, so it is said once. A certificate that was
        // read before its key was replaced mends itself that way too.
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
                warn!("the new serving certificate cannot be served, the last good one stays: {error}");
                ReloadResult::Invalid
            }
        };
        self.seen = fresh;
        Some(result)
    }
}

/// A file's path as text, and what is in it.
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

    #[tokio::test]
    async fn a_file_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", load(dir.path()).await.unwrap_err());
        assert!(error.contains("cannot read the certificate") && error.contains("tls.crt"), "{error}");
    }

    #[tokio::test]
    async fn new_files_are_taken_and_broken_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let mut files = load(dir.path()).await.unwrap();
        let taken = |files: &CertificateFiles| files.seen.certificate.clone();

        assert_eq!(files.look().await, None, "nothing is new");
        let second = write(dir.path());
        assert_eq!(files.look().await, Some(ReloadResult::Served));
        assert_eq!(taken(&files), second.into_bytes());
        // A swap to what is served already is no change: so this tells that the second one was taken.
        let (certificate, key) = pem(&files.certificate, &files.key, &files.seen);
        assert!(!files.serving.swap(certificate.as_text(), key.as_text()).unwrap());

        std::fs::write(dir.path().join("tls.key"), "broken").unwrap();
        assert_eq!(files.look().await, Some(ReloadResult::Invalid));
        std::fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert_eq!(files.look().await, Some(ReloadResult::Unreadable));
        let third = write(dir.path());
        assert_eq!(files.look().await, Some(ReloadResult::Served));
        std::fs::write(dir.path().join("tls.crt"), format!("{third}\n")).unwrap();
        assert_eq!(files.look().await, Some(ReloadResult::Unchanged));
        std::fs::write(dir.path().join("tls.crt"), &third).unwrap();
        assert_eq!(files.look().await, Some(ReloadResult::Unchanged));
        assert_eq!(taken(&files), third.into_bytes());
        let (certificate, key) = pem(&files.certificate, &files.key, &files.seen);
        assert!(!files.serving.swap(certificate.as_text(), key.as_text()).unwrap());
    }

    #[tokio::test]
    async fn what_came_of_each_look_is_counted() {
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
}
