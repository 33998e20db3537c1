//! A replica of the webhook or the controller: a process of the real binary at an address of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::certificates::TlsFiles;
use crate::daemon::Daemon;
use crate::namespace;

/// The port on which the API server calls a webhook.
pub const WEBHOOK_PORT: u16 = 8443;
/// The port on which a replica serves probes and metrics.
pub const METRICS_PORT: u16 = 9090;

/// The timeout of one GET.
const GET_LIMIT: Duration = Duration::from_secs(5);

/// Whether a replica is a webhook or a controller.
#[derive(Debug, Clone)]
pub enum Role {
    /// The webhook, with the files of its serving certificate. `None`: [`ReplicaSpec::args`] configures the
    /// certificate.
    Webhook(Option<TlsFiles>),
    /// The controller.
    Controller,
}

/// The settings that a test's replicas share.
#[derive(Debug, Clone)]
pub struct ReplicaSpec {
    /// The program, which is `env!("CARGO_BIN_EXE_pillion")` in the tests of its package.
    pub binary: PathBuf,
    /// The kubeconfig of the replica.
    pub kubeconfig: PathBuf,
    /// Whether the replicas are webhooks or controllers.
    pub role: Role,
    /// Further arguments.
    pub args: Vec<String>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
    /// How long a replica may take to become ready.
    pub ready_within: Duration,
}

/// A running replica. Dropping this value kills it.
#[derive(Debug)]
pub struct Replica {
    daemon: Daemon,
    address: IpAddr,
    ready_within: Duration,
}

impl ReplicaSpec {
    /// Returns the settings of a webhook with only the required arguments. Its replicas must become ready within a
    /// minute.
    pub fn new(binary: impl Into<PathBuf>, kubeconfig: impl Into<PathBuf>, tls: impl Into<Option<TlsFiles>>) -> Self {
        Self::of(Role::Webhook(tls.into()), binary, kubeconfig)
    }

    /// Like [`Self::new`], for a webhook or a controller.
    pub fn of(role: Role, binary: impl Into<PathBuf>, kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            kubeconfig: kubeconfig.into(),
            role,
            args: Vec::new(),
            env: Vec::new(),
            ready_within: Duration::from_mins(1),
        }
    }

    fn command(&self, address: IpAddr) -> Command {
        let mut command = Command::new(&self.binary);
        let listen = SocketAddr::new(address, WEBHOOK_PORT).to_string();
        match &self.role {
            Role::Webhook(tls) => {
                command.args(["webhook", "--listen", &listen]);
                if let Some(tls) = tls {
                    command.arg("--tls-cert").arg(&tls.cert).arg("--tls-key").arg(&tls.key);
                }
            }
            Role::Controller => drop(command.args(["controller", "--trust-probe-listen", &listen])),
        }
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--metrics-listen")
            .arg(SocketAddr::new(address, METRICS_PORT).to_string())
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Replica {
    /// Starts a replica at `address`, and waits until `/readyz` returns 200. Its log is `replica-ADDRESS.log` in the
    /// test's folder. If a replica is restarted, its log is appended to the same file.
    ///
    /// # Errors
    /// The program cannot be started, the replica ends or is not ready in time, or the call is not inside an isolated
    /// test. If the replica has started, the error contains the end of its log.
    pub async fn start(spec: &ReplicaSpec, address: IpAddr) -> anyhow::Result<Self> {
        let mut replica = Self::spawn(spec, address)?;
        replica.ready().await?;
        Ok(replica)
    }

    /// Starts replicas 1 to `count` at [`namespace::replica_address`] concurrently, and waits until all are ready.
    ///
    /// # Errors
    /// As [`Replica::start`], for the first replica that fails.
    pub async fn start_many(spec: &ReplicaSpec, count: u8) -> anyhow::Result<Vec<Self>> {
        let mut replicas: Vec<Self> = (1..=count)
            .map(|number| Self::spawn(spec, namespace::replica_address(number)))
            .collect::<anyhow::Result<_>>()?;
        for replica in &mut replicas {
            replica.ready().await?;
        }
        Ok(replicas)
    }

    /// Starts a replica without waiting until it is ready.
    ///
    /// # Errors
    /// The program cannot be started, or the call is not inside an isolated test.
    pub fn spawn(spec: &ReplicaSpec, address: IpAddr) -> anyhow::Result<Self> {
        let log = namespace::directory()?.join(format!("replica-{address}.log"));
        let daemon = Daemon::spawn(format!("replica {address}"), &mut spec.command(address), &log)?;
        Ok(Self { daemon, address, ready_within: spec.ready_within })
    }

    /// Waits until `/readyz` returns 200.
    ///
    /// # Errors
    /// The replica ends or is not ready in time; the error contains the end of its log.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let address = self.address;
        let probe = async || match get(SocketAddr::new(address, METRICS_PORT), "/readyz").await? {
            (StatusCode::OK, _) => Ok(()),
            (status, text) => bail!("/readyz returns {status}: {text}"),
        };
        self.daemon.ready(self.ready_within, probe).await
    }

    /// Returns the replica's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the path of the log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.daemon.log()
    }

    /// Returns the content of the log.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn log_text(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(self.log()).with_context(|| format!("cannot read {}", self.log().display()))
    }

    /// Returns the replica's process, for instance to pause and resume it, or to get its process id.
    pub fn process(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Sends a GET request to the port of probes and metrics. Returns the status and the body.
    ///
    /// # Errors
    /// The replica cannot be reached, or does not respond within five seconds.
    pub async fn get(&self, path: &str) -> anyhow::Result<(StatusCode, String)> {
        get(SocketAddr::new(self.address, METRICS_PORT), path).await
    }

    /// Returns the metrics in Prometheus' text format.
    ///
    /// # Errors
    /// There is no response, or its status is not 200.
    pub async fn metrics_text(&self) -> anyhow::Result<String> {
        match self.get("/metrics").await? {
            (StatusCode::OK, text) => Ok(text),
            (status, text) => bail!("/metrics returns {status}: {text}"),
        }
    }

    /// Sends SIGTERM and waits until the replica has ended. The replica may drain first, which takes time.
    ///
    /// # Errors
    /// The replica has already ended, or still runs after `limit`; the error contains the end of its log.
    pub async fn terminate(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        self.daemon.terminate()?;
        self.daemon.wait(limit).await
    }

    /// Kills the replica with SIGKILL, as if its node had failed.
    ///
    /// # Errors
    /// The operating system fails.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.daemon.kill()
    }
}

/// Sends a GET request without TLS. Returns the status and the body.
///
/// # Errors
/// There is no response within five seconds.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(StatusCode, String)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new())?;
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        // The request makes progress only while the connection is polled. If the connection fails first, returns its
        // error.
        tokio::select! {
            answer = answer => answer,
            Err(error) = connection => Err(error.into()),
        }
    };
    tokio::time::timeout(GET_LIMIT, exchange)
        .await
        .with_context(|| format!("no response within {GET_LIMIT:?}"))
        .flatten()
        .with_context(|| format!("GET http://{address}{path}"))
}
