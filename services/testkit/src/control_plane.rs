//! Starts a real control plane: etcd and kube-apiserver. The API server calls webhooks as it does in production.
//!
//! It has no controller manager, scheduler or node, so pods stay pending.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::certificates::{TestCa, install_crypto_provider};
use crate::daemon::Daemon;
use crate::kubeconfig::{self, Identity};
use crate::{namespace, tools};

mod kubectl;
pub(crate) mod objects;
mod processes;
mod second;

use objects::create_if_absent;
pub use second::SecondApiServer;

/// How long etcd and the API server together may take to become ready.
const START_LIMIT: Duration = Duration::from_mins(3);

/// The address ranges of Services. Services have one IPv4 address, unless they request both IP families.
const SERVICE_ADDRESSES: &str = "10.112.0.0/24,fd00:112::/112";
/// The name of the audit log in the folder of a leased control plane.
pub(crate) const AUDIT_LOG: &str = "audit.log";
/// The name of the file that exists in the folder of a leased control plane while it has Pillion's CRDs.
pub(crate) const CRDS: &str = "crds";

/// The name of the file with the CA certificate in a control plane's folder.
const CA_FILE: &str = "ca.crt";

/// The bearer token of the administrator, in the group `system:masters`.
const ADMIN_TOKEN: &str = "admin-of-a-test";

/// The address and the configuration of a control plane.
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    address: IpAddr,
    ports: Ports,
    directory: Option<PathBuf>,
    api_server_args: Vec<String>,
    garbage_collection: GarbageCollection,
}

/// When etcd and the API server collect garbage.
#[derive(Debug, Clone, Copy)]
enum GarbageCollection {
    /// Only near a memory limit.
    Late,
    /// As Go programs do by default, and thus in production.
    Default,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    api_server: u16,
    etcd_clients: u16,
    etcd_peers: u16,
}

/// A running etcd and kube-apiserver. Dropping this value ends both, unless they are leased.
#[derive(Debug)]
pub struct ControlPlane {
    settings: Settings,
    ca_pem: String,
    // The API server is dropped before etcd. Otherwise it would fill the end of its log with connection errors.
    api_server: Option<Daemon>,
    /// `None` for a leased control plane, whose processes belong to another process.
    etcd: Option<Daemon>,
    /// The folder of the leased control plane. `None`: this value owns the processes.
    leased: Option<PathBuf>,
}

/// The configuration that each start of the API server uses.
#[derive(Debug)]
struct Settings {
    address: IpAddr,
    ports: Ports,
    directory: PathBuf,
    /// The folder of keys and certificates.
    keys: PathBuf,
    tools: PathBuf,
    api_server_args: Vec<String>,
    garbage_collection: GarbageCollection,
}

/// A control plane that keeps running after this process ends.
#[derive(Debug, Clone)]
pub struct Detached {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The process id of kube-apiserver.
    pub api_server: u32,
    /// The process id of etcd.
    pub etcd: u32,
}

