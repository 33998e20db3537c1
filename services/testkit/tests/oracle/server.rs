//! The API server's side: pods are kept as `PodTemplate` objects, and patched without being changed.

use anyhow::{Context, Result};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Error};
use serde_json::{Value as Json, json};

/// What the API server made of it, or why it refuses.
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

    /// Keeps a pod as its author writes it; with the API server's defaults, as the engine is shown it.
    pub(crate) async fn create(&self, name: &str, pod: &Json) -> Result<Answer> {
        self.post(name, pod, "author", false).await
    }

    /// What the API server would keep of a pod: defaults are filled in, quantities and order are its own.
    pub(crate) async fn normalised(&self, pod: &Json) -> Result<Answer> {
        self.post("merged", pod, "engine", true).await
    }

    async fn post(&self, name: &str, pod: &Json, manager: &str, dry_run: bool) -> Result<Answer> {
        let parameters = PostParams { dry_run, field_manager: Some(manager.to_owned()) };
        let request = self.requests.create(&parameters, object(name, pod).to_string().into_bytes())?;
        self.answer(request).await
    }

    /// What a strategic merge patch would make of a pod.
    pub(crate) async fn strategic(&self, name: &str, patch: &Json) -> Result<Answer> {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = json!({"template": patch});
        self.answer(self.requests.patch(name, &parameters, &Patch::Strategic(&patch))?).await
    }

    /// What server-side apply would make of a pod.
    pub(crate) async fn applied(&self, name: &str, template: &Json) -> Result<Answer> {
        let parameters = PatchParams { dry_run: true, ..PatchParams::apply("profile").force() };
        let patch = object(name, template);
        self.answer(self.requests.patch(name, &parameters, &Patch::Apply(&patch))?).await
    }

    async fn answer(&self, request: http::Request<Vec<u8>>) -> Result<Answer> {
        match self.client.request::<Json>(request).await {
            Ok(mut object) => Ok(Ok(object["template"].take())),
            // The object that results is not valid: that is an answer.
            Err(Error::Api(status)) if status.code == 422 => Ok(Err(status.message)),
            Err(error) => Err(error).context("the API server does not answer"),
        }
    }
}

fn object(name: &str, template: &Json) -> Json {
    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template})
}
