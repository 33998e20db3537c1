//! Starts the real kube-controller-manager, by default with the controllers that create pods.
//!
//! [`crate::ControlPlane`] does not start it, because most tests create their pods themselves.

use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use crate::control_plane::ControlPlane;
use crate::daemon::Daemon;
use crate::tools;

/// The controllers that run by default.
const CONTROLLERS: &str =
    "deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller,job-controller";

/// How long the controllers may take to start.
const START_LIMIT: Duration = Duration::from_mins(3);

/// A running kube-controller-manager. Dropping this value ends it.
#[derive(Debug)]
pub struct ControllerManager {
    daemon: Daemon,
}

impl ControllerManager {
    /// Starts kube-controller-manager as the administrator, and waits until its controllers have started.
    ///
    /// # Errors
    /// The program cannot be built, ends early or is not ready in time; the error contains the end of its log.
    pub async fn start(control_plane: &ControlPlane) -> anyhow::Result<Self> {
        Self::with(control_plane, CONTROLLERS).await
    }

    /// Like [`Self::start`], but runs these controllers: names separated by commas.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn with(control_plane: &ControlPlane, controllers: &str) -> anyhow::Result<Self> {
        Self::with_arguments(control_plane, controllers, &[]).await
    }

    /// Like [`Self::with`], with further arguments.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn with_arguments(
        control_plane: &ControlPlane,
        controllers: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let log = control_plane.directory().join("kube-controller-manager.log");
        let mut command = Command::new(tools::program("kube-controller-manager")?);
        command
            .arg(format!("--kubeconfig={}", control_plane.kubeconfig().display()))
            .arg(format!("--controllers={controllers}"))
            .arg("--leader-elect=false")
            // Disables the server, since no test connects to it.
            .arg("--secure-port=0")
            .arg("--profiling=false")
            .args(arguments);
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            command.env_remove(variable);
        }
        let mut daemon = Daemon::spawn("kube-controller-manager", &mut command, &log)?;
        let begun = async || {
            let text = std::fs::read_to_string(&log)?;
            // Each controller logs this once it has listed the existing objects.
            let begun = text.matches("\"Caches are synced\"").count();
            let expected = controllers.split(',').count();
            if begun < expected {
                bail!("{begun} of {expected} controllers have started");
            }
            Ok(())
        };
        daemon.ready(START_LIMIT, begun).await?;
        Ok(Self { daemon })
    }

    /// Returns the process of kube-controller-manager.
    pub fn process(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}
