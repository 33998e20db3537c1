//! The webhook's policy file as types, with defaults.

use std::sync::Arc;

use pillion_api::opt_in::{OptIn, OptInError};
use pillion_control::informer::lookups::LookupSettings;
use pillion_engine::json::OwnedTape;
use pillion_engine::limits::Guardrails;
use pillion_webhook::admission::RequestSettings;
use pillion_webhook::metrics::MetricsSettings;
use pillion_webhook::overload::OverloadSettings;
use pillion_webhook::policy::Policy;
use pillion_webhook::serve::ServerSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::units::{Size, Time};
use crate::telemetry::logs::Logs;
use crate::telemetry::traces::Traces;

/// The `apiVersion` of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ApiVersion {
    #[default]
    #[serde(rename = "config.pillion.dev/v1alpha1")]
    V1Alpha1,
}

/// The value of `kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    #[default]
    WebhookPolicy,
}

/// The whole file. The table in [`super::settings`] describes each key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct WebhookPolicy {
    pub(crate) api_version: ApiVersion,
    pub(crate) kind: Kind,
    pub(crate) guardrails: Guardrails,
    pub(crate) cluster: Map<String, Value>,
    pub(crate) namespaces: Namespaces,
    pub(crate) requests: Requests,
    pub(crate) overload: Overload,
    pub(crate) connections: Connections,
    pub(crate) look_ups: LookUps,
    pub(crate) metrics: Metrics,
    pub(crate) logs: Logs,
    pub(crate) traces: Traces,
}

/// The labels by which namespaces opt in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Namespaces {
    pub(crate) opt_in: Vec<String>,
}

/// Limits of one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Requests {
    pub(crate) max_body: Size,
    pub(crate) max_body_memory: Size,
    pub(crate) body_timeout: Time,
    pub(crate) look_up_timeout: Time,
    pub(crate) timeout: Time,
}

/// Limits against overload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Overload {
    pub(crate) max_in_flight: usize,
    pub(crate) max_unfinished: usize,
    pub(crate) max_unfinished_per_address: usize,
    pub(crate) max_queued: usize,
    pub(crate) max_queued_per_namespace: usize,
    pub(crate) max_queued_large: usize,
    pub(crate) max_queued_large_per_namespace: usize,
    pub(crate) unqueued_per_worker: usize,
    pub(crate) workers: Option<usize>,
    pub(crate) default_timeout: Time,
    pub(crate) longest_timeout: Time,
    pub(crate) margin: Time,
}

/// How long results of lookups are cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LookUps {
    pub(crate) fresh_for: Time,
    pub(crate) stale_for: Time,
    pub(crate) memory: Size,
    pub(crate) max_per_address: u32,
}

/// Optional metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Metrics {
    pub(crate) tenants: Tenants,
}

/// Requests by namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Tenants {
    pub(crate) enabled: bool,
    pub(crate) max: usize,
}

/// Limits of connections, and the drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Connections {
    pub(crate) max: usize,
    pub(crate) max_handshakes: usize,
    pub(crate) max_streams: u32,
    pub(crate) handshake_timeout: Time,
    pub(crate) header_timeout: Time,
    pub(crate) idle_timeout: Time,
    pub(crate) answer_timeout: Time,
    pub(crate) max_untaken: Size,
    pub(crate) max_age: Option<Time>,
    pub(crate) drain_minimum: Time,
    pub(crate) drain_deadline: Time,
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

impl Default for Overload {
    fn default() -> Self {
        let overload = OverloadSettings::default();
        Self {
            max_in_flight: overload.max_in_flight,
            max_unfinished: overload.max_unfinished,
            max_unfinished_per_address: overload.max_unfinished_per_address,
            max_queued: overload.max_queued,
            max_queued_per_namespace: overload.max_queued_per_tenant,
            max_queued_large: overload.max_queued_large,
            max_queued_large_per_namespace: overload.max_queued_large_per_tenant,
            unqueued_per_worker: overload.unqueued_per_worker,
            workers: overload.workers,
            default_timeout: Time(overload.default_timeout),
            longest_timeout: Time(overload.longest_timeout),
            margin: Time(overload.margin),
        }
    }
}

impl Default for LookUps {
    fn default() -> Self {
        let LookupSettings { fresh_for, stale_for, memory, a_second_per_client, .. } = LookupSettings::default();
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let max_per_address = a_second_per_client;
        Self { fresh_for: Time(fresh_for), stale_for: Time(stale_for), memory: Size(memory), max_per_address }
    }
}

impl Default for Tenants {
    fn default() -> Self {
        let tenants = MetricsSettings::default().tenants;
        Self { enabled: tenants.enabled, max: tenants.max_namespaces }
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
            answer_timeout: Time(server.answer_timeout),
            max_untaken: Size(server.max_untaken_bytes),
            max_age: server.max_age.map(Time),
            drain_minimum: Time(server.drain_minimum),
            drain_deadline: Time(server.drain_deadline),
        }
    }
}

