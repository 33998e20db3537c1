//! Leases control planes to tests, one test at a time.
//!
//! Starting etcd and kube-apiserver takes longer than most tests, so a control plane outlives the test that started it.
//! It runs in network namespaces of its own, and each test that leases it enters them. After a test has passed, every
//! key in etcd is reset to its value before the first test. After a test has failed, its control plane is ended.
//!
//! Two tests never use one control plane at the same time. There are as many control planes as parallel tests.
//!
//! A test may stop, pause and restart the API server of its lease, and may start a second API server on the same etcd.
//! It sends requests to the process that keeps the control plane (see `remote.rs`). A reset starts a stopped API server
//! again, and waits until only this API server is an endpoint of the Service `kubernetes`.
//!
//! A lease is a lock on a file, because a test runner may start a process for each test. The control planes end with
//! the test runner.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::control_plane::{AUDIT_LOG, ControlPlane};
use crate::daemon::tail;
use crate::eventually::{POLL, eventually};
use crate::namespace;
use crate::remote::{self, Request as Remote};

mod parameters;

/// The environment variable with the folder of the lease. It is set in the process that keeps a control plane.
const KEEP: &str = "PILLION_TEST_KEEP";

/// The file in a lease's folder with the id of the process that has the control plane's namespaces.
const NAMESPACES: &str = "namespaces";
/// The file in a lease's folder that exists once the control plane is ready.
const READY: &str = "ready";
/// The file in a lease's folder that exists from the end of a test until the control plane has been reset.
const USED: &str = "used";
/// The file in a lease's folder with the output of the process that keeps the control plane.
const LOG: &str = "keeper.log";

/// How long a control plane may take to start, or to be reset.
const LIMIT: Duration = Duration::from_mins(4);

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

/// A control plane that no other test uses until the lease is returned.
#[derive(Debug)]
pub(crate) struct Lease {
    folder: PathBuf,
    /// The lock on this file is the lease.
    _lock: File,
}

impl Lease {
    /// Leases a control plane. Starts a new one if none is free. `keeper` returns the command for a new control plane:
    /// it runs this program with a test that calls [`keep_if_asked`], in namespaces of its own.
    ///
    /// # Errors
    /// The control plane does not start; the error contains the end of its logs.
    pub(crate) fn take(keeper: impl Fn() -> Command) -> anyhow::Result<Self> {
        let run = Run::of_this_process();
        std::fs::create_dir_all(&run.folder).with_context(|| format!("cannot create {}", run.folder.display()))?;
        for number in 0.. {
            let lock = File::create(run.folder.join(format!("{number}.lock"))).context("cannot create a lock")?;
            if lock.try_lock().is_err() {
                continue;
            }
            let lease = Self { folder: run.folder.join(number.to_string()), _lock: lock };
            if !lease.is_kept() {
                lease.start(&run, &keeper())?;
            }
            lease.wait()?;
            return Ok(lease);
        }
        bail!("no control plane can be leased")
    }

