//! Looks up the objects that reviews need besides the namespace: the pod's service account, its owners, and objects
//! that profiles declare.
//!
//! This module opens no watch: the service accounts, Jobs and workloads of a large cluster would take more memory than
//! everything else, and profiles need few of them. An object is read when the first pod needs it, and by default cached
//! for half a minute, so a change may be seen half a minute late. The pods of a workload are created together and share
//! a service account, so they need only one request. Only the metadata of service accounts and owners is read.
//!
//! A pod waits for the result, so lookups are bounded:
//!
//! - All lookups of a review share one deadline.
//! - There is one request for an object at a time.
//! - Few requests run concurrently, and fewer for one tenant. Each client has a rate limit.
//! - The cache has a memory limit.
//!
//! "Not found" is cached for a short time, and a failure for an even shorter time. [`crate::informer::lookup_cache`]
//! refreshes objects in use before they expire, and serves stale ones while the API server is unavailable.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use pillion_api::names::is_dns_name;
use pillion_api::selector::{LabelSelector, Operator};
use pillion_engine::lookup::{self, Answer, LookedUp, OwnerChain, OwnerReference, Query, Wanted};
use pillion_json::OwnedTape;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::bounded;
use crate::guard::guarded;
use crate::informer::lookup_cache::{
    self, ANSWER_LIMIT, Bounds, Caller, FetchError, LookupCache, LookupKind, LookupMetrics, LookupResult,
    MAX_STALE_DURATION, request_timeout,
};
use crate::informer::namespaces::LAST_APPLIED;

/// Approximate bytes of a cache entry without its object.
const ENTRY_BYTES: usize = 512;
/// Maximum bytes of a response: an object or a list with its `managedFields`, which are not kept. A larger response is
/// an error.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

/// Limits for the lookups of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupSettings {
    /// Timeout for all lookups of one review together. The caller's own timeout is longer, so that the cause of each
    /// failure is known.
    pub answer_limit: Duration,
    /// How long an object is fresh. While the API server answers requests, a change of the object is seen after this
    /// time at the latest.
    pub fresh_for: Duration,
    /// The maximum age of an entry that is served while the API server is unavailable.
    pub stale_for: Duration,
    /// Maximum size of the cache in bytes.
    pub memory: u64,
    /// Maximum requests per second that the reviews of one client address may cause. All API servers may share one
    /// address.
    pub a_second_per_client: u32,
}

impl Default for LookupSettings {
    /// Waits up to 250 ms for all lookups. Caches objects in 16 MiB, fresh for 30 s and stale for up to one hour.
    /// Permits 200 requests per second for each client address.
    fn default() -> Self {
        Self {
            answer_limit: ANSWER_LIMIT,
            fresh_for: Duration::from_secs(30),
            stale_for: MAX_STALE_DURATION,
            memory: 16 * 1024 * 1024,
            a_second_per_client: 200,
        }
    }
}

impl From<LookupSettings> for Bounds {
    fn from(settings: LookupSettings) -> Self {
        let LookupSettings { answer_limit, fresh_for, stale_for, memory, a_second_per_client } = settings;
        Self {
            request_timeout: request_timeout(answer_limit),
            concurrent: 16,
            a_second: None,
            a_second_per_client,
            capacity: memory,
            found_for: fresh_for,
            missing_for: Duration::from_secs(5).min(fresh_for),
            // During this time, other lookups of the object use a stale entry or fail at once, instead of waiting for a
            // timeout.
            failed_for: Duration::from_secs(1),
            stale_for,
            wanted: "an object that a profile reads",
        }
    }
}

/// The API server's response as JSON: an object or a list of objects. `None` if the object does not exist.
pub type Fetched = lookup_cache::Fetched<Arc<OwnedTape>>;
/// The result of a lookup.
type ObjectAnswer = Answer<Arc<OwnedTape>>;

/// Counts lookups, as `pillion_lookups`.
pub type Metrics = LookupMetrics<LookupTarget>;

/// The target of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupTarget {
    /// A pod's service account.
    ServiceAccount,
    /// An owner of a pod.
    Owner,
    /// One object, or several, that a profile declares.
    Object,
}

impl LookupKind for LookupTarget {
    const NAME: &'static str = "pillion_lookups";
    const HELP: &'static str = "Lookups of objects that profiles read, by kind of the object and result";
    const ALL: &'static [Self] = &[Self::ServiceAccount, Self::Owner, Self::Object];

    fn label(self) -> Option<&'static str> {
        Some(match self {
            Self::ServiceAccount => "service_account",
            Self::Owner => "owner",
            Self::Object => "object",
        })
    }
}

/// Looks up objects for reviews. Clones share the cache and the limits.
#[derive(Clone)]
pub struct Lookups {
    cache: LookupCache<Key, Arc<OwnedTape>, LookupTarget>,
    answer_limit: Duration,
}

impl fmt::Debug for Lookups {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lookups").field("cached", &self.cache.len()).finish_non_exhaustive()
    }
}

