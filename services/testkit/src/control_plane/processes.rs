//! The processes of a control plane: stops, pauses and starts the API server. If the control plane is leased, its
//! keeper does this.

use std::path::PathBuf;

use anyhow::{Context, bail};
use http::Request;

use super::{AUDIT_LOG, CRDS, ControlPlane, Detached, START_LIMIT};
use crate::daemon::Daemon;
use crate::remote;

const LEASED: &str = "the control plane is leased; give the test its own network (Isolation::own_network)";
const STOPPED: &str = "the API server is stopped; start it first";

impl ControlPlane {
    /// Kills the API server abruptly, like a power failure. etcd continues to run. Existing clients work again after
    /// [`ControlPlane::start_api_server`].
    ///
    /// # Errors
    /// The API server is already stopped.
    pub fn stop_api_server(&mut self) -> anyhow::Result<()> {
        match &self.leased {
            Some(folder) => remote::send(folder, remote::Request::Stop),
            None => self.api_server.take().context(STOPPED)?.kill(),
        }
    }

    /// Pauses the API server, so that it hangs while its connections stay open.
    ///
    /// # Errors
    /// The API server is stopped.
    pub fn pause_api_server(&mut self) -> anyhow::Result<()> {
        match &self.leased {
            Some(folder) => remote::send(folder, remote::Request::Pause),
            None => self.api_server.as_mut().context(STOPPED)?.pause(),
        }
    }

    /// Resumes the API server after [`ControlPlane::pause_api_server`].
    ///
    /// # Errors
    /// The API server is stopped.
    pub fn resume_api_server(&mut self) -> anyhow::Result<()> {
        match &self.leased {
            Some(folder) => remote::send(folder, remote::Request::Resume),
            None => self.api_server.as_mut().context(STOPPED)?.resume(),
        }
    }

    /// Starts the API server again with the same etcd, address and keys, and waits until it is ready.
    ///
    /// # Errors
    /// The API server is already running, or does not become ready; the error contains the end of its log.
    pub async fn start_api_server(&mut self) -> anyhow::Result<()> {
        if let Some(folder) = self.leased.clone() {
            return tokio::task::spawn_blocking(move || remote::send(&folder, remote::Request::Start)).await?;
        }
        if self.api_server.is_some() {
            bail!("the API server runs already; stop it first");
        }
        let mut api_server = self.settings.spawn_api_server()?;
        let client = self.admin_client()?;
        let etcd = self.etcd.as_mut().context(LEASED)?;
        let probe = async || {
            if let Some(status) = etcd.exited()? {
                bail!("etcd has ended ({status}); see {}", etcd.log().display());
            }
            // A controller inside the API server creates the namespace `default` soon after `/readyz` succeeds.
            for path in ["/readyz", "/api/v1/namespaces/default"] {
                client.request_text(Request::get(path).body(Vec::new())?).await?;
            }
            Ok(())
        };
        api_server.ready(START_LIMIT, probe).await?;
        self.api_server = Some(api_server);
        Ok(())
    }

    /// Calls [`ControlPlane::stop_api_server`] and [`ControlPlane::start_api_server`].
    ///
    /// # Errors
    /// As [`ControlPlane::stop_api_server`] and [`ControlPlane::start_api_server`].
    pub async fn restart_api_server(&mut self) -> anyhow::Result<()> {
        self.stop_api_server()?;
        self.start_api_server().await
    }

    /// Returns the path of the audit log, which contains the requests that patched pods of this test.
    ///
    /// # Errors
    /// The control plane is not leased. Only leased control planes have an audit log.
    pub fn audit_log(&self) -> anyhow::Result<PathBuf> {
        let folder = self.leased.as_ref().context("the control plane is not leased, so it has no audit log")?;
        Ok(folder.join(AUDIT_LOG))
    }

    /// Returns whether the control plane had Pillion's CRDs at the start of the test
    /// ([`Isolation::with_crds`](crate::Isolation::with_crds)).
    #[must_use]
    pub fn has_crds(&self) -> bool {
        self.leased.as_ref().is_some_and(|folder| folder.join(CRDS).exists())
    }

    /// Returns the API server's process, for instance to read its id. `None`: the API server is stopped or leased.
    pub fn api_server(&mut self) -> Option<&mut Daemon> {
        self.api_server.as_mut()
    }

    /// Returns etcd's process. `None`: the control plane is leased.
    pub fn etcd(&mut self) -> Option<&mut Daemon> {
        self.etcd.as_mut()
    }

    /// Keeps etcd and the API server running after this process ends, and keeps their files.
    ///
    /// # Errors
    /// The API server is stopped, or leased.
    pub fn detach(self) -> anyhow::Result<Detached> {
        let kubeconfig = self.kubeconfig();
        let api_server = self.api_server.context(STOPPED)?;
        let etcd = self.etcd.context(LEASED)?;
        Ok(Detached { kubeconfig, api_server: api_server.detach(), etcd: etcd.detach() })
    }
}