impl Overload {
    fn settings(&self) -> OverloadSettings {
        let mut settings = OverloadSettings::default();
        settings.max_in_flight = self.max_in_flight;
        settings.max_unfinished = self.max_unfinished;
        settings.max_unfinished_per_address = self.max_unfinished_per_address;
        settings.max_queued = self.max_queued;
        settings.max_queued_per_tenant = self.max_queued_per_namespace;
        settings.max_queued_large = self.max_queued_large;
        settings.max_queued_large_per_tenant = self.max_queued_large_per_namespace;
        settings.unqueued_per_worker = self.unqueued_per_worker;
        settings.workers = self.workers;
        settings.default_timeout = self.default_timeout.0;
        settings.longest_timeout = self.longest_timeout.0;
        settings.margin = self.margin.0;
        settings
    }
}

impl Namespaces {
    /// Returns the labels by which namespaces opt in.
    pub(crate) fn labels(&self) -> Result<OptIn, OptInError> {
        OptIn::with(self.opt_in.iter().map(String::as_str))
    }
}

impl WebhookPolicy {
    /// Returns the labels by which namespaces opt in.
    pub(crate) fn opt_in(&self) -> OptIn {
        // The labels were validated when the file was read.
        self.namespaces.labels().unwrap_or_default()
    }

    /// Returns the limits of requests.
    pub(crate) fn request_settings(&self) -> RequestSettings {
        let Requests { max_body, max_body_memory, body_timeout, look_up_timeout, timeout: _ } = self.requests;
        let mut settings = RequestSettings::default();
        settings.body_limit = max_body.0;
        settings.body_budget = max_body_memory.0;
        settings.body_timeout = body_timeout.0;
        settings.live_timeout = look_up_timeout.0;
        settings.overload = self.overload.settings();
        settings
    }

    /// Returns the limits of connections.
    pub(crate) fn server_settings(&self) -> ServerSettings {
        let Connections { max, max_handshakes, max_streams, handshake_timeout, header_timeout, .. } = self.connections;
        let Connections { idle_timeout, answer_timeout, max_untaken, .. } = self.connections;
        let Connections { max_age, drain_minimum, drain_deadline, .. } = self.connections;
        let mut settings = ServerSettings::default();
        settings.max_connections = max;
        settings.max_handshakes = max_handshakes;
        settings.max_streams = max_streams;
        settings.handshake_timeout = handshake_timeout.0;
        settings.header_timeout = header_timeout.0;
        settings.idle_timeout = idle_timeout.0;
        settings.answer_timeout = answer_timeout.0;
        settings.max_untaken_bytes = max_untaken.0;
        settings.request_timeout = self.requests.timeout.0;
        settings.max_age = max_age.map(|age| age.0);
        settings.drain_minimum = drain_minimum.0;
        settings.drain_deadline = drain_deadline.0;
        settings
    }

    /// Returns the timeout of lookups, and how long their results are cached.
    pub(crate) fn lookup_settings(&self) -> LookupSettings {
        let LookUps { fresh_for, stale_for, memory, max_per_address: a_second_per_client } = self.look_ups;
        let memory = u64::try_from(memory.0).unwrap_or(u64::MAX);
        // A little less than the request's own timeout, so that the request learns how each lookup ended.
        let answer_limit = self.requests.look_up_timeout.0 * 5 / 6;
        LookupSettings { answer_limit, fresh_for: fresh_for.0, stale_for: stale_for.0, memory, a_second_per_client }
    }

    /// Returns the settings of optional metrics.
    pub(crate) fn metrics_settings(&self) -> MetricsSettings {
        let mut settings = MetricsSettings::default();
        settings.tenants.enabled = self.metrics.tenants.enabled;
        settings.tenants.max_namespaces = self.metrics.tenants.max;
        settings
    }

    /// Returns the policy for deciding requests.
    ///
    /// # Errors
    /// The cluster facts exceed the limits of a request's object.
    pub(crate) fn decided_by(&self) -> anyhow::Result<Policy> {
        Ok(Policy { cluster: self.cluster_facts()?, guardrails: Some(Arc::new(self.guardrails.clone())) })
    }

    /// Returns the map that expressions read as `cluster`, or `None` if it is empty.
    ///
    /// # Errors
    /// The facts nest too deeply, or are too many.
    pub(crate) fn cluster_facts(&self) -> anyhow::Result<Option<Arc<OwnedTape>>> {
        if self.cluster.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(OwnedTape::parse(serde_json::to_string(&self.cluster)?)?)))
    }

    /// Returns the policy as a tree with the keys of the file.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
