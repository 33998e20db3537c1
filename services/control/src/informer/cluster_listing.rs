//! Lists profiles and namespaces once, without a watch, and builds the snapshot that replicas would serve. Commands use
//! it.
//!
//! If a kind cannot be read, [`ClusterListing::unread`] names it, and the listing has the other kinds. For example, the
//! permissions of a tenant may include its namespace and its own profiles, but not the cluster profiles.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Namespace as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Resource};
use pillion_api::kinds::ProfileStatus;
use pillion_api::opt_in::OptIn;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_engine::profile::ProfileName;
use pillion_engine::snapshot::Snapshot;
use serde_json::Value;

use crate::client::{chain, lists};
use crate::informer::fetch::{get, unavailable_revision};
use crate::informer::index::{Index, Update};
use crate::informer::namespaces;
use crate::informer::objects::{self, Change, StoredProfile, read_status};
use crate::informer::published::{Fetched, RevisionKey};
use crate::informer::text::Broken;

/// Maximum number of rounds in which revisions are fetched. After each unusable revision, another one may be needed.
const ROUNDS: usize = 64;
/// Maximum number of concurrent fetches of revisions. A cluster may have thousands of revisions.
const FETCHES: usize = 16;

/// Profiles and namespaces as listed.
#[derive(Debug)]
pub struct ClusterListing {
    /// The snapshot that replicas would serve with the listed objects.
    pub snapshot: Arc<Snapshot>,
    /// Whether the snapshot has published revisions. If no revision is published, it has the stored profiles.
    pub serves_revisions: bool,
    /// The stored profiles.
    pub stored: Vec<Stored>,
    /// Invalid profiles or, if the snapshot has published revisions, those revisions that cannot be used.
    pub broken: Vec<Broken>,
    /// The parts that could not be read, with the API server's message.
    pub unread: Vec<(Part, String)>,
}

/// A part of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Cluster profiles.
    ClusterProfiles,
    /// Profiles of the namespace, or of all namespaces.
    NamespaceProfiles,
    /// The namespace, or all namespaces.
    Namespaces,
}

impl Part {
    /// Returns the name of the part in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterProfiles => "cluster profiles",
            Self::NamespaceProfiles => "profiles of the namespace",
            Self::Namespaces => "namespaces",
        }
    }
}

/// A stored profile.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The profile's name.
    pub name: ProfileName,
    /// The profile's metadata.
    pub metadata: ObjectMeta,
    /// The status that the controller wrote.
    pub status: ProfileStatus,
    spec: Value,
}

/// Reads `namespace` with all profiles that may match in it. `None` reads all namespaces and profiles.
pub async fn read(client: &Client, namespace: Option<&str>, opt_in: &OptIn) -> ClusterListing {
    let (stored, mut unread) = profiles(client, namespace).await;
    let namespaces = Api::<Object>::all(client.clone());
    let found = match namespace {
        Some(name) => namespaces.get_metadata_opt(name).await.map(|found| found.into_iter().collect()),
        None => lists::all_metadata(&namespaces, &ListParams::default()).await,
    };
    let found = found.unwrap_or_else(|error| {
        unread.push((Part::Namespaces, error_message(&error)));
        Vec::new()
    });
    let found: Vec<_> = found.into_iter().map(|object| namespaces::read(object.metadata, opt_in)).collect();

    let serves_revisions = stored.iter().any(|stored| stored.status.revision.is_some());
    let mut index = if serves_revisions { Index::default().serves_revisions() } else { Index::default() };
    let mut broken = Vec::new();
    let mut apply = |index: &mut Index, update| broken.extend(index.update(update));
    for is_cluster in [true, false] {
        let of_kind = stored.iter().filter(|stored| stored.name.namespace.is_none() == is_cluster);
        for change in list(of_kind.map(|stored| stored.to_profile(!serves_revisions))) {
            apply(&mut index, Update::of_profiles(change, is_cluster));
        }
    }
    for change in list(found.into_iter()) {
        apply(&mut index, Update::Namespace(change));
    }
    for _ in 0..ROUNDS {
        let unfetched = index.take_unfetched();
        if unfetched.is_empty() {
            break;
        }
        let fetching = stream::iter(unfetched).map(|key| async move { (fetch(client, &key).await, key) });
        let mut fetching = fetching.buffer_unordered(FETCHES);
        while let Some((fetched, key)) = fetching.next().await {
            apply(&mut index, Update::Fetched(key, fetched));
        }
    }
    let snapshot = index.publish().unwrap_or_default();
    ClusterListing { snapshot, serves_revisions, stored, broken, unread }
}

/// Lists the cluster profiles and the profiles of `namespace`. `None` lists the profiles of all namespaces. Also
/// returns the kinds that could not be read, with the API server's message.
pub async fn profiles(client: &Client, namespace: Option<&str>) -> (Vec<Stored>, Vec<(Part, String)>) {
    let mut unread = Vec::new();
    let mut stored = Vec::new();
    let cluster = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let own = ApiResource::erase::<InjectionProfile>(&());
    let own = match namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &own),
        None => Api::all_with(client.clone(), &own),
    };
    for (part, api) in [(Part::ClusterProfiles, cluster), (Part::NamespaceProfiles, own)] {
        match lists::all(&api, &ListParams::default()).await {
            Ok(found) => stored.extend(found.into_iter().map(Stored::new)),
            Err(error) => unread.push((part, error_message(&error))),
        }
    }
    (stored, unread)
}

/// Returns the API server's own message, or the error with its causes if there is none.
fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => chain(error),
    }
}

async fn fetch(client: &Client, key: &RevisionKey) -> Fetched {
    match get(client.clone(), key).await {
        Ok(fetched) => fetched,
        Err(error) => unavailable_revision(key, &chain(&error)),
    }
}

/// Returns the changes that a watch would report for a complete list of these objects.
fn list<K, T>(objects: impl Iterator<Item = T>) -> impl Iterator<Item = Change<K, T>> {
    std::iter::once(Change::Restarted).chain(objects.map(Change::Listed)).chain([Change::ListComplete])
}

impl Stored {
    /// Reads a profile as the API server returns it.
    #[must_use]
    pub fn new(mut object: DynamicObject) -> Self {
        let mut part = |name: &str| object.data.get_mut(name).map(Value::take).unwrap_or_default();
        let (spec, status) = (part("spec"), read_status(part("status")));
        Self { name: objects::name(object.metadata.clone()), metadata: object.metadata, status, spec }
    }

    /// Returns the profile as a watch of the informer delivers it. `with_text`: includes the spec.
    fn to_profile(&self, with_text: bool) -> StoredProfile {
        let spec = if with_text { self.spec.clone() } else { Value::Null };
        StoredProfile::new(self.metadata.clone(), spec).with_status(self.status.clone())
    }

    /// Returns the profile's `spec`, as stored.
    #[must_use]
    pub const fn spec(&self) -> &Value {
        &self.spec
    }

    /// Returns the profile's kind, such as `InjectionProfile`.
    #[must_use]
    pub fn kind(&self) -> String {
        match self.name.namespace {
            Some(_) => InjectionProfile::kind(&()).into_owned(),
            None => ClusterInjectionProfile::kind(&()).into_owned(),
        }
    }

    /// Returns whether a condition of the profile's status is true, its reason and its message. `None` if the status
    /// does not have the condition.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<(bool, &str, &str)> {
        let found = self.status.conditions.iter().find(|condition| condition.type_ == type_)?;
        Some((found.status == "True", &found.reason, &found.message))
    }
}