impl Builder {
    /// Listens on an address other than [`namespace::API_SERVER`], for a second control plane in one test. It is never
    /// leased.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = address;
        self
    }

    /// Listens on free ports of the loopback, for a control plane outside an isolated test.
    ///
    /// # Errors
    /// The operating system has no free port.
    pub fn on_loopback(mut self) -> anyhow::Result<Self> {
        self.address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let listeners: Vec<TcpListener> = (0..3)
            .map(|_| TcpListener::bind(SocketAddr::new(self.address, 0)))
            .collect::<Result<_, _>>()
            .context("no free port on the loopback")?;
        let ports: Vec<u16> = listeners
            .iter()
            .map(|listener| Ok(listener.local_addr()?.port()))
            .collect::<std::io::Result<_>>()
            .context("no free port on the loopback")?;
        if let [api_server, etcd_clients, etcd_peers] = ports[..] {
            self.ports = Ports { api_server, etcd_clients, etcd_peers };
        }
        Ok(self)
    }

    /// Sets the folder of data, keys and logs. Default: a folder inside the test's folder.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Adds an argument for kube-apiserver, such as `--audit-policy-file=...`.
    pub fn api_server_arg(mut self, argument: impl Into<String>) -> Self {
        self.api_server_args.push(argument.into());
        self
    }

    /// Lets etcd and the API server collect garbage as in production, for tests that measure their processor time or
    /// memory. By default they collect it only near a memory limit, which takes less processor time.
    pub fn default_garbage_collection(mut self) -> Self {
        self.garbage_collection = GarbageCollection::Default;
        self
    }

    /// Starts etcd and the API server. Waits until the API server is ready and has created the namespace `default`. If
    /// the test has leased a control plane and this builder has the default address, attaches to the leased one
    /// instead.
    ///
    /// # Errors
    /// The tools are missing, or etcd or the API server does not start; the error contains the end of the API server's
    /// log. Or the control plane is leased, but this builder has arguments for the API server: such a test needs
    /// [`own_network`](crate::Isolation::own_network).
    pub async fn start(self) -> anyhow::Result<ControlPlane> {
        install_crypto_provider();
        if let Some(leased) = namespace::leased_control_plane().filter(|_| self.address == namespace::API_SERVER) {
            return self.attach(leased);
        }
        let directory = match self.directory {
            Some(directory) => directory,
            None => namespace::directory()?.join(format!("control-plane-{}", self.address)),
        };
        std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let settings = Settings {
            address: self.address,
            ports: self.ports,
            keys: directory.clone(),
            directory,
            tools: tools::dir()?,
            api_server_args: self.api_server_args,
            garbage_collection: self.garbage_collection,
        };
        let ca_pem = settings.write_credentials()?;
        // Both programs start concurrently. This is possible, because the API server waits until etcd is ready.
        settings.write(CA_FILE, &ca_pem)?;
        let etcd = Some(settings.spawn_etcd()?);
        let mut control_plane = ControlPlane { etcd, api_server: None, leased: None, ca_pem, settings };
        control_plane.write_kubeconfig("admin", &Identity::Token(ADMIN_TOKEN))?;
        control_plane.start_api_server().await?;
        Ok(control_plane)
    }

    /// Attaches to a leased control plane. Writes kubeconfigs and similar files to a folder of the test.
    fn attach(self, leased: PathBuf) -> anyhow::Result<ControlPlane> {
        if !self.api_server_args.is_empty() {
            bail!(
                "a leased control plane cannot be configured: give the test its own network (Isolation::own_network)"
            );
        }
        let directory = match self.directory {
            Some(directory) => directory,
            None => namespace::directory()?.join(format!("control-plane-{}", self.address)),
        };
        std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let ca = leased.join(CA_FILE);
        let ca_pem = std::fs::read_to_string(&ca).with_context(|| format!("cannot read {}", ca.display()))?;
        let settings = Settings {
            address: self.address,
            ports: self.ports,
            directory,
            keys: leased.clone(),
            tools: tools::dir()?,
            api_server_args: Vec::new(),
            garbage_collection: self.garbage_collection,
        };
        let control_plane = ControlPlane { etcd: None, api_server: None, leased: Some(leased), ca_pem, settings };
        control_plane.write_kubeconfig("admin", &Identity::Token(ADMIN_TOKEN))?;
        Ok(control_plane)
    }
}

