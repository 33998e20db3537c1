//! Upgrades Pillion with Helm and rolls it back, while pods are created in two namespaces. One namespace rejects pods
//! without a sidecar, and the other accepts them.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::creations::Creations;
use crate::platform::{NAMESPACE, Platform, on_a_node};

const DEFINITION: &str = "clusterinjectionprofiles.pillion.dev";
/// The JSON pointer to the name of the CRD's first printer column. The test changes it to simulate an older CRD.
const HEADING: &str = "/spec/versions/0/additionalPrinterColumns/0/name";

async fn heading(definitions: &Api<CustomResourceDefinition>) -> Result<String> {
    let definition = serde_json::to_value(definitions.get(DEFINITION).await?)?;
    Ok(definition.pointer(HEADING).and_then(|value| value.as_str()).context("a column")?.to_owned())
}

async fn image_and_replicas(platform: &Platform) -> Result<(String, i32)> {
    let deployments: Api<Deployment> = Api::namespaced(platform.client.clone(), NAMESPACE);
    let spec = deployments.get("pillion-webhook").await?.spec;
    let image =
        spec.template.spec.context("a pod")?.containers.pop().context("a container")?.image.context("an image")?;
    Ok((image, spec.replicas.context("replicas")?))
}

async fn rolled_out(platform: &Platform) -> Result<()> {
    for deployment in ["deployment/pillion-webhook", "deployment/pillion-controller"] {
        platform.kubectl(&["rollout", "status", "--namespace", NAMESPACE, deployment, "--timeout=180s"]).await?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a real node: just node"]
fn upgrade_and_rollback_lose_no_pod() {
    on_a_node(async |platform| {
        platform.namespace("team-a", "enabled").await?;
        platform.namespace("pay", "required").await?;
        platform.install("team-a").await?;
        platform.injects("pay").await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(platform.client.clone());
        let current = heading(&definitions).await?;
        // Changes the stored CRD, as if an older release had installed it.
        let older: json_patch::Patch =
            serde_json::from_value(json!([{"op": "replace", "path": HEADING, "value": "older"}]))?;
        definitions.patch(DEFINITION, &PatchParams::default(), &Patch::<()>::Json(older)).await?;

        let creations = Creations::start(platform, &["team-a", "pay"]).await?;
        let mut values = Platform::values("two");
        values["guardrails"]["profiles"] = json!({"maxContainers": 5});
        let begun = Instant::now();
        platform.helm("upgrade", Some(&values), &["--wait", "--timeout=4m"]).await?;
        rolled_out(platform).await?;
        println!("the upgrade: {:.1?}, {}", begun.elapsed(), creations.results_so_far());
        ensure!(heading(&definitions).await? == current, "the CRDs are not up to date");
        ensure!(image_and_replicas(platform).await? == ("local.test/pillion:two".to_owned(), 3));

        let begun = Instant::now();
        platform.helm("rollback", None, &["--wait", "--timeout=4m"]).await?;
        rolled_out(platform).await?;
        println!("the rollback: {:.1?}, {}", begun.elapsed(), creations.results_so_far());
        ensure!(image_and_replicas(platform).await? == ("local.test/pillion:one".to_owned(), 3));

        // An upgrade preserves the number of replicas that was set manually, and causes no conflict.
        platform.kubectl(&["scale", "--namespace", NAMESPACE, "deployment/pillion-webhook", "--replicas=4"]).await?;
        platform.helm("upgrade", Some(&values), &["--wait", "--timeout=4m"]).await?;
        rolled_out(platform).await?;
        ensure!(image_and_replicas(platform).await? == ("local.test/pillion:two".to_owned(), 4));
        println!("after an upgrade with manual scaling: {}", creations.results_so_far());
        // A rollback also restores the recorded number of replicas. So helm reports a conflict, and requires
        // `--force-conflicts`.
        let refused = platform.helm("rollback", None, &["--wait", "--timeout=4m"]).await;
        let refused = refused.err().context("the rollback reported no conflict")?.to_string();
        ensure!(refused.contains("conflict with \"kubectl\"") && refused.contains(".spec.replicas"), "{refused}");
        platform.helm("rollback", None, &["2", "--force-conflicts", "--wait", "--timeout=4m"]).await?;
        rolled_out(platform).await?;
        println!("after the rollback by force: {}", creations.results_so_far());

        let results = creations.stop().await?;
        println!("in the end: {results}");
        ensure!(results.refused.is_empty(), "refused: {:?}", results.refused);
        ensure!(results.without == 0, "{} pods without the sidecar", results.without);
        Ok(())
    });
}