impl Lookups {
    /// Looks up objects in the API server, with default settings.
    #[must_use]
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self::with_settings(client, metrics, LookupSettings::default())
    }

    /// Looks up objects in the API server, with these settings.
    #[must_use]
    pub fn with_settings(client: Client, metrics: Metrics, settings: LookupSettings) -> Self {
        let client = bounded(client, MAX_RESPONSE_BYTES);
        Self::with_fetcher(move |key| key.fetch(client.clone()).boxed(), metrics, settings)
    }

    /// Test constructor with a custom fetcher.
    #[must_use]
    pub fn by(fetch: impl Fn(Key) -> BoxFuture<'static, Fetched> + Send + Sync + 'static, metrics: Metrics) -> Self {
        Self::with_fetcher(fetch, metrics, LookupSettings::default())
    }

    fn with_fetcher(
        fetch: impl Fn(Key) -> BoxFuture<'static, Fetched> + Send + Sync + 'static,
        metrics: Metrics,
        settings: LookupSettings,
    ) -> Self {
        let weight = |key: &Key, object: Option<&Arc<OwnedTape>>| {
            ENTRY_BYTES + key.bytes() + object.map_or(0, |object| object.memory())
        };
        let answer_limit = settings.answer_limit;
        Self { cache: LookupCache::new(fetch, weight, settings.into(), metrics), answer_limit }
    }

    /// Looks up everything that a review needs, in at most `answer_limit`. Each result has its own error.
    pub async fn get(&self, wanted: Wanted) -> LookedUp {
        self.look_up_all(wanted, None).await
    }

    /// Like [`Self::get`], for a review that `client` sent.
    pub async fn get_for(&self, wanted: Wanted, client: IpAddr) -> LookedUp {
        self.look_up_all(wanted, Some(client)).await
    }

    async fn look_up_all(&self, wanted: Wanted, client: Option<IpAddr>) -> LookedUp {
        let Wanted { namespace, service_account, owners, objects } = wanted;
        let own = Caller::own(Instant::now() + self.answer_limit);
        let caller = Caller { client, tenant: Some(&namespace), ..own };
        let account = async {
            let Some(name) = service_account else { return Answer::NotRequested };
            self.look_up(LookupTarget::ServiceAccount, Key::service_account(&namespace, &name), caller).await
        };
        let owners = async {
            let Some(chain) = owners else { return Answer::NotRequested };
            self.follow(chain, &namespace, caller).await
        };
        let objects = objects.into_iter().map(|query: Query| async {
            let found = self.look_up(LookupTarget::Object, Key::declared(&query), caller).await;
            (query, found)
        });
        let (service_account, owners, objects) = futures::join!(account, owners, join_all(objects));
        LookedUp { service_account, owners, objects, cluster: None }
    }

    /// Looks up the owners of a chain one after the other, since each owner names the next one.
    async fn follow(&self, mut chain: OwnerChain, namespace: &str, caller: Caller<'_>) -> Answer<OwnerChain> {
        while let Some(key) = chain.next().and_then(|next| Key::owner(namespace, next)) {
            match self.look_up(LookupTarget::Owner, Some(key), caller).await {
                Answer::Found(object) => {
                    if guarded(&"the owner of a pod", || chain.found(Some(object))).is_err() {
                        return Answer::Failed("it cannot be read".into());
                    }
                }
                Answer::Missing => chain.found(None),
                Answer::Failed(why) => return Answer::Failed(why),
                Answer::NotRequested => return Answer::NotRequested,
            }
        }
        Answer::Found(chain)
    }

    /// Looks up one object, or the objects of one query. Without a key, a name is invalid or the query is for Secrets,
    /// so nothing can be found.
    async fn look_up(&self, target: LookupTarget, key: Option<Key>, caller: Caller<'_>) -> ObjectAnswer {
        let Some(key) = key else {
            self.cache.count(target, LookupResult::Invalid);
            return Answer::Missing;
        };
        self.cache.get(target, key, caller).await
    }
}

/// Maximum bytes of an object or a list, as JSON.
const OBJECT_BYTES: usize = 256 * 1024;
/// Maximum number of objects in a list.
const LIST_ITEMS: u32 = 200;

/// The target of a request. Equal keys share a cache entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version.
    pub version: Box<str>,
    /// Resource name, in the plural.
    pub resource: Box<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// The requested objects.
    pub which: KeyObjects,
}

/// Selects the objects of a request, and whether only their metadata is requested.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyObjects {
    /// The metadata of the object with this name.
    Metadata(Box<str>),
    /// The object with this name.
    Named(Box<str>),
    /// All objects that a label selector matches. The string is the selector in its URL form.
    Selected(Box<str>),
}

impl Key {
    /// Creates the key of a service account; `None` if a name is invalid.
    pub(super) fn service_account(namespace: &str, name: &str) -> Option<Self> {
        Self::metadata("", "serviceaccounts", namespace, name)
    }

