//! A cluster with an installation of Pillion. Controllers create the certificates and the webhook configurations, and
//! replicas serve with these certificates. Each process has only the permissions of its service account. Like the
//! chart, the test creates the CRDs, the roles and the Services. It also writes the endpoints, which Kubernetes' own
//! controllers would write.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use pillion_control::Release;
use pillion_control::release::DEFAULT_CLUSTER_DOMAIN;
use pillion_testkit::control_plane::Builder;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::replica::Role;
use pillion_testkit::{ControlPlane, Replica, ReplicaSpec, TestCa, eventually, namespace, register_service};
use serde_json::json;

use crate::rbac::{CONTROLLER, WEBHOOK, kubeconfig};
use crate::rig::{NGINX, PATIENCE, Rig, bare_pod, install_crds, names, program};
use crate::rotation::Damage;

/// The name of the release, and of most of its objects.
pub(crate) const RELEASE: &str = "pillion";
/// The last byte of the first controller's address.
const CONTROLLERS: u8 = 101;

/// A policy with short durations: a rotation takes seconds instead of a day.
pub(crate) const QUICK: &str = "\
apiVersion: config.pillion.dev/v1alpha1
kind: ControllerPolicy
leadership: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}
certificates:
  propagationTimeout: 5s
  probeRounds: 2
  probeGap: 100ms
  probeTimeout: 2s
  overlap: 200ms
  interval: 1s
logs: {level: 'info,pillion_control=debug'}
";

/// A cluster with an installation of Pillion, and the processes of its controllers.
pub(crate) struct Managed {
    pub(crate) rig: Rig,
    pub(crate) controllers: Vec<Replica>,
    /// The specification from which controllers start.
    pub(crate) spec: ReplicaSpec,
}

impl Managed {
    /// Starts this many replicas and controllers, and waits until pods in `team-a` are injected.
    pub(crate) async fn start(control_plane: Builder, policy: &str, replicas: u8, controllers: u8) -> Result<Self> {
        let managed = Self::start_without_namespace(control_plane, policy, replicas, controllers).await?;
        managed.rig.namespace("team-a", Some("enabled")).await?;
        managed.rig.wait_until_called("team-a").await?;
        // Replicas are ready before the first revision is published, and each receives it separately.
        managed.rig.wait_until_served(1).await?;
        Ok(managed)
    }

    /// Like [`start`](Self::start), but without a namespace that opts in.
    pub(crate) async fn start_without_namespace(
        control_plane: Builder,
        policy: &str,
        replicas: u8,
        controllers: u8,
    ) -> Result<Self> {
        let control_plane = control_plane.start().await?;
        install_crds(&control_plane).await?;
        control_plane.apply_yaml(NGINX).await?;
        let service = register_service(&control_plane.client(), &[]).await?;
        create_trust_probe_service(&control_plane.client()).await?;
        control_plane.apply_yaml(WEBHOOK).await?;
        control_plane.apply_yaml(CONTROLLER).await?;

        let file = control_plane.directory().join("controller.yaml");
        std::fs::write(&file, policy)?;
        let mut spec = ReplicaSpec::of(Role::Controller, program(), kubeconfig(&control_plane, "controller").await?);
        spec.args = ["--config", file.to_str().context("a path")?].map(str::to_owned).to_vec();
        let mut running = Vec::new();
        for number in 0..controllers {
            running.push(controller(&spec, namespace::replica_address(CONTROLLERS + number)).await?);
        }

        let mut webhook = ReplicaSpec::new(program(), kubeconfig(&control_plane, "webhook").await?, None);
        let secret = format!("{NAMESPACE}/{RELEASE}-serving");
        let args = ["--serving-secret", &secret, "--profiles-from", "revisions", "--drain-minimum", "0"];
        webhook.args = args.map(str::to_owned).to_vec();
        webhook.args.extend(["--release".to_owned(), format!("{NAMESPACE}/{RELEASE}")]);
        webhook.env.push(("PILLION_LOG_LEVEL".to_owned(), "info".to_owned()));
        let replicas = Replica::start_many(&webhook, replicas).await?;
        for replica in &replicas {
            service.set_ready(replica.address(), true).await?;
        }
        let rig = Rig { control_plane, replicas, service, spec: webhook, serving_ca: String::new() };
        Ok(Self { rig, controllers: running, spec })
    }