impl Settings {
    fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.ports.api_server))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns a flag with the path of a key, a certificate or the token file.
    fn key_flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.keys.join(name).display())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes keys, certificates and the token file. Returns the CA certificate in PEM form.
    fn write_credentials(&self) -> anyhow::Result<String> {
        let ca = TestCa::new()?;
        let address = self.address.to_string();
        let second = namespace::SECOND_API_SERVER.to_string();
        let names = [&address, &second, "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        ca.serving_files(&self.directory, "apiserver", &names)?;
        // The API server accepts a certificate instead of a plain public key for service account tokens, so the
        // certificate code can be reused.
        TestCa::new()?.serving_files(&self.directory, "service-accounts", &["service-accounts"])?;
        self.write("tokens.csv", &format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        Ok(ca.bundle_pem())
    }

    fn spawn_etcd(&self) -> anyhow::Result<Daemon> {
        let clients = format!("http://{}", SocketAddr::new(self.address, self.ports.etcd_clients));
        let peers = format!("http://{}", SocketAddr::new(self.address, self.ports.etcd_peers));
        let mut command = Command::new(self.tools.join("etcd"));
        command
            .arg(format!("--data-dir={}", self.path("etcd-data").display()))
            // A test's data need not survive a crash of the machine.
            .arg("--unsafe-no-fsync")
            .arg(format!("--listen-client-urls={clients}"))
            .arg(format!("--advertise-client-urls={clients}"))
            .arg(format!("--listen-peer-urls={peers}"))
            .arg(format!("--initial-advertise-peer-urls={peers}"))
            .arg(format!("--initial-cluster=default={peers}"));
        Daemon::spawn("etcd", isolate_go_process(&mut command, self.garbage_collection), &self.path("etcd.log"))
    }

    fn spawn_api_server(&self) -> anyhow::Result<Daemon> {
        self.spawn_api_server_at(self.address, "kube-apiserver")
    }

    fn spawn_api_server_at(&self, address: IpAddr, name: &str) -> anyhow::Result<Daemon> {
        let etcd = SocketAddr::new(self.address, self.ports.etcd_clients);
        let mut command = Command::new(self.tools.join("kube-apiserver"));
        command
            .arg(format!("--etcd-servers=http://{etcd}"))
            .arg(format!("--bind-address={address}"))
            .arg(format!("--advertise-address={address}"))
            .arg(format!("--secure-port={}", self.ports.api_server))
            .arg(self.key_flag("tls-cert-file", "apiserver.crt"))
            .arg(self.key_flag("tls-private-key-file", "apiserver.key"))
            .arg(self.key_flag("token-auth-file", "tokens.csv"))
            .arg("--authorization-mode=RBAC")
            // Nothing routes Service addresses here, so the API server must call webhooks at the addresses of the
            // endpoints.
            .arg("--enable-aggregator-routing=true")
            // This plugin waits for service accounts that only a controller manager creates.
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg(format!("--service-cluster-ip-range={SERVICE_ADDRESSES}"))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(self.key_flag("service-account-key-file", "service-accounts.crt"))
            .arg(self.key_flag("service-account-signing-key-file", "service-accounts.key"))
            .arg("--allow-privileged=true")
            .arg("--profiling=false");
        if address.is_loopback() {
            // A loopback address is not allowed as an endpoint of the Service `kubernetes`, and this Service is not
            // needed here.
            command.arg("--endpoint-reconciler-type=none");
        }
        command.args(&self.api_server_args);
        Daemon::spawn(
            name,
            isolate_go_process(&mut command, self.garbage_collection),
            &self.path(&format!("{name}.log")),
        )
    }
}

/// Returns the memory limit of etcd and of an API server, in MiB: a twelfth of the machine's memory, but between 900
/// and 2048. Six control planes run at the same time on two processors. A smaller limit would cost processor time,
/// because up to 200 MiB of an API server's memory are always in use and cannot be freed.
fn memory_limit() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    (total.unwrap_or(0_u64) / 1024 / 12).clamp(900, 2048)
}

/// Makes a Go program ignore proxies and the terminal's signals, and sets when it collects garbage. Returns the
/// command.
fn isolate_go_process(command: &mut Command, garbage_collection: GarbageCollection) -> &mut Command {
    use std::os::unix::process::CommandExt;
    match garbage_collection {
        // Processor time is scarcer than memory in tests, so Go collects garbage only near the memory limit.
        GarbageCollection::Late => command.env("GOGC", "off").env("GOMEMLIMIT", format!("{}MiB", memory_limit())),
        // `just` sets GOGC for other Go programs.
        GarbageCollection::Default => command.env_remove("GOGC").env_remove("GOMEMLIMIT"),
    };
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env_remove(variable);
    }
    command.process_group(0)
}

