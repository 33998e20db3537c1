//! Tests Pillion for a tenant who has only the Kubernetes role `admin`, in one namespace.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use pillion_testkit::eventually;

use crate::platform::{Platform, SOON, is_ready, on_a_node};

/// The tenant's profile, which adds a sidecar with a readiness probe.
const PROFILE: &str = "
apiVersion: pillion.dev/v1alpha1
kind: InjectionProfile
metadata: {name: helper, namespace: shop}
spec:
  activation: Always
  template:
    spec:
      containers:
      - name: helper
        image: local.test/pause:1
        imagePullPolicy: IfNotPresent
        args: ['8080']
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
        securityContext:
          allowPrivilegeEscalation: false
          runAsNonRoot: true
          capabilities: {drop: [ALL]}
          seccompProfile: {type: RuntimeDefault}
";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: till, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: app
        image: local.test/pause:1
        imagePullPolicy: IfNotPresent
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

async fn pods(platform: &Platform) -> Result<Vec<Pod>> {
    Ok(platform.pods("shop").list(&ListParams::default().labels("app=till")).await?.items)
}

#[test]
#[ignore = "needs a real node: just node"]
fn tenant_installs_its_own_sidecar() {
    on_a_node(async |platform| {
        // The platform team creates the namespace and installs Pillion.
        platform.namespace("shop", "enabled").await?;
        platform
            .kubectl(&["create", "rolebinding", "tenant", "--namespace=shop", "--clusterrole=admin", "--user=tenant"])
            .await?;
        platform.install("shop").await?;
        // From here on, the namespace enforces the strictest level of Pod Security.
        platform.kubectl(&["label", "namespace", "shop", "pod-security.kubernetes.io/enforce=restricted"]).await?;

        // The tenant runs the remaining commands.
        let apply = ["apply", "--as=tenant", "-f", "-"];
        // Kubernetes adds the release's permissions to its own roles a moment later.
        eventually(SOON, "the role has the permissions", async || {
            platform.kubectl_with_input(&apply, PROFILE).await.map(drop)
        })
        .await?;
        platform
            .kubectl(&[
                "wait",
                "--as=tenant",
                "--namespace=shop",
                "--for=condition=Ready",
                "injectionprofile/helper",
                "--timeout=60s",
            ])
            .await?;
        platform.kubectl_with_input(&apply, DEPLOYMENT).await?;

        let started = std::time::Instant::now();
        eventually(SOON, "both pods run with the sidecar", async || {
            let pods = pods(platform).await?;
            ensure!(pods.len() == 2, "{} pods", pods.len());
            pods.iter().try_for_each(is_ready)
        })
        .await?;
        println!("the Deployment's pods were ready after {:.1?}", started.elapsed());
        for pod in pods(platform).await? {
            let statuses = pod.status.context("a status")?.container_statuses.context("containers")?;
            let helper = statuses.iter().find(|each| each.name == "helper").context("the sidecar")?;
            ensure!(helper.image_id.contains("sha256:") && helper.started == Some(true), "{helper:?}");
        }
        // The tenant has no permission outside the namespace.
        let refused = platform.kubectl(&["get", "clusterinjectionprofiles", "--as=tenant"]).await;
        ensure!(
            refused.is_err_and(|error| error.to_string().contains("Forbidden")),
            "the tenant reads the platform's profiles"
        );
        Ok(())
    });
}
