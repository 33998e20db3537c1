//! The keeper: the process that runs a leased control plane. It starts the control plane, performs the requests of
//! tests, and resets the control plane after each test.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::{KEEP, LIMIT, READY, State, USED, parameters};
use crate::control_plane::{AUDIT_LOG, ControlPlane};
use crate::eventually::{POLL, eventually};
use crate::namespace;
use crate::remote::{self, Request as Remote};

/// The audit policy of leased control planes. Only patches of pods are written to the audit log.
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Request, verbs: [patch], resources: [{group: '', resources: [pods]}]}
- {level: None}
";

/// The prefixes of keys that the API server itself writes. A reset ignores such keys.
const VOLATILE: [&str; 8] = [
    "/registry/masterleases/",
    "/registry/leases/kube-system/",
    "/registry/apiregistration.k8s.io/",
    "/registry/flowschemas/",
    "/registry/prioritylevelconfigurations/",
    "/registry/services/endpoints/default/kubernetes",
    "/registry/endpointslices/default/kubernetes",
    "compact_rev_key",
];

/// If this process was started to keep a control plane running, does so and returns only on an error. In any other
/// process, returns at once.
pub(crate) fn keep_if_asked() -> anyhow::Result<()> {
    let Some(folder) = std::env::var_os(KEEP).map(PathBuf::from) else { return Ok(()) };
    namespace::set_up_addresses()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(keep(&folder))
}

/// Starts a control plane, and then performs requests and resets until this process is killed.
async fn keep(folder: &Path) -> anyhow::Result<()> {
    let directory = folder.join(namespace::LEASED_CONTROL_PLANE);
    let (policy, audit_log, used) = (directory.join("audit-policy.yaml"), directory.join(AUDIT_LOG), folder.join(USED));
    std::fs::create_dir_all(&directory)?;
    std::fs::write(&policy, AUDIT_POLICY)?;
    // The API server appends to an existing file, so a reset can empty it.
    std::fs::write(&audit_log, "")?;
    let mut control_plane = ControlPlane::builder()
        .directory(&directory)
        .api_server_arg(format!("--audit-policy-file={}", policy.display()))
        .api_server_arg(format!("--audit-log-path={}", audit_log.display()))
        .start()
        .await?;
    parameters::watch(&control_plane.client()).await?;
    let keys = Keys::new()?;
    let mut baselines = Baselines { bare: keys.read().await?, with_crds: None };
    let requests = UnixListener::bind(directory.join(remote::SOCKET)).context("cannot listen for requests")?;
    std::fs::write(folder.join(READY), "")?;
    loop {
        if used.exists() {
            if control_plane.api_server().is_none() {
                control_plane.start_api_server().await.context("cannot start the API server again")?;
            }
            control_plane.resume_api_server()?;
            let state = State::read(&used).context("a reset to an unknown state")?;
            baselines.reset(state, &keys, &control_plane).await.context("cannot reset the control plane")?;
            std::fs::write(&audit_log, "")?;
            state.write(folder)?;
            std::fs::remove_file(&used)?;
        }
        let Ok(connection) = tokio::time::timeout(POLL, requests.accept()).await else { continue };
        let (stream, _) = connection.context("cannot accept a request")?;
        let response = remote::respond(stream, async |request| match request {
            Remote::Stop => control_plane.stop_api_server(),
            Remote::Start => control_plane.start_api_server().await,
            Remote::Pause => control_plane.pause_api_server(),
            Remote::Resume => control_plane.resume_api_server(),
        });
        if let Err(error) = response.await {
            // The test ended before the response. Its lease is returned or ended in any case.
            let _ = writeln!(std::io::stderr(), "a request failed: {error:#}");
        }
    }
}

/// The keys and values of each state.
struct Baselines {
    bare: Stored,
    /// `None` until the CRDs are installed for the first time.
    with_crds: Option<Stored>,
}

impl Baselines {
    async fn reset(&mut self, state: State, keys: &Keys, control_plane: &ControlPlane) -> anyhow::Result<()> {
        let client = control_plane.client();
        match (state, &self.with_crds) {
            (State::Bare, _) => keys.reset(&self.bare, &client, &[]).await,
            (State::WithCrds, Some(baseline)) => {
                keys.reset(baseline, &client, &crd_names()?).await?;
                // A test, or an earlier reset, may have deleted the CRDs.
                control_plane.wait_for_crds(&crd_names()?.iter().map(String::as_str).collect::<Vec<_>>()).await
            }
            (State::WithCrds, None) => {
                keys.reset(&self.bare, &client, &[]).await?;
                control_plane.apply_crds(&pillion_api::crd::definitions()?).await?;
                self.with_crds = Some(keys.read().await?);
                Ok(())
            }
        }
    }
}

/// Returns the names of Pillion's CRDs.
fn crd_names() -> anyhow::Result<Vec<String>> {
    pillion_api::crd::definitions()?.into_iter().map(|crd| crd.metadata.name.context("a CRD without a name")).collect()
}