impl ControlPlane {
    /// Starts a control plane on [`namespace::API_SERVER`] inside an isolated test. See [`Builder::start`].
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub async fn start() -> anyhow::Result<Self> {
        Self::builder().start().await
    }

    /// Returns a builder that configures and starts a control plane.
    pub fn builder() -> Builder {
        Builder {
            address: namespace::API_SERVER,
            ports: Ports { api_server: 6443, etcd_clients: 2379, etcd_peers: 2380 },
            directory: None,
            api_server_args: Vec::new(),
            garbage_collection: GarbageCollection::Late,
        }
    }

    /// Returns a client that authenticates as the administrator, with its own connections.
    ///
    /// # Panics
    /// Never in practice: the same configuration worked when the control plane started.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the same configuration worked when the API server started")]
    pub fn client(&self) -> Client {
        self.admin_client().expect("this configuration created a client before")
    }

    /// Returns a client that impersonates `user` in `groups` (and in `system:authenticated`).
    ///
    /// # Errors
    /// The kubeconfig cannot be written or read back.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        client_of(&self.kubeconfig_as(user, groups)?).await
    }

    /// Returns the path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.settings.path("admin.kubeconfig")
    }

    /// Writes a kubeconfig that impersonates `user` in `groups` (and in `system:authenticated`), and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<PathBuf> {
        self.write_kubeconfig(user, &Identity::Impersonation { token: ADMIN_TOKEN, user, groups })
    }

    /// Writes a kubeconfig with a token of a service account, and returns its path. Creates the service account if it
    /// is missing. RBAC tests use it.
    ///
    /// # Errors
    /// The namespace is missing, or the API server does not issue a token.
    pub async fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        create_if_absent(&accounts, &account).await?;
        // An empty list requests the API server's own audience.
        let spec = TokenRequestSpec { audiences: Some(Vec::new()), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("no token for service account {namespace}/{name}"))?;
        let token = answer
            .status
            .and_then(|status| status.token)
            .context("the response to the TokenRequest contains no token")?;
        self.write_kubeconfig(&format!("{namespace}-{name}"), &Identity::Token(&token))
    }

    /// Returns the API server's URL: `https://ADDRESS:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        self.settings.url()
    }

    /// Returns the folder of data, keys, kubeconfigs and logs (`etcd.log`, `kube-apiserver.log`). If the control plane
    /// is leased, this folder has only kubeconfigs and similar files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.settings.directory
    }

    fn admin_client(&self) -> anyhow::Result<Client> {
        Client::try_from(self.admin_config(&self.url())?).context("cannot create a client for the API server")
    }

    /// Returns the administrator's client configuration, for custom clients.
    ///
    /// # Errors
    /// Never in practice: the same configuration worked when the API server started.
    pub fn config(&self) -> anyhow::Result<Config> {
        self.admin_config(&self.url())
    }

    fn admin_config(&self, url: &str) -> anyhow::Result<Config> {
        let mut config = Config::new(url.parse().with_context(|| format!("{url} is not a URL"))?);
        let ca = rustls_pki_types::pem::PemObject::from_pem_slice(self.ca_pem.as_bytes())
            .map(|certificate: rustls_pki_types::CertificateDer<'_>| certificate.to_vec())
            .context("reading the CA back")?;
        config.root_cert = Some(vec![ca]);
        config.auth_info.token = Some(ADMIN_TOKEN.to_owned().into());
        Ok(config)
    }

    fn write_kubeconfig(&self, name: &str, identity: &Identity<'_>) -> anyhow::Result<PathBuf> {
        // User names may contain colons and slashes, which are replaced in the file name.
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name = format!("{name}.kubeconfig");
        self.settings.write(&name, &kubeconfig::render(&self.url(), &self.ca_pem, identity))?;
        Ok(self.settings.path(&name))
    }
}

/// Creates a client from a kubeconfig file.
///
/// # Errors
/// The file is unreadable or is not a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    install_crypto_provider();
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("{} does not configure a client", kubeconfig.display()))?;
    Client::try_from(config).context("cannot create a client for the API server")
}
