//! The webhook's policy file: guardrails, facts of the cluster, limits, logs and traces.
//!
//! [`super::settings`] reads the ranges and meanings of the keys from these types.

use std::sync::{Arc, LazyLock};

use pillion_api::opt_in::{OptIn, OptInError};
use pillion_control::informer::lookups::LookupSettings;
use pillion_engine::limits::Guardrails;
use pillion_json::OwnedTape;
use pillion_webhook::admission::RequestSettings;
use pillion_webhook::overload::OverloadSettings;
use pillion_webhook::policy::Policy;
use pillion_webhook::serve::ServerSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::metrics::MetricLimits;
use super::read::{ApiVersion, Overrides, PolicyError, PolicyFile, at_most, opt_in_error};
use super::settings::{self, Setting};
use super::units::{Size, Time};
use crate::telemetry::logs::{self, Logs};
use crate::telemetry::traces::Traces;

/// The value of `kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum Kind {
    #[default]
    WebhookPolicy,
}

/// The content of the webhook's policy file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct WebhookPolicy {
    pub(crate) api_version: ApiVersion,
    pub(crate) kind: Kind,
    #[schemars(extend("reloaded" = true))]
    pub(crate) guardrails: Guardrails,
    /// The value of `cluster` in expressions, such as `{region: eu-west-1}`. The chart adds `kubernetesMinor`, the minor
    /// version of Kubernetes, if Helm can query the cluster.
    #[schemars(extend("reloaded" = true, "expected" = "any keys and values"))]
    pub(crate) cluster: Map<String, Value>,
    pub(crate) namespaces: Namespaces,
    pub(crate) requests: Requests,
    pub(crate) overload: Overload,
    pub(crate) connections: Connections,
    pub(crate) lookups: Lookups,
    pub(crate) metrics: MetricLimits,
    #[schemars(extend("reloaded" = true))]
    pub(crate) logs: Logs,
    #[schemars(extend("reloaded" = true))]
    pub(crate) traces: Traces,
}

/// The labels with which namespaces opt in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Namespaces {
    /// Labels with which namespaces opt in, besides `pillion.dev/injection`. The list must equal `webhooks.optIn` of
    /// the controller. The webhook uses the labels for the paths `/mutate` and `/validate`, which specify no failure
    /// mode.
    #[schemars(extend("expected" = "`KEY=VALUE`, or `KEY=VALUE:MODE`"))]
    pub(crate) opt_in: Vec<String>,
}

/// Limits of requests and their bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Requests {
    /// The maximum size of a request's body in bytes. The replica rejects larger bodies with HTTP 413. A review of an
    /// update contains two objects of up to 3 MiB each.
    #[schemars(extend("range" = ["1Mi", "64Mi"]))]
    pub(crate) max_body: Size,
    /// The maximum total size of the bodies of all concurrent requests in bytes. If a request would exceed it, the
    /// replica rejects older requests whose bodies are still arriving with HTTP 503, or this request if these do not
    /// hold enough memory. Bodies above 128 KiB may use at most three quarters of this memory.
    #[schemars(extend("range" = ["4Mi", "64Gi"]))]
    pub(crate) max_body_memory: Size,
    /// The maximum time from the end of a request's header to the end of its body.
    #[schemars(extend("range" = ["100ms", "30s"]))]
    pub(crate) body_timeout: Time,
    /// How long a request waits for a namespace that is not cached yet, and for the lookups of its profiles.
    #[schemars(extend("range" = ["10ms", "10s"]))]
    pub(crate) lookup_timeout: Time,
    /// The maximum time from a request's header to its response. The API server waits at most 30 s.
    #[schemars(extend("range" = ["1s", "5m"]))]
    pub(crate) timeout: Time,
}

