//! Reads profiles and their revisions from the API server: all of them once, page by page, then by watches.

use futures::stream::{BoxStream, StreamExt};
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::runtime::watcher::watcher;
use kube::{Api, Client, Resource};
use pillion_api::opt_in::OptIn;
use pillion_api::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
use pillion_engine::profile::ProfileName;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Profile, RevisionObject, Seen};
use crate::client::config;
use crate::informer::cache_metrics::{CacheMetrics, Kind};
use crate::informer::change::Change;
use crate::informer::profiles::{self, StoredProfile};
use crate::informer::served::read_status;
use crate::informer::watch::{self, PROFILES_A_PAGE, changes};

/// The changes from all watches.
pub(in crate::revisions) fn seen(
    client: &Client,
    opt_in: &OptIn,
) -> impl futures::Stream<Item = Seen> + Send + Unpin + use<> {
    let metrics = CacheMetrics::default();
    futures::stream::select_all([
        profiles_of::<ClusterInjectionProfile>(client, Kind::ClusterProfiles, &metrics, true),
        profiles_of::<InjectionProfile>(client, Kind::Profiles, &metrics, false),
        revisions_of::<ClusterProfileRevision>(client, Kind::ClusterProfiles, &metrics, true),
        revisions_of::<ProfileRevision>(client, Kind::Profiles, &metrics, false),
        watch::namespaces_of(client, &metrics, opt_in).map(Seen::Namespace).boxed(),
    ])
}

fn profiles_of<K: Resource<DynamicType = ()>>(
    client: &Client,
    kind: Kind,
    metrics: &CacheMetrics,
    is_cluster: bool,
) -> BoxStream<'static, Seen> {
    let key = |object: DynamicObject| profiles::name(object.metadata);
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let changes = changes(watcher(api, config(PROFILES_A_PAGE)), kind, metrics.clone(), read, key);
    changes.map(move |change| Seen::Profile(change, is_cluster)).boxed()
}

fn read(mut object: DynamicObject) -> Box<(Profile, StoredProfile)> {
    let spec = object.data.get_mut("spec").map_or(Value::Null, Value::take);
    let status = object.data.get_mut("status").map_or(Value::Null, Value::take);
    let profile = Profile::new(&object.metadata, read_status(status));
    Box::new((profile, StoredProfile::new(object.metadata, spec)))
}

/// Reads a namespaced profile again; `None` if it is gone.
pub(in crate::revisions) async fn read_again(client: &Client, name: &ProfileName) -> kube::Result<Option<Seen>> {
    let resource = ApiResource::erase::<InjectionProfile>(&());
    let namespace = name.namespace.as_deref().unwrap_or_default();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    Ok(api.get_opt(&name.name).await?.map(|object| Seen::Profile(Change::Applied(read(object)), false)))
}

/// Requests only the metadata of revisions.
fn revisions_of<K>(client: &Client, kind: Kind, metrics: &CacheMetrics, is_cluster: bool) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let read = |object: PartialObjectMeta<K>| RevisionObject::new(object.metadata);
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let changes = changes(watcher(api, config(PROFILES_A_PAGE)), kind, metrics.clone(), read, read);
    changes.map(move |change| Seen::Revision(change, is_cluster)).boxed()
}

/// Reads all objects of a kind, page by page. Objects that this build cannot read are skipped.
pub(super) async fn each<K, T>(client: &Client, take: &mut impl FnMut(T)) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
    T: DeserializeOwned,
{
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let mut parameters = ListParams::default().limit(PROFILES_A_PAGE);
    loop {
        let page = api.list(&parameters).await?;
        for object in page.items {
            if let Ok(read) = serde_json::to_value(object).and_then(serde_json::from_value) {
                take(read);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}
