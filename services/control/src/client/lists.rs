//! Reads lists page by page, to keep the responses small. If a continue token expires, the whole list is read at once.

use std::fmt::Debug;

use kube::Api;
use kube::api::{ListParams, ObjectList};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;

/// Objects per page.
const PAGE_SIZE: u32 = 250;

/// The status code for an expired continue token.
const EXPIRED: u16 = 410;

/// Reads all objects of a list.
///
/// # Errors
/// The API server is unavailable or rejected a request.
pub async fn all<K>(api: &Api<K>, parameters: &ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let list = |parameters: ListParams| {
        let api = api.clone();
        async move { api.list(&parameters).await }
    };
    pages(parameters, list).await
}

/// Reads the metadata of all objects of a list.
///
/// # Errors
/// The API server is unavailable or rejected a request.
pub async fn all_metadata<K>(api: &Api<K>, parameters: &ListParams) -> kube::Result<Vec<PartialObjectMeta<K>>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let list = |parameters: ListParams| {
        let api = api.clone();
        async move { api.list_metadata(&parameters).await }
    };
    pages(parameters, list).await
}

async fn pages<K, F>(parameters: &ListParams, list: impl Fn(ListParams) -> F) -> kube::Result<Vec<K>>
where
    K: Clone,
    F: Future<Output = kube::Result<ObjectList<K>>>,
{
    let mut page = parameters.clone().limit(PAGE_SIZE);
    let mut all = Vec::new();
    loop {
        let listed = match list(page.clone()).await {
            Ok(listed) => listed,
            // The token has expired. Later pages would show a later state than the first ones, so read the whole list
            // at once.
            Err(kube::Error::Api(status)) if status.code == EXPIRED && page.continue_token.is_some() => {
                return list(parameters.clone()).await.map(|listed| listed.items);
            }
            Err(error) => return Err(error),
        };
        all.extend(listed.items);
        page.continue_token = listed.metadata.continue_.filter(|token| !token.is_empty());
        if page.continue_token.is_none() {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;

    /// Reads a list whose pages have these continue tokens, or fail with these status codes. Returns the result, and
    /// the limit and continue token of each request.
    async fn listed(pages: &[Result<&str, u16>]) -> (Result<Vec<Value>, String>, Vec<(Option<u32>, Option<String>)>) {
        let (requests, parameters) = (RefCell::new(Vec::new()), ListParams::default());
        let list = async |parameters: ListParams| {
            let mut requests = requests.borrow_mut();
            requests.push((parameters.limit, parameters.continue_token));
            let next = pages[requests.len() - 1].map_err(|code| {
                kube::Error::Api(Box::new(kube::core::Status { code, ..kube::core::Status::default() }))
            })?;
            let list =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": next}, "items": [requests.len()]});
            Ok(serde_json::from_value(list).unwrap())
        };
        let found = super::pages(&parameters, list).await.map_err(|error| error.to_string());
        (found, requests.into_inner())
    }

    #[tokio::test]
    async fn reads_all_pages_of_list() {
        let (found, requests) = listed(&[Ok("a"), Ok("b"), Ok("")]).await;
        assert_eq!(found.unwrap(), [json!(1), json!(2), json!(3)]);
        let page = |from: Option<&str>| (Some(PAGE_SIZE), from.map(str::to_owned));
        assert_eq!(requests, [page(None), page(Some("a")), page(Some("b"))]);
    }

    #[tokio::test]
    async fn expired_list_is_read_again_as_a_whole() {
        let (found, requests) = listed(&[Ok("a"), Err(EXPIRED), Ok("")]).await;
        assert_eq!(found.unwrap(), [json!(3)]);
        assert_eq!(requests.last(), Some(&(None, None)));
        assert!(listed(&[Ok("a"), Err(403)]).await.0.is_err());
        assert!(listed(&[Err(EXPIRED)]).await.0.is_err(), "the first request has no continue token that can expire");
    }
}
