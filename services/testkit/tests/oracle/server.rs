//! Computes the API server's results for the comparison: stores pods as `PodTemplate` objects and patches them in dry
//! runs.

use anyhow::{Context, Result};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Error};
use serde_json::{Value as Json, json};

/// The resulting pod template, or the reason why the API server rejected it.
pub(crate) type Answer = Result<Json, String>;

/// The `PodTemplate` objects of a namespace.
#[derive(Clone)]
pub(crate) struct Templates {
    client: Client,
    requests: Request,
}

impl Templates {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, requests: Request::new("/api/v1/namespaces/default/podtemplates") }
    }

    /// Stores a pod as its author wrote it. Returns the pod with the API server's defaults, which is what the engine
    /// receives.
    pub(crate) async fn create(&self, name: &str, pod: &Json) -> Result<Answer> {
        self.post(name, pod, "author", false).await
    }

    /// Returns a pod as the API server would store it: with its defaults, and its notation of quantities.
    pub(crate) async fn normalised(&self, pod: &Json) -> Result<Answer> {
        self.post("merged", pod, "engine", true).await
    }

    async fn post(&self, name: &str, pod: &Json, manager: &str, dry_run: bool) -> Result<Answer> {
        let parameters = PostParams { dry_run, field_manager: Some(manager.to_owned()) };
        let request = self.requests.create(&parameters, object(name, pod).to_string().into_bytes())?;
        self.answer(request).await
    }

    /// Dry-runs a strategic merge patch of the stored pod, and returns the result.
    pub(crate) async fn strategic(&self, name: &str, patch: &Json) -> Result<Answer> {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = json!({"template": patch});
        self.answer(self.requests.patch(name, &parameters, &Patch::Strategic(&patch))?).await
    }

    /// Dry-runs a server-side apply of a template to the stored pod, and returns the result.
    pub(crate) async fn applied(&self, name: &str, template: &Json) -> Result<Answer> {
        let parameters = PatchParams { dry_run: true, ..PatchParams::apply("profile").force() };
        let patch = object(name, template);
        self.answer(self.requests.patch(name, &parameters, &Patch::Apply(&patch))?).await
    }

    async fn answer(&self, request: http::Request<Vec<u8>>) -> Result<Answer> {
        match self.client.request::<Json>(request).await {
            Ok(mut object) => Ok(Ok(object["template"].take())),
            // The resulting object is invalid. For the comparison, that is a result and not an error.
            Err(Error::Api(status)) if status.code == 422 => Ok(Err(status.message)),
            Err(error) => Err(error).context("the API server does not answer"),
        }
    }
}

fn object(name: &str, template: &Json) -> Json {
    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template})
}