/// A client for etcd's JSON gateway. Keys and values are in base64.
struct Keys {
    etcd: Client,
}

type Stored = BTreeMap<String, String>;

impl Keys {
    fn new() -> anyhow::Result<Self> {
        let config = Config::new(format!("http://{}:2379", namespace::API_SERVER).parse()?);
        Ok(Self { etcd: Client::try_from(config).context("cannot create a client of etcd")? })
    }

    async fn read(&self) -> anyhow::Result<Stored> {
        // In etcd's API, these two keys together mean the range of all keys.
        let all =
            self.post("range", &json!({"key": STANDARD.encode("\0"), "range_end": STANDARD.encode("\0")})).await?;
        let text = |pair: &Value, name: &str| pair.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let pairs = all.get("kvs").and_then(Value::as_array).into_iter().flatten();
        Ok(pairs.map(|pair| (text(pair, "key"), text(pair, "value"))).filter(|(key, _)| !is_volatile(key)).collect())
    }

    /// Restores the keys and values in `baseline`, which contains the CRDs with these names. Waits until the API server
    /// has observed the changes.
    async fn reset(&self, baseline: &Stored, client: &Client, crds: &[String]) -> anyhow::Result<()> {
        let now = self.read().await?;
        let surplus = now.keys().filter(|key| !baseline.contains_key(*key));
        let changed = baseline.iter().filter(|(key, value)| now.get(*key) != Some(value));
        let deletions = surplus.map(|key| json!({"requestDeleteRange": {"key": key}}));
        let puts = changed.map(|(key, value)| json!({"requestPut": {"key": key, "value": value}}));
        // The record of a second API server expires only after some seconds.
        let second = STANDARD.encode(format!("/registry/masterleases/{}", namespace::SECOND_API_SERVER));
        let second = json!({"requestDeleteRange": {"key": second}});
        let operations: Vec<Value> = deletions.chain(puts).chain([second]).collect();
        // etcd accepts at most 128 operations in one transaction.
        for chunk in operations.chunks(100) {
            self.post("txn", &json!({"success": chunk})).await?;
        }
        let names = |list: &Value| {
            let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| Some(item.pointer("/metadata/name")?.as_str()?.to_owned())).collect::<Vec<_>>()
        };
        let cached = async |path: &str| -> anyhow::Result<Value> {
            // With resource version 0, the API server responds from its cache.
            Ok(client.request(Request::get(format!("{path}?resourceVersion=0")).body(Vec::new())?).await?)
        };
        eventually(LIMIT, "the API server has seen the reset", async || {
            for (path, left) in EMPTY {
                let names = names(&cached(path).await?);
                ensure!(names.iter().all(|name| left.contains(&name.as_str())), "{path}: {names:?}");
            }
            let left = names(&cached(CRDS).await?);
            ensure!(left.iter().all(|name| crds.contains(name)), "{CRDS}: {left:?}");
            for resource in left.iter().filter_map(|name| name.strip_suffix(".pillion.dev")) {
                let path = format!("/apis/pillion.dev/v1alpha1/{resource}");
                let names = names(&cached(&path).await?);
                ensure!(names.is_empty(), "{path}: {names:?}");
            }
            let groups: Value = client.request(Request::get("/apis").body(Vec::new())?).await?;
            let groups = groups.get("groups").and_then(Value::as_array).into_iter().flatten();
            let of_tests = |group: &&Value| {
                let name = group.get("name").and_then(Value::as_str).unwrap_or_default();
                !name.ends_with(".k8s.io") && name.contains('.') && (crds.is_empty() || name != "pillion.dev")
            };
            let left: Vec<_> = groups.filter(of_tests).collect();
            ensure!(left.is_empty(), "still served: {left:?}");
            let slice = cached(KUBERNETES).await?;
            let endpoints = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
            let addresses: Vec<_> = endpoints.filter_map(|endpoint| endpoint.pointer("/addresses/0")).collect();
            ensure!(addresses == [namespace::API_SERVER.to_string().as_str()], "{KUBERNETES}: {addresses:?}");
            Ok(())
        })
        .await
    }

    async fn post(&self, call: &str, body: &Value) -> anyhow::Result<Value> {
        let request = Request::post(format!("/v3/kv/{call}")).header("content-type", "application/json");
        Ok(self.etcd.request(request.body(serde_json::to_vec(body)?)?).await?)
    }
}

/// The lists that a reset must empty, each with the names that may remain.
const EMPTY: [(&str, &[&str]); 5] = [
    ("/api/v1/namespaces", &["default", "kube-system", "kube-public", "kube-node-lease"]),
    ("/api/v1/pods", &[]),
    ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", &[]),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &[]),
    ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", &[parameters::NAME]),
];

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The endpoints of the API servers.
const KUBERNETES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

fn is_volatile(key: &str) -> bool {
    let key = STANDARD.decode(key).unwrap_or_default();
    VOLATILE.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
}
