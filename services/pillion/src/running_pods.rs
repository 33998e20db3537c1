//! Lists running pods page by page, so that the memory does not depend on their number.

use futures::stream::{self, Stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Result};
use pillion_control::audit::NOT_ENDED;

/// The maximum number of pods in one response of the API server.
const PAGE: u32 = 500;

/// Lists the pods of a namespace, or of all namespaces, except completed and failed ones. `selector` selects them by
/// labels. The stream ends after the first error.
pub(crate) fn pages(
    client: &Client,
    namespace: Option<&str>,
    selector: Option<&str>,
) -> impl Stream<Item = Result<Vec<DynamicObject>>> + Send + 'static {
    let resource = ApiResource::erase::<Pod>(&());
    let pods = match namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut first = ListParams::default().fields(NOT_ENDED).limit(PAGE);
    first.label_selector = selector.map(str::to_owned);
    stream::try_unfold(Some(first), move |page| {
        let pods = pods.clone();
        async move {
            let Some(page) = page else { return Ok(None) };
            let list = pods.list(&page).await?;
            let next = list.metadata.continue_.filter(|token| !token.is_empty());
            Ok(Some((list.items, next.map(|token| page.continue_token(&token)))))
        }
    })
}
