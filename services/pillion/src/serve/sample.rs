//! A sample request that shows an injection, and the folder into which `dev` writes it. The request creates a pod in an
//! opted-in namespace.
//!
//! [`Sample::find`] tries candidate pods until the engine injects into one, so that the printed commands work with most
//! profiles. If none is injected, the request creates a pod that is not injected.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pillion_api::names::PROFILES_ANNOTATION;
use pillion_api::profile::Activation;
use pillion_engine::creation::Creation;
use pillion_engine::decision::Outcome;
use pillion_engine::lookup::Answer;
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::Snapshot;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::output;

/// The maximum number of pairs of a profile and a namespace that are tried.
const ATTEMPTS: usize = 256;

/// A pod, and the review of its creation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// The pod's namespace.
    pub(crate) namespace: Box<str>,
    /// Whether the pod is injected. If not, none of the tried profiles applies.
    pub(crate) injected: bool,
    /// The pod as its author writes it.
    pub(crate) pod: Value,
    /// The review as the API server sends it.
    pub(crate) review: Value,
}

impl Sample {
    /// Returns the first sample that is injected, among the first [`ATTEMPTS`] pairs of a profile and a namespace. If
    /// there is none, returns a sample that is not injected.
    pub(crate) fn find<'n>(snapshot: &Snapshot, namespaces: &(impl Iterator<Item = &'n str> + Clone)) -> Self {
        let pairs = snapshot.profiles().iter().flat_map(|profile| {
            let own = profile.name().namespace.as_deref();
            namespaces.clone().filter(move |name| own.is_none_or(|own| own == *name)).map(move |name| (profile, name))
        });
        let mut samples = pairs.take(ATTEMPTS).map(|(profile, namespace)| Self::of(Some(profile), namespace));
        let found = samples.find(|sample| is_injected(sample, snapshot));
        match found {
            Some(sample) => Self { injected: true, ..sample },
            None => Self::of(None, namespaces.clone().next().unwrap_or("default")),
        }
    }

    fn of(profile: Option<&std::sync::Arc<CompiledProfile>>, namespace: &str) -> Self {
        let asked = profile.filter(|profile| profile.activation() == Activation::Requested);
        let mut metadata = json!({"name": "sample", "namespace": namespace, "labels": {"app": "sample"}});
        if let Some(profile) = asked
            && let Some(fields) = metadata.as_object_mut()
        {
            fields.insert("annotations".to_owned(), json!({PROFILES_ANNOTATION: profile.name().name}));
        }
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [{"name": "app", "image": "registry.example.com/sample:1.0"}]},
        });
        let review = review(namespace, &pod);
        Self { namespace: namespace.into(), injected: false, pod, review }
    }
}

fn is_injected(sample: &Sample, snapshot: &Snapshot) -> bool {
    let text = sample.review.to_string();
    let Ok(review) = Review::parse(text.as_bytes()) else { return false };
    let mut facts = Facts { namespace: snapshot.namespace(&sample.namespace), ..Facts::default() };
    facts.looked_up = review.needs(Endpoint::Any, snapshot, &facts).answered(&Answer::Missing);
    let decided = review.decide(Endpoint::Any, snapshot, &facts);
    decided.is_ok_and(|decided| decided.decision.outcome == Outcome::Injected)
}

fn review(namespace: &str, pod: &Value) -> Value {
    let user = json!({"username": "sample", "groups": ["system:authenticated"]});
    let uid = "00000000-0000-4000-8000-000000000001";
    Creation { object: pod, namespace, uid, user: &user, dry_run: true }.review()
}

/// The file with the CA of the serving certificate.
const CA_FILE: &str = "ca.crt";
/// The file with the review of the sample pod's creation.
const REVIEW: &str = "review.json";
/// The file with the sample pod.
const POD: &str = "pod.yaml";

/// The folder into which `dev` writes files for the user: the CA to trust, a sample request, and a sample pod. It is
/// removed when the process ends, unless the user specified it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Removes the folder when it is dropped.
    _temporary: Option<TempDir>,
}

impl Folder {
    /// Opens the given folder, which is created if necessary, or a temporary one.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(crate) fn open(given: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(&path).with_context(|| format!("cannot create the folder {}", path.display()))?;
            // The printed paths must work from any current directory.
            let path = std::path::absolute(&path).with_context(|| format!("cannot use {}", path.display()))?;
            return Ok(Self { path, _temporary: None });
        }
        let temporary =
            tempfile::Builder::new().prefix("pillion-dev-").tempdir().context("cannot create a temporary folder")?;
        Ok(Self { path: temporary.path().to_owned(), _temporary: Some(temporary) })
    }

    /// Writes a file in the folder, and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        // A concurrent reader gets either the old or the new content, never a part of it.
        let fresh = self.path.join(format!(".{name}.new"));
        std::fs::write(&fresh, text)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes the CA certificate.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_ca(&self, pem: &str) -> anyhow::Result<()> {
        self.write(CA_FILE, pem).map(drop)
    }

    /// Writes the sample pod and the review of its creation.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write_sample(&self, sample: &Sample) -> anyhow::Result<()> {
        self.write(REVIEW, &output::json(&sample.review)?)?;
        self.write(POD, &output::yaml(&sample.pod)?).map(drop)
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path(CA_FILE)
    }

    pub(crate) fn review(&self) -> PathBuf {
        self.path(REVIEW)
    }

    pub(crate) fn pod(&self) -> PathBuf {
        self.path(POD)
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillion_api::names::FailureMode;
    use pillion_engine::profile::{ProfileName, compile};
    use pillion_engine::snapshot::{Namespace, ProfileSet};

    use super::*;

    fn profile(namespace: Option<&str>, name: &str, more: &Value) -> Arc<CompiledProfile> {
        let mut spec = json!({"template": {"spec": {"containers": [{"name": "sidecar", "image": "sidecar:1"}]}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let name = ProfileName { namespace: namespace.map(Into::into), name: name.into() };
        Arc::new(compile(&name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    fn snapshot(profiles: impl IntoIterator<Item = Arc<CompiledProfile>>) -> Snapshot {
        let enabled = |name: &str| (name.into(), Namespace::opted_in(FailureMode::Enabled));
        let out = ("out".into(), Namespace::default());
        Snapshot::new(ProfileSet::new(profiles)).with_namespaces([enabled("shop"), enabled("till"), out])
    }

    #[test]
    fn sample_pod_requests_first_available_profile() {
        let other = json!({"activation": "Requested", "objectSelector": {"matchLabels": {"app": "other"}}});
        let requested = json!({"activation": "Requested"});
        let snapshot = snapshot([profile(None, "a", &other), profile(None, "b", &requested)]);
        let sample = Sample::find(&snapshot, &["out", "shop"].into_iter());
        assert!(sample.injected);
        assert_eq!(&*sample.namespace, "shop");
        assert_eq!(sample.pod.pointer("/metadata/annotations").unwrap(), &json!({"pillion.dev/profiles": "b"}));
        assert_eq!(sample.review.pointer("/request/object").unwrap(), &sample.pod);
    }

    #[test]
    fn sample_uses_namespace_of_tenant_profile() {
        let sample = Sample::find(&snapshot([profile(Some("till"), "a", &json!({}))]), &["shop", "till"].into_iter());
        assert!(sample.injected);
        assert_eq!(&*sample.namespace, "till");
    }

    #[test]
    fn sample_pod_exists_without_profiles() {
        let sample = Sample::find(&snapshot([]), &["shop"].into_iter());
        assert!(!sample.injected);
        assert_eq!(&*sample.namespace, "shop");
    }
}
