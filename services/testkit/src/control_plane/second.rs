//! A second API server on the same etcd, as in a highly available control plane.
//!
//! Both API servers are endpoints of the Service `kubernetes`. Each has its own caches, so one may lag behind the
//! other. Kubernetes removes a stopped API server from the endpoints after 15 seconds.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Context;
use http::Request;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};

use super::{ControlPlane, START_LIMIT};
use crate::daemon::Daemon;
use crate::namespace::SECOND_API_SERVER;

/// A second kube-apiserver. Dropping this value ends the process; drop it before its [`ControlPlane`].
pub struct SecondApiServer {
    url: String,
    client: Client,
    process: Daemon,
}

impl ControlPlane {
    /// Starts another kube-apiserver on the same etcd, at [`SECOND_API_SERVER`], with the same keys, certificates and
    /// arguments. Waits until it is ready, and until both API servers are endpoints of the Service `kubernetes`.
    ///
    /// # Errors
    /// The second API server does not start; the error contains the end of its log (`kube-apiserver-second.log`).
    pub async fn second_api_server(&self) -> anyhow::Result<SecondApiServer> {
        let url = format!("https://{}", SocketAddr::new(SECOND_API_SERVER, self.settings.ports.api_server));
        let client =
            Client::try_from(self.admin_config(&url)?).context("cannot create a client for the second API server")?;
        let mut process = self.settings.spawn_api_server_at(SECOND_API_SERVER, "kube-apiserver-second")?;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
        let probe = async || {
            client.request_text(Request::get("/readyz").body(Vec::new())?).await?;
            let list = slices.list(&ListParams::default().labels("kubernetes.io/service-name=kubernetes")).await?;
            let addresses: Vec<_> = list
                .items
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten())
                .flat_map(|each| &each.addresses)
                .collect();
            anyhow::ensure!(addresses.len() == 2, "the endpoints of the Service kubernetes are {addresses:?}");
            Ok(())
        };
        process.ready(START_LIMIT, probe).await?;
        Ok(SecondApiServer { url, client, process })
    }
}

impl SecondApiServer {
    /// Returns an administrator's client that uses only this API server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the process of this API server, to pause, resume or kill it.
    pub fn process(&mut self) -> &mut Daemon {
        &mut self.process
    }
}

impl fmt::Debug for SecondApiServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SecondApiServer").field("url", &self.url).finish_non_exhaustive()
    }
}
