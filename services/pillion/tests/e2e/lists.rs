//! Tests the lists of all pods, namespaces and profiles that a new leader reads. The API server must serve them page by
//! page from its watch cache. So the lists cause no etcd requests, even in a large cluster.

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PartialObjectMeta, PostParams};
use pillion_testkit::{ControlPlane, isolated};

const NAMESPACES: usize = 7;
/// Maximum number of objects on one page. It is small, so that the lists have several pages.
const PAGE_SIZE: u32 = 2;

/// Returns how often the API server has listed pods and namespaces in etcd.
async fn etcd_list_count(plane: &ControlPlane) -> Result<f64> {
    let metrics = plane.client().request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let is_list = |line: &&str| {
        line.starts_with("etcd_request_duration_seconds_count{")
            && line.contains("operation=\"list")
            && ["pods", "namespaces"].iter().any(|name| line.contains(&format!("resource=\"{name}\"")))
    };
    let count = |line: &str| line.rsplit(' ').next().context("a value")?.parse::<f64>().context(line.to_owned());
    metrics.lines().filter(is_list).map(count).sum()
}

/// Lists all objects of a kind in pages, and up to date, like the watches of the program. Returns the number of objects
/// and of pages.
async fn list<K>(api: Api<K>) -> Result<(usize, usize)>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (mut found, mut pages, mut parameters) = (0, 0, ListParams::default().limit(PAGE_SIZE));
    loop {
        let page = api.list(&parameters).await?;
        (found, pages) = (found + page.items.len(), pages + 1);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok((found, pages)),
        }
    }
}

#[test]
fn leader_lists_come_from_watch_cache() {
    isolated(|| async {
        let plane = ControlPlane::builder().start().await?;
        let namespaces = Api::<Namespace>::all(plane.client());
        for number in 0..NAMESPACES {
            let metadata = ObjectMeta { name: Some(format!("team-{number}")), ..ObjectMeta::default() };
            namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await?;
        }
        let before = etcd_list_count(&plane).await?;
        ensure!(before > 0.0, "the caches themselves were filled from etcd");
        let (found, pages) = list(Api::<PartialObjectMeta<Namespace>>::all(plane.client())).await?;
        ensure!(found >= NAMESPACES && pages > 2, "{found} namespaces in {pages} pages");
        list(Api::<PartialObjectMeta<Pod>>::all(plane.client())).await?;
        let after = etcd_list_count(&plane).await?;
        ensure!(after <= before, "etcd served {} lists", after - before);
        Ok(())
    });
}
