//! A client of which it is known when it was last answered.
//!
//! The client's watcher keeps bookmarks to itself, and a watch of what seldom changes says nothing else for hours. So it is
//! noted where the bytes of answers come in.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use crate::cache_metrics::Heard;

/// The same client; each piece of an answer that is a success is noted.
pub(crate) fn noting(client: Client, heard: Heard) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: http::Request<Body>| {
        let (client, heard) = (client.clone(), heard.clone());
        async move {
            let response = client.send(request).await?;
            let is_success = response.status().is_success();
            if is_success {
                heard.now();
            }
            let note = move |frame| {
                if is_success {
                    heard.now();
                }
                frame
            };
            Ok::<_, kube::Error>(response.map(|body| body.map_frame(note)))
        }
    });
    Client::new(service, namespace)
}
