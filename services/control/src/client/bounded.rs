//! Wraps a client so that it reads a response up to a maximum size.
//!
//! kube's client reads a whole response into memory before its size is known, and users decide how large a list is. 200
//! objects of 1 MiB each, read a few times in parallel, would exceed a replica's memory.

use http_body_util::Limited;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

/// Returns the client with the limit: a larger response fails with [`http_body_util::LengthLimitError`].
pub(crate) fn bounded(client: Client, bytes: usize) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move { Ok::<_, kube::Error>(client.send(request).await?.map(|body| Limited::new(body, bytes))) }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::ListParams;

    use super::*;
    use crate::informer::lookup_cache::FetchError;

    /// Lists from a fake API server whose response has this many bytes, with a limit of 1,000.
    async fn list(bytes: usize) -> kube::Result<usize> {
        let answer = service_fn(move |_: http::Request<Body>| async move {
            let mut text = String::from(r#"{"apiVersion":"v1","kind":"ConfigMapList","metadata":{},"items":[]"#);
            text.extend(std::iter::repeat_n(' ', bytes - text.len() - 1));
            text.push('}');
            Ok::<_, kube::Error>(http::Response::new(Body::from(text.into_bytes())))
        });
        let client = bounded(Client::new(answer, "default"), 1_000);
        Api::<ConfigMap>::all(client).list(&ListParams::default()).await.map(|list| list.items.len())
    }

    #[tokio::test]
    async fn too_large_response_is_refused() {
        assert_eq!(list(1_000).await.unwrap(), 0);
        let error = FetchError::from(list(1_001).await.unwrap_err());
        assert!(matches!(error, FetchError::Refused(_)), "{error:?}: a retry does not help");
    }
}