    /// Starts one replica and one controller. The policies of both define this additional opt-in label, which no
    /// namespace has yet.
    pub(crate) async fn start_with_opt_in_label(label: &str) -> Result<Self> {
        let policy = format!("{QUICK}webhooks: {{optIn: [{label}]}}\n");
        let mut managed = Self::start_without_namespace(ControlPlane::builder(), &policy, 1, 1).await?;
        let policy =
            format!("apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\nnamespaces: {{optIn: [{label}]}}\n");
        let rig = &mut managed.rig;
        let file = rig.control_plane.directory().join("webhook.yaml");
        std::fs::write(&file, policy)?;
        rig.spec.args.extend(["--config".to_owned(), file.to_str().context("a path")?.to_owned()]);
        rig.replicas.clear();
        rig.replicas = Replica::start_many(&rig.spec, 1).await?;
        Ok(managed)
    }

    pub(crate) fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.rig.control_plane.client())
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.rig.control_plane.client(), NAMESPACE)
    }

    /// Returns the state of the rotation from its record: the phase, and the generation of the active CA.
    pub(crate) async fn rotation(&self) -> Result<(String, u64)> {
        let record = self.record().await?;
        let phase = record["phase"].as_str().context("a phase")?.to_owned();
        Ok((phase, record["active"]["generation"].as_u64().unwrap_or_default()))
    }

    /// Returns the rotation's record from its Secret.
    pub(crate) async fn record(&self) -> Result<serde_json::Value> {
        let secret = self.secrets().get(&format!("{RELEASE}-ca")).await?;
        let record = secret.data.context("data")?.remove("record").context("a record")?;
        Ok(serde_json::from_slice(&record.0)?)
    }

    /// Waits until no rotation is in progress and the active CA has at least the generation `least`. Returns the
    /// generation.
    pub(crate) async fn wait_until_stable(&self, least: u64, limit: Duration) -> Result<u64> {
        eventually(limit, "the rotation is complete", async || {
            let (phase, generation) = self.rotation().await?;
            ensure!(phase == "stable" && generation >= least, "{phase}, CA {generation} of {least}");
            Ok(generation)
        })
        .await
    }

    /// Returns the number of certificates in the CA bundle of each entry. Fails unless it is the same for all entries.
    pub(crate) async fn trusted_cas(&self) -> Result<usize> {
        let configuration = self.configurations().get(RELEASE).await?;
        let count = |entry: &MutatingWebhook| {
            let bundle = entry.client_config.ca_bundle.clone().unwrap_or_default().0;
            String::from_utf8_lossy(&bundle).matches("BEGIN CERTIFICATE").count()
        };
        let counts: Vec<_> = configuration.webhooks.iter().flatten().map(count).collect();
        let first = counts.first().copied().unwrap_or_default();
        ensure!(counts.iter().all(|count| *count == first), "entries differ: {counts:?}");
        Ok(first)
    }

    /// Returns the generation of the CA that issued the serving certificate, or 0 if there is no certificate.
    pub(crate) async fn serving_ca(&self) -> Result<u64> {
        let secret = self.secrets().get_opt(&format!("{RELEASE}-serving")).await?;
        let generation = secret.and_then(|secret| secret.metadata.annotations?.remove("pillion.dev/generation"));
        Ok(generation.map(|generation| generation.parse()).transpose()?.unwrap_or_default())
    }

    /// Waits until a controller leads. Returns its address.
    pub(crate) async fn leader(&self) -> Result<IpAddr> {
        let leases: Api<Lease> = Api::namespaced(self.rig.control_plane.client(), NAMESPACE);
        eventually(PATIENCE, "a controller leads", async || {
            let lease = leases.get(&format!("{RELEASE}-controller")).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty());
            let holder = holder.context("the Lease has no holder")?;
            let address = holder.strip_prefix("controller-").and_then(|rest| rest.split('_').next());
            Ok(address.with_context(|| holder.clone())?.parse()?)
        })
        .await
    }

    /// Waits until the API server of this client calls the webhook for pods in the namespace.
    pub(crate) async fn wait_until_called_by(&self, client: &kube::Client, namespace: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        eventually(PATIENCE, "the API server calls the webhook", async || {
            let parameters = PostParams { dry_run: true, ..PostParams::default() };
            let pod = pods.create(&parameters, &serde_json::from_value(bare_pod("probe"))?).await?;
            let pod = serde_json::to_value(pod)?;
            ensure!(names(&pod).contains(&"sidecar-nginx".to_owned()), "not injected: {pod}");
            Ok(())
        })
        .await
    }

    /// Damages the Secrets of the release as `damage` specifies.
    pub(crate) async fn damage(&self, damage: Damage) -> Result<()> {
        let (record, serving) = (format!("{RELEASE}-ca"), format!("{RELEASE}-serving"));
        let another = || TestCa::new()?.serving(&["another.example"]).map(|(_, key)| key);
        match damage {
            Damage::CertificateDeleted => self.delete(&serving).await,
            Damage::CertificateWithWrongKey => self.replace(&serving, "tls.key", &another()?).await,
            Damage::CertificateForWrongName => {
                let (certificate, key) = TestCa::new()?.serving(&["another.example"])?;
                self.replace(&serving, "tls.crt", &certificate).await?;
                self.replace(&serving, "tls.key", &key).await
            }
            Damage::CertificateInvalid => self.replace(&serving, "tls.crt", "junk").await,
            Damage::RecordDeleted => self.delete(&record).await,
            Damage::RecordInvalid => self.replace(&record, "record", "junk").await,
            Damage::CaWithWrongKey => {
                let (_, active) = self.rotation().await?;
                self.replace(&record, &format!("ca-{active}.key"), &another()?).await
            }
            Damage::BothDeleted => {
                self.delete(&record).await?;
                self.delete(&serving).await
            }
        }
    }

    async fn delete(&self, secret: &str) -> Result<()> {
        self.secrets().delete(secret, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn replace(&self, secret: &str, key: &str, text: &str) -> Result<()> {
        let patch = json!({"stringData": {key: text}});
        self.secrets().patch(secret, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Requests a new CA with `pillion certs rotate`.
    pub(crate) fn rotate(&self) -> Result<()> {
        self.pillion(&["certs", "rotate"]).map(drop)
    }

    /// Runs a command of the program with the kubeconfig of this cluster. Returns its output.
    pub(crate) fn pillion(&self, arguments: &[&str]) -> Result<String> {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(self.rig.control_plane.kubeconfig())
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(ran.status.success(), "{arguments:?}: {}{}", text(&ran.stdout), text(&ran.stderr));
        Ok(text(&ran.stdout))
    }
}

/// Starts a controller whose identity in the Lease contains its address.
pub(crate) async fn controller(spec: &ReplicaSpec, address: IpAddr) -> Result<Replica> {
    let mut spec = spec.clone();
    spec.args.extend(["--identity".to_owned(), format!("controller-{address}")]);
    Replica::start(&spec, address).await
}

/// Creates the Service of the trust probe. The leader writes its endpoints.
async fn create_trust_probe_service(client: &kube::Client) -> Result<()> {
    let service = pillion_control::trust_probe::service(&Release::new(RELEASE, NAMESPACE, DEFAULT_CLUSTER_DOMAIN)?)?;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services.patch(&format!("{RELEASE}-trust-probe"), &PatchParams::apply("test"), &Patch::Apply(&service)).await?;
    Ok(())
}