/// Limits against overload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Overload {
    /// The maximum number of requests whose bodies have arrived and whose responses are pending. The replica rejects
    /// additional requests with HTTP 503.
    #[schemars(extend("range" = [8, 100_000]))]
    pub(crate) max_in_flight: usize,
    /// The maximum number of requests whose bodies are still arriving. When an additional request arrives, the replica
    /// rejects the oldest of these requests with HTTP 503.
    #[schemars(extend("range" = [8, 100_000]))]
    pub(crate) max_unfinished: usize,
    /// The maximum number of requests from one client address whose bodies are still arriving. When an additional
    /// request arrives from that address, the replica rejects the oldest of these requests with HTTP 503. All API
    /// servers may share one address.
    #[schemars(extend("range" = [8, 100_000]))]
    pub(crate) max_unfinished_per_address: usize,
    /// The maximum number of queued requests with a body of at most 128 KiB.
    #[schemars(extend("range" = [0, 100_000]))]
    pub(crate) max_queued: usize,
    /// The maximum number of queued requests of one namespace with a body of at most 128 KiB.
    #[schemars(extend("range" = [0, 100_000]))]
    pub(crate) max_queued_per_namespace: usize,
    /// The maximum number of queued requests with a body above 128 KiB.
    #[schemars(extend("range" = [0, 10_000]))]
    pub(crate) max_queued_large: usize,
    /// The maximum number of queued requests of one namespace with a body above 128 KiB.
    #[schemars(extend("range" = [0, 10_000]))]
    pub(crate) max_queued_large_per_namespace: usize,
    /// The number of requests per worker that the replica decides in the order in which they arrive. Additional
    /// requests wait in the fair queue. When the queue is empty, the replica counts from zero again. Requests with a
    /// body above 128 KiB always wait in their own queue.
    #[schemars(extend("range" = [1, 1_000]))]
    pub(crate) unqueued_per_worker: usize,
    /// The number of queued requests with a body of at most 128 KiB that the replica decides at the same time. Half as
    /// many additional threads, but at least one, decide requests with larger bodies. `null`: the number of worker
    /// threads of the process.
    #[schemars(extend("range" = [1, 1_024]))]
    pub(crate) workers: Option<usize>,
    /// The timeout of a request whose URL has no parameter `timeout`.
    #[schemars(extend("range" = ["1s", "30s"]))]
    pub(crate) default_timeout: Time,
    /// The maximum timeout of a request. The replica reduces a longer `timeout` in the URL to this value.
    #[schemars(extend("range" = ["1s", "5m"]))]
    pub(crate) longest_timeout: Time,
    /// The replica rejects a pending request this long before the end of the request's timeout, so that the response
    /// still arrives. At most a fifth of the timeout.
    #[schemars(extend("range" = ["0s", "5s"]))]
    pub(crate) margin: Time,
}

/// Limits of connections, and the drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Connections {
    /// The maximum number of connections. When an additional client connects, the replica closes one connection:
    /// usually one of the address with the most connections, if that address has at least two more than the address
    /// of the new client, and otherwise the new one.
    #[schemars(extend("range" = [16, 1_000_000]))]
    pub(crate) max: usize,
    /// The maximum number of concurrent TLS handshakes. Additional handshakes wait, within their `handshakeTimeout`.
    #[schemars(extend("range" = [1, 100_000]))]
    pub(crate) max_handshakes: usize,
    /// The maximum number of concurrent requests on one HTTP/2 connection.
    #[schemars(extend("range" = [1, 10_000]))]
    pub(crate) max_streams: u32,
    /// The maximum time from the start of a TCP connection to the end of its TLS handshake.
    #[schemars(extend("range" = ["100ms", "1m"]))]
    pub(crate) handshake_timeout: Time,
    /// The maximum time from the first to the last byte of a request's header.
    #[schemars(extend("range" = ["100ms", "1m"]))]
    pub(crate) header_timeout: Time,
    /// How long a connection may be open without a request. It must exceed the API server's idle timeout of 90 s, so
    /// that the client closes first; otherwise a request could arrive at a connection that is being closed.
    #[schemars(extend("range" = ["91s", "1h"]))]
    pub(crate) idle_timeout: Time,
    /// How long a client may take to read a response, plus one second for each 256 KiB of the response.
    #[schemars(extend("range" = ["100ms", "5m"]))]
    pub(crate) response_timeout: Time,
    /// The maximum total size in bytes of the responses on one connection that the client has not read yet. A single
    /// response may be larger.
    #[schemars(extend("range" = ["64Ki", "1Gi"]))]
    pub(crate) max_pending_responses: Size,
    /// After this time, plus or minus a fifth, the replica asks the client to reconnect, so that newer replicas get
    /// their share of the load. `null`: never.
    #[schemars(extend("range" = ["10s", "24h"]))]
    pub(crate) max_age: Option<Time>,
    /// The minimum time for which a terminating replica continues to accept connections. Clients still send requests to
    /// it during this time.
    #[schemars(extend("range" = ["0s", "10m"]))]
    pub(crate) drain_minimum: Time,
    /// How long a terminating replica waits for connections to close. The API server keeps idle connections open for 90
    /// s, so a shorter time cuts some of them off. The pod's `terminationGracePeriodSeconds` must be longer.
    #[schemars(extend("range" = ["0s", "1h"]))]
    pub(crate) drain_deadline: Time,
}