    /// Returns the lease's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a command that enters the control plane's user and network namespaces. The caller appends the program to
    /// run there.
    pub(crate) fn enter(&self) -> anyhow::Result<Command> {
        let process = self.namespaces().context("the control plane has ended")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &process, "--user", "--net", "--preserve-credentials", "--"]);
        Ok(command)
    }

    /// Ends the lease. If the test passed, requests a reset of the control plane. Otherwise copies its logs to the
    /// folder `logs`, and ends it.
    pub(crate) fn give_back(self, passed: bool, logs: &Path) -> anyhow::Result<()> {
        if passed {
            return std::fs::write(self.folder.join(USED), "").context("cannot request a reset");
        }
        for name in ["etcd.log", "kube-apiserver.log"] {
            let _ = std::fs::copy(self.folder.join(namespace::LEASED_CONTROL_PLANE).join(name), logs.join(name));
        }
        if let Some(process) = self.namespaces() {
            // When this process has ended, the script [`KEEPER`] removes the folder.
            let _ = Command::new("kill").args(["-KILL", &process]).status();
        }
        let deadline = Instant::now() + LIMIT;
        while self.folder.exists() {
            ensure!(Instant::now() < deadline, "{} is not removed", self.folder.display());
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn namespaces(&self) -> Option<String> {
        let process = std::fs::read_to_string(self.folder.join(NAMESPACES)).ok()?.trim().to_owned();
        (!process.is_empty() && Path::new("/proc").join(&process).exists()).then_some(process)
    }

    fn is_kept(&self) -> bool {
        self.namespaces().is_some()
    }

    fn start(&self, run: &Run, keeper: &Command) -> anyhow::Result<()> {
        let _ = std::fs::remove_dir_all(&self.folder);
        std::fs::create_dir_all(&self.folder).with_context(|| format!("cannot create {}", self.folder.display()))?;
        let unshared = namespace::unshare();
        // The control plane gets a new session. A test runner that kills a test's process group then does not kill the
        // control plane.
        let mut command = Command::new("setsid");
        command
            .args(["--fork", "sh", "-c", KEEPER])
            .arg(&self.folder)
            .arg(run.owner.to_string())
            .arg(unshared.get_program())
            .args(unshared.get_args())
            .arg(keeper.get_program())
            .args(keeper.get_args())
            .env(KEEP, &self.folder);
        for (name, value) in keeper.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.context("cannot run `setsid` (package util-linux)")?;
        ensure!(status.success(), "setsid failed ({status})");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.is_kept() {
            ensure!(Instant::now() < deadline, "the keeper of a control plane did not start: {}", self.output());
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the control plane is ready and reset.
    fn wait(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if self.folder.join(READY).exists() && !self.folder.join(USED).exists() {
                return Ok(());
            }
            ensure!(self.is_kept(), "the keeper of a control plane has ended: {}", self.output());
            ensure!(Instant::now() < deadline, "no control plane within {LIMIT:?}: {}", self.output());
            std::thread::sleep(POLL);
        }
    }

    fn output(&self) -> String {
        tail(&self.folder.join(LOG), 40)
    }
}

/// A shell script that runs a command, and kills it if the owner ends. When the command has ended, removes the lease's
/// folder. `$0` is this folder, `$1` is the owner's process id, and the rest is the command.
const KEEPER: &str = r#"
folder=$0 owner=$1
shift
"$@" </dev/null >"$folder/keeper.log" 2>&1 &
keeper=$!
echo "$keeper" >"$folder/namespaces.new"
mv "$folder/namespaces.new" "$folder/namespaces"
while kill -0 "$owner" 2>/dev/null && kill -0 "$keeper" 2>/dev/null; do sleep 0.2; done
kill -KILL "$keeper" 2>/dev/null
wait "$keeper" 2>/dev/null
# After a failed start, the folder stays for a moment, so that the waiting test can show the log.
kill -0 "$owner" 2>/dev/null && [ ! -e "$folder/ready" ] && sleep 5
rm -rf "$folder"
if ! kill -0 "$owner" 2>/dev/null; then
  rm -f "$folder.lock"
  rmdir "$(dirname "$folder")" 2>/dev/null
fi
"#;

/// The tests of one run of the test runner, which share control planes.
struct Run {
    folder: PathBuf,
    /// The process id of the test runner. The control planes end when this process ends.
    owner: u32,
}

impl Run {
    fn of_this_process() -> Self {
        let of = |name: String, owner| Self {
            folder: std::env::temp_dir().join(format!("pillion-control-planes-{name}")),
            owner,
        };
        // cargo-nextest starts a process for each test, all with the same run id.
        match (std::env::var("NEXTEST_RUN_ID"), rustix::process::getppid()) {
            (Ok(run), Some(runner)) => of(run, runner.as_raw_nonzero().get().unsigned_abs()),
            _ => of(std::process::id().to_string(), std::process::id()),
        }
    }
}

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
    let baseline = keys.read().await?;
    let requests = UnixListener::bind(directory.join(remote::SOCKET)).context("cannot listen for requests")?;
    std::fs::write(folder.join(READY), "")?;
    loop {
        if used.exists() {
            if control_plane.api_server().is_none() {
                control_plane.start_api_server().await.context("cannot start the API server again")?;
            }
            control_plane.resume_api_server()?;
            keys.reset(&baseline, &control_plane.client()).await.context("cannot reset the control plane")?;
            std::fs::write(&audit_log, "")?;
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

    /// Restores the keys and values in `baseline`, and waits until the API server has observed the changes.
    async fn reset(&self, baseline: &Stored, client: &Client) -> anyhow::Result<()> {
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
            let groups: Value = client.request(Request::get("/apis").body(Vec::new())?).await?;
            let groups = groups.get("groups").and_then(Value::as_array).into_iter().flatten();
            let of_tests = |group: &&Value| {
                let name = group.get("name").and_then(Value::as_str).unwrap_or_default();
                !name.ends_with(".k8s.io") && name.contains('.')
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
const EMPTY: [(&str, &[&str]); 6] = [
    ("/api/v1/namespaces", &["default", "kube-system", "kube-public", "kube-node-lease"]),
    ("/api/v1/pods", &[]),
    ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", &[]),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &[]),
    ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", &[parameters::NAME]),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &[]),
];

/// The endpoints of the API servers.
const KUBERNETES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

fn is_volatile(key: &str) -> bool {
    let key = STANDARD.decode(key).unwrap_or_default();
    VOLATILE.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
}
