//! Watches the objects of the rotation and starts a turn when one of them changes. A turn reads everything again, so
//! only the fact of a change matters, and a broken watch is harmless: a turn also starts at regular intervals. The task
//! that corrects drift watches the webhook configurations.

use std::fmt::Debug;
use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt, select_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::asked::ASK_ANNOTATION;
use crate::client::watch_object::{self, Seen};
use crate::leader::LeaderContext;

/// Reports changes. Dropping it ends the watches.
#[derive(Debug)]
pub(super) struct Wake {
    woken: Arc<Notify>,
    _watching: AbortOnDropHandle<()>,
}

impl Wake {
    pub(super) fn new(leading: &LeaderContext) -> Self {
        let woken = Arc::new(Notify::new());
        let mut changes = select_all(changes(leading));
        let tell = Arc::clone(&woken);
        let watching = async move {
            while changes.next().await.is_some() {
                tell.notify_one();
            }
        };
        Self { woken, _watching: AbortOnDropHandle::new(tokio::spawn(watching)) }
    }

    /// Waits for a change since the last call.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

fn changes(leading: &LeaderContext) -> Vec<BoxStream<'static, ()>> {
    let LeaderContext { client, release, .. } = leading;
    let secret = || Api::<PartialObjectMeta<Secret>>::namespaced(client.clone(), release.namespace());
    let lease = Api::<PartialObjectMeta<Lease>>::namespaced(client.clone(), release.namespace());
    vec![
        of(secret(), "the rotation's record", &release.authority_secret(), ResourceExt::resource_version),
        of(secret(), "the serving certificate", &release.serving_secret(), ResourceExt::resource_version),
        // The Lease is renewed every few seconds, so only its annotation counts.
        of(lease, "the wish for a rotation", &release.lease(), |lease| {
            lease.annotations().get(ASK_ANNOTATION).cloned()
        }),
    ]
}

/// Changes of one object, limited to the value that `what` reads from it.
fn of<K>(
    api: Api<PartialObjectMeta<K>>,
    called: &'static str,
    name: &str,
    what: fn(&PartialObjectMeta<K>) -> Option<String>,
) -> BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut last = None;
    let changed = watch_object::watch(api, called, name).filter_map(move |seen| {
        let changed = match seen {
            Seen::Is(object) => {
                let now = object.as_deref().and_then(what);
                std::mem::replace(&mut last, now.clone()) != now
            }
            Seen::Forbidden => false,
        };
        std::future::ready(changed.then_some(()))
    });
    changed.boxed()
}
