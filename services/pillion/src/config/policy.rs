//! The policy file as types. What is left out has its default.

use std::sync::Arc;

use pillion_engine::json::OwnedTape;
use pillion_engine::limits::Guardrails;
use pillion_webhook::policy::Policy;
use pillion_webhook::router::RequestSettings;
use pillion_webhook::serve::ServerSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::units::{Size, Time};

/// What is logged unless somebody says otherwise.
pub(crate) const DEFAULT_LEVEL: &str = "info";

/// The version of the file's form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ApiVersion {
    #[default]
    #[serde(rename = "config.pillion.dev/v1alpha1")]
    V1Alpha1,
}

/// What the file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    #[default]
    WebhookPolicy,
}

/// All of the file. Each key is described in the table of [`super::settings`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct WebhookPolicy {
    pub(crate) api_version: ApiVersion,
    pub(crate) kind: Kind,
    pub(crate) guardrails: Guardrails,
    pub(crate) cluster: Map<String, Value>,
    pub(crate) requests: Requests,
    pub(crate) connections: Connections,
    pub(crate) logs: Logs,
    pub(crate) traces: Traces,
}

/// The limits of one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Requests {
    pub(crate) max_body: Size,
    pub(crate) max_body_memory: Size,
    pub(crate) body_timeout: Time,
    pub(crate) look_up_timeout: Time,
    pub(crate) timeout: Time,
}

/// The limits of the connections, and how the process ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Connections {
    pub(crate) max: usize,
    pub(crate) max_handshakes: usize,
    pub(crate) max_streams: u32,
    pub(crate) handshake_timeout: Time,
    pub(crate) header_timeout: Time,
    pub(crate) idle_timeout: Time,
    pub(crate) max_age: Option<Time>,
    pub(crate) drain_minimum: Time,
    pub(crate) drain_deadline: Time,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Logs {
    pub(crate) level: String,
}

/// What is traced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Traces {
    pub(crate) ratio: f64,
    pub(crate) errors_per_second: u32,
}

impl Default for Requests {
    fn default() -> Self {
        let requests = RequestSettings::default();
        Self {
            max_body: Size(requests.body_limit),
            max_body_memory: Size(requests.body_budget),
            body_timeout: Time(requests.body_timeout),
            look_up_timeout: Time(requests.live_timeout),
            timeout: Time(ServerSettings::default().request_timeout),
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        let server = ServerSettings::default();
        Self {
            max: server.max_connections,
            max_handshakes: server.max_handshakes,
            max_streams: server.max_streams,
            handshake_timeout: Time(server.handshake_timeout),
            header_timeout: Time(server.header_timeout),
            idle_timeout: Time(server.idle_timeout),
            max_age: server.max_age.map(Time),
            drain_minimum: Time(server.drain_minimum),
            drain_deadline: Time(server.drain_deadline),
        }
    }
}

impl Default for Logs {
    fn default() -> Self {
        Self { level: DEFAULT_LEVEL.to_owned() }
    }
}

impl Default for Traces {
    fn default() -> Self {
        Self { ratio: 0.01, errors_per_second: 10 }
    }
}

impl WebhookPolicy {
    /// The limits of requests.
    pub(crate) fn request_settings(&self) -> RequestSettings {
        let Requests { max_body, max_body_memory, body_timeout, look_up_timeout, timeout: _ } = self.requests;
        let mut settings = RequestSettings::default();
        settings.body_limit = max_body.0;
        settings.body_budget = max_body_memory.0;
        settings.body_timeout = body_timeout.0;
        settings.live_timeout = look_up_timeout.0;
        settings
    }

    /// The limits of connections.
    pub(crate) fn server_settings(&self) -> ServerSettings {
        let Connections { max, max_handshakes, max_streams, handshake_timeout, header_timeout, .. } = self.connections;
        let Connections { idle_timeout, max_age, drain_minimum, drain_deadline, .. } = self.connections;
        let mut settings = ServerSettings::default();
        settings.max_connections = max;
        settings.max_handshakes = max_handshakes;
        settings.max_streams = max_streams;
        settings.handshake_timeout = handshake_timeout.0;
        settings.header_timeout = header_timeout.0;
        settings.idle_timeout = idle_timeout.0;
        settings.request_timeout = self.requests.timeout.0;
        settings.max_age = max_age.map(|age| age.0);
        settings.drain_minimum = drain_minimum.0;
        settings.drain_deadline = drain_deadline.0;
        settings
    }

    /// What every request is decided by.
    ///
    /// # Errors
    /// The facts of the cluster are more than a request's object may be.
    pub(crate) fn decided_by(&self) -> anyhow::Result<Policy> {
        Ok(Policy { cluster: self.cluster_facts()?, guardrails: Some(Arc::new(self.guardrails.clone())) })
    }

    /// What expressions read as `cluster`; `None` if nothing is said of it.
    ///
    /// # Errors
    /// They nest too deep, or are too many.
    pub(crate) fn cluster_facts(&self) -> anyhow::Result<Option<Arc<OwnedTape>>> {
        if self.cluster.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(OwnedTape::parse(serde_json::to_string(&self.cluster)?)?)))
    }

    /// All of it as a tree, as it would stand in a file.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
