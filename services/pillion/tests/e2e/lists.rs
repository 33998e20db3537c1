//! Tests the lists of all pods, namespaces, profiles and revisions that a new leader reads. The API server must serve
//! them page by page from its watch cache. So the lists cause no etcd requests, even in a large cluster.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ObjectMeta, PostParams};
use pillion_testkit::namespace::replica_address;
use pillion_testkit::{ControlPlane, Isolation, eventually};

use crate::managed::{Managed, QUICK, controller};
use crate::rig::{PATIENCE, bare_pod};

/// The kinds whose lists the test checks. For pods and namespaces, also the number of objects that the test creates:
/// more than one page of the leader's watches.
const KINDS: [(&str, usize); 6] = [
    ("pods", 510),
    ("namespaces", 260),
    ("clusterinjectionprofiles", 0),
    ("injectionprofiles", 0),
    ("clusterprofilerevisions", 0),
    ("profilerevisions", 0),
];
/// Number of concurrent creations.
const WRITERS: usize = 20;

/// Returns the sums of one of the API server's counters, by kind. Counts only series that contain all `labels`.
async fn counts(plane: &ControlPlane, counter: &str, labels: &[&str]) -> Result<BTreeMap<&'static str, f64>> {
    let metrics = plane.client().request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let is_counted =
        |line: &&str| line.starts_with(&format!("{counter}{{")) && labels.iter().all(|label| line.contains(label));
    let value = |line: &str| line.rsplit(' ').next().context("a value")?.parse::<f64>().context(line.to_owned());
    let sum = |kind: &'static str| -> Result<(&'static str, f64)> {
        let is_of_kind = |line: &&str| line.contains(&format!("resource=\"{kind}\""));
        Ok((kind, metrics.lines().filter(is_counted).filter(is_of_kind).map(value).sum::<Result<f64>>()?))
    };
    KINDS.iter().map(|(kind, _)| sum(kind)).collect()
}

/// Returns how often the API server has listed each kind in etcd.
async fn etcd_lists(plane: &ControlPlane) -> Result<BTreeMap<&'static str, f64>> {
    counts(plane, "etcd_request_duration_seconds_count", &["operation=\"list"]).await
}

/// Returns how many pages of lists of all objects the API server has served, by kind.
async fn pages(plane: &ControlPlane) -> Result<BTreeMap<&'static str, f64>> {
    counts(plane, "apiserver_request_total", &["verb=\"LIST\"", "scope=\"cluster\"", "code=\"200\""]).await
}

/// Creates objects concurrently.
async fn create_all<K>(api: Api<K>, objects: impl Iterator<Item = K>) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let parameters = PostParams::default();
    let created = stream::iter(objects).map(|object| {
        let (api, parameters) = (&api, &parameters);
        async move { api.create(parameters, &object).await.map(drop) }
    });
    Ok(created.buffer_unordered(WRITERS).try_collect().await?)
}

#[test]
fn leader_lists_come_from_watch_cache() {
    Isolation::new().own_network("the API server counts its etcd requests").run(|| async {
        let managed = Managed::start_without_namespace(ControlPlane::builder(), QUICK, 0, 0).await?;
        let plane = &managed.rig.control_plane;
        let client = plane.client();
        let named = |number: usize| ObjectMeta { name: Some(format!("team-{number}")), ..ObjectMeta::default() };
        let [(_, pods), (_, namespaces), ..] = KINDS;
        let namespaces = (0..namespaces).map(|number| Namespace { metadata: named(number), ..Namespace::default() });
        create_all(Api::all(client.clone()), namespaces).await?;
        let pods = (0..pods).map(|number| serde_json::from_value::<Pod>(bare_pod(&format!("app-{number}"))));
        let pods = pods.collect::<Result<Vec<_>, _>>()?;
        create_all(Api::namespaced(client.clone(), "team-0"), pods.into_iter()).await?;
        // The first request for a kind fills the watch cache from etcd.
        for (kind, _) in KINDS {
            plane.kubectl_ok(&["get", kind, "--all-namespaces", "--output=name"]).await?;
        }
        let (lists_before, pages_before) = (etcd_lists(plane).await?, pages(plane).await?);
        ensure!(lists_before.values().all(|count| *count > 0.0), "the caches were filled from etcd: {lists_before:?}");

        let _leader = controller(&managed.spec, replica_address(101)).await?;
        eventually(PATIENCE, "the leader has listed all kinds", async || {
            let pages = pages(plane).await?;
            for (kind, objects) in KINDS {
                let (read, least) = (pages[kind] - pages_before[kind], if objects > 0 { 2.0 } else { 1.0 });
                ensure!(read >= least, "{read} of at least {least} pages of {kind}");
            }
            Ok(())
        })
        .await?;
        let lists = etcd_lists(plane).await?;
        ensure!(lists == lists_before, "etcd served lists: {lists:?}, before the leader: {lists_before:?}");
        Ok(())
    });
}