/// Limits of lookups and of their cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Lookups {
    /// How long a replica uses a cached object without requesting it again. A change of the object may take effect with
    /// this delay.
    #[schemars(extend("range" = ["1s", "1h"]))]
    pub(crate) fresh_for: Time,
    /// The maximum age of a cached object that a replica uses while the API server is unavailable.
    #[schemars(extend("range" = ["1s", "24h"]))]
    pub(crate) stale_for: Time,
    /// The maximum size of the cache of looked-up objects in bytes.
    #[schemars(extend("range" = ["64Ki", "16Gi"]))]
    pub(crate) memory: Size,
    /// The maximum number of lookups per second that a replica sends to the API server because of requests from one
    /// client address. Additional lookups fail. Lookups that the cache answers are not counted. All API servers may
    /// share one address.
    #[schemars(extend("range" = [1, 100_000]))]
    pub(crate) max_per_address: u32,
}

impl Default for Requests {
    fn default() -> Self {
        let requests = RequestSettings::default();
        Self {
            max_body: Size(requests.body_limit),
            max_body_memory: Size(requests.body_budget),
            body_timeout: Time(requests.body_timeout),
            lookup_timeout: Time(requests.lookup_timeout),
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

impl Default for Lookups {
    fn default() -> Self {
        let lookups = LookupSettings::default();
        Self {
            fresh_for: Time(lookups.fresh_for),
            stale_for: Time(lookups.stale_for),
            memory: Size(usize::try_from(lookups.memory).unwrap_or(usize::MAX)),
            max_per_address: lookups.a_second_per_client,
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
            response_timeout: Time(server.response_timeout),
            max_pending_responses: Size(server.max_pending_response_bytes),
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
    /// Returns the labels with which namespaces opt in.
    pub(crate) fn labels(&self) -> Result<OptIn, OptInError> {
        OptIn::with(self.opt_in.iter().map(String::as_str))
    }
}

impl WebhookPolicy {
    /// Returns the labels with which namespaces opt in.
    pub(crate) fn opt_in(&self) -> OptIn {
        // The labels were validated when the file was read.
        self.namespaces.labels().unwrap_or_default()
    }

    /// Returns the limits of requests.
    pub(crate) fn request_settings(&self) -> RequestSettings {
        let requests = &self.requests;
        let mut settings = RequestSettings::default();
        settings.body_limit = requests.max_body.0;
        settings.body_budget = requests.max_body_memory.0;
        settings.body_timeout = requests.body_timeout.0;
        settings.lookup_timeout = requests.lookup_timeout.0;
        settings.overload = self.overload.settings();
        settings
    }

    /// Returns the limits of connections.
    pub(crate) fn server_settings(&self) -> ServerSettings {
        let connections = &self.connections;
        let mut settings = ServerSettings::default();
        settings.max_connections = connections.max;
        settings.max_handshakes = connections.max_handshakes;
        settings.max_streams = connections.max_streams;
        settings.handshake_timeout = connections.handshake_timeout.0;
        settings.header_timeout = connections.header_timeout.0;
        settings.idle_timeout = connections.idle_timeout.0;
        settings.response_timeout = connections.response_timeout.0;
        settings.max_pending_response_bytes = connections.max_pending_responses.0;
        settings.request_timeout = self.requests.timeout.0;
        settings.max_age = connections.max_age.map(|age| age.0);
        settings.drain_minimum = connections.drain_minimum.0;
        settings.drain_deadline = connections.drain_deadline.0;
        settings
    }

    /// Returns the limits of lookups and of their cache.
    pub(crate) fn lookup_settings(&self) -> LookupSettings {
        let Lookups { fresh_for, stale_for, memory, max_per_address: a_second_per_client } = self.lookups;
        let memory = u64::try_from(memory.0).unwrap_or(u64::MAX);
        // A little less than the time for which a request waits for its lookups, so that the request receives each
        // result.
        let answer_limit = self.requests.lookup_timeout.0 * 5 / 6;
        LookupSettings { answer_limit, fresh_for: fresh_for.0, stale_for: stale_for.0, memory, a_second_per_client }
    }

    /// Returns the policy that the webhook applies to requests.
    ///
    /// # Errors
    /// The cluster facts exceed the limits for JSON values.
    pub(crate) fn decision_policy(&self) -> anyhow::Result<Policy> {
        Ok(Policy { cluster: self.cluster_facts()?, guardrails: Some(Arc::new(self.guardrails.clone())) })
    }

    /// Returns the map that expressions read as `cluster`, or `None` if it is empty.
    ///
    /// # Errors
    /// There are too many facts, or they nest too deeply.
    pub(crate) fn cluster_facts(&self) -> anyhow::Result<Option<Arc<OwnedTape>>> {
        cluster_facts(&self.cluster)
    }
}

/// Returns the map that expressions read as `cluster`, or `None` if it is empty.
///
/// # Errors
/// There are too many facts, or they nest too deeply.
pub(super) fn cluster_facts(facts: &Map<String, Value>) -> anyhow::Result<Option<Arc<OwnedTape>>> {
    if facts.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(OwnedTape::parse(serde_json::to_string(facts)?)?)))
}

impl PolicyFile for WebhookPolicy {
    const KIND: &'static str = "WebhookPolicy";

    fn settings() -> &'static [Setting] {
        static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(settings::of::<WebhookPolicy>);
        &SETTINGS
    }

    fn apply(&mut self, overrides: &Overrides) {
        let Overrides { log_level, trace_ratio, drain_minimum, drain_deadline } = overrides;
        if let Some(level) = log_level {
            self.logs.level.clone_from(level);
        }
        if let Some(ratio) = trace_ratio {
            self.traces.ratio = *ratio;
        }
        if let Some(minimum) = drain_minimum {
            self.connections.drain_minimum = *minimum;
        }
        if let Some(deadline) = drain_deadline {
            self.connections.drain_deadline = *deadline;
        }
    }

    fn invalid_values(&self) -> Vec<PolicyError> {
        let level = logs::filter(&self.logs.level).err().map(|error| PolicyError::new("logs.level", error.to_string()));
        let facts = self.cluster_facts().err();
        let facts = facts.map(|error| PolicyError::new("cluster", format!("cannot be used: {error}")));
        let opt_in = opt_in_error("namespaces.optIn", &self.namespaces.labels());
        level.into_iter().chain(facts).chain(opt_in).collect()
    }

    fn contradictions(&self) -> Vec<PolicyError> {
        let Self { requests, overload, connections, lookups, .. } = self;
        // One body may use up to three quarters of the memory for all bodies.
        let large = Size(requests.max_body_memory.0 / 4 * 3);
        [
            at_most(
                ("connections.drainMinimum", connections.drain_minimum),
                ("connections.drainDeadline", connections.drain_deadline),
                "make the minimum shorter or the deadline longer",
            ),
            at_most(
                ("connections.handshakeTimeout", connections.handshake_timeout),
                ("connections.idleTimeout", connections.idle_timeout),
                "make the handshake timeout shorter",
            ),
            at_most(
                ("connections.maxHandshakes", connections.max_handshakes),
                ("connections.max", connections.max),
                "each handshake is a connection: allow more connections or fewer handshakes",
            ),
            at_most(
                ("requests.bodyTimeout", requests.body_timeout),
                ("requests.timeout", requests.timeout),
                "make the body timeout shorter or the request timeout longer",
            ),
            at_most(
                ("requests.lookupTimeout", requests.lookup_timeout),
                ("requests.timeout", requests.timeout),
                "make the lookup timeout shorter or the request timeout longer",
            ),
            at_most(
                ("overload.maxUnfinishedPerAddress", overload.max_unfinished_per_address),
                ("overload.maxUnfinished", overload.max_unfinished),
                "the limit of one address cannot exceed the limit of all: lower the first or raise the second",
            ),
            at_most(
                ("overload.maxQueued", overload.max_queued),
                ("overload.maxInFlight", overload.max_in_flight),
                "queued requests are part of those in flight: allow more in flight or fewer in the queue",
            ),
            at_most(
                ("overload.maxQueuedPerNamespace", overload.max_queued_per_namespace),
                ("overload.maxQueued", overload.max_queued),
                "the limit of one namespace cannot exceed the limit of all: lower the first or raise the second",
            ),
            at_most(
                ("overload.maxQueuedLargePerNamespace", overload.max_queued_large_per_namespace),
                ("overload.maxQueuedLarge", overload.max_queued_large),
                "the limit of one namespace cannot exceed the limit of all: lower the first or raise the second",
            ),
            at_most(
                ("overload.defaultTimeout", overload.default_timeout),
                ("overload.longestTimeout", overload.longest_timeout),
                "make the default timeout shorter or the longest timeout longer",
            ),
            at_most(
                ("lookups.freshFor", lookups.fresh_for),
                ("lookups.staleFor", lookups.stale_for),
                "staleFor is the maximum age of a cached object: make it longer",
            ),
            (requests.max_body > large).then(|| PolicyError {
                path: "requests.maxBody",
                message: format!(
                    "expected at most {large}, three quarters of requests.maxBodyMemory ({}), found {}",
                    requests.max_body_memory, requests.max_body
                ),
                help: Some("a larger body could never be read: allow smaller bodies or more memory".to_owned()),
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