    /// Creates the key of an owner; `None` if Pillion does not look up its kind or a name is invalid.
    pub(super) fn owner(namespace: &str, owner: &OwnerReference) -> Option<Self> {
        Self::metadata(owner.group(), owner.resource()?, namespace, &owner.name)
    }

    /// Creates a key for metadata; `None` if a name is invalid. The key has the version v1, whatever version a
    /// reference has: all kinds whose metadata Pillion requests have this version.
    fn metadata(group: &str, resource: &str, namespace: &str, name: &str) -> Option<Self> {
        (is_dns_name(namespace) && is_dns_name(name)).then(|| Self {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            which: KeyObjects::Metadata(name.into()),
        })
    }

    /// Creates the key for objects that a profile declares; `None` if a name is invalid or the query is for Secrets.
    /// The engine has already checked both.
    pub(super) fn declared(query: &Query) -> Option<Self> {
        let (name, which) = match &query.which {
            lookup::ObjectSelection::Named(name) => (Some(name), KeyObjects::Named(name.clone())),
            lookup::ObjectSelection::Selected(selector) => (None, KeyObjects::Selected(selector_text(selector).into())),
        };
        let is_secret = query.group.is_empty() && &*query.resource == "secrets";
        let parts = [Some(&query.version), Some(&query.resource), name];
        let may_be_empty = [&query.group, &query.namespace];
        let is_valid = parts.into_iter().flatten().all(|part| is_dns_name(part))
            && may_be_empty.into_iter().all(|part| part.is_empty() || is_dns_name(part));
        (is_valid && !is_secret).then(|| Self {
            group: query.group.clone(),
            version: query.version.clone(),
            resource: query.resource.clone(),
            namespace: query.namespace.clone(),
            which,
        })
    }

    /// Returns the total length of the key's strings in bytes.
    pub(super) fn bytes(&self) -> usize {
        let (KeyObjects::Metadata(text) | KeyObjects::Named(text) | KeyObjects::Selected(text)) = &self.which;
        [&self.group, &self.version, &self.resource, &self.namespace, text].into_iter().map(|text| text.len()).sum()
    }

    /// Requests the objects from the API server.
    pub(super) async fn fetch(self, client: Client) -> Fetched {
        let api_version =
            if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) };
        let resource = ApiResource {
            group: self.group.into(),
            version: self.version.into(),
            api_version,
            kind: String::new(),
            plural: self.resource.into(),
        };
        let api: Api<DynamicObject> = if self.namespace.is_empty() {
            Api::all_with(client, &resource)
        } else {
            Api::namespaced_with(client, &self.namespace, &resource)
        };
        let text = match &self.which {
            KeyObjects::Metadata(name) => {
                let Some(object) = api.get_metadata_opt(name).await? else { return Ok(None) };
                let annotations = object.annotations().iter().filter(|(key, _)| *key != LAST_APPLIED);
                let metadata = json!({
                    "name": object.metadata.name,
                    "namespace": object.metadata.namespace,
                    "uid": object.metadata.uid,
                    "labels": object.labels(),
                    "annotations": annotations.collect::<std::collections::BTreeMap<_, _>>(),
                    "ownerReferences": object.owner_references(),
                });
                json!({"metadata": metadata}).to_string()
            }
            KeyObjects::Named(name) => {
                let Some(object) = api.get_opt(name).await? else { return Ok(None) };
                serde_json::to_string(&without_managed_fields(object)?)?
            }
            KeyObjects::Selected(selector) => {
                let list = api.list(&ListParams::default().labels(selector).limit(LIST_ITEMS)).await?;
                if list.metadata.continue_.is_some_and(|rest| !rest.is_empty()) {
                    return Err(FetchError::refused(format!("more than {LIST_ITEMS} objects match")));
                }
                let items = list.items.into_iter().map(without_managed_fields).collect::<Result<Vec<_>, _>>()?;
                serde_json::to_string(&items)?
            }
        };
        if text.len() > OBJECT_BYTES {
            let why = format!("the response has {} bytes, and the limit is {OBJECT_BYTES}", text.len());
            return Err(FetchError::refused(why));
        }
        let read = guarded(&"an object that was looked up", || OwnedTape::parse(text)).map_err(FetchError::refused)?;
        Ok(Some(Arc::new(read.map_err(FetchError::refused)?)))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (KeyObjects::Metadata(text) | KeyObjects::Named(text) | KeyObjects::Selected(text)) = &self.which;
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(formatter, "{}{dot}{} {}/{text}", self.resource, self.group, self.namespace)
    }
}

fn without_managed_fields(mut object: DynamicObject) -> Result<Value, serde_json::Error> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object)
}

/// Returns the selector in its URL form, such as `a=b,c in (d,e),!f`.
fn selector_text(selector: &LabelSelector) -> String {
    let mut requirements: Vec<String> = Vec::new();
    requirements.extend(selector.match_labels.iter().map(|(key, value)| format!("{key}={value}")));
    requirements.extend(selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    }));
    requirements.join(",")
}

#[cfg(test)]
mod tests;
