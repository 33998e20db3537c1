//! Wraps a client to record the time of the API server's last response.
//!
//! The client's watcher does not pass on bookmarks, and a watch of objects that seldom change is silent for hours. So
//! the time is recorded where the bytes of responses arrive.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use crate::informer::cache_metrics::Heard;

/// Returns the client with recording added: each chunk of a successful response is recorded.
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The recorded age before and after a request with this response.
    async fn age_after(status: u16, pieces: usize) -> (Duration, Duration) {
        let answer = service_fn(move |_: http::Request<Body>| async move {
            let body = Body::from(vec![b' '; pieces]);
            Ok::<_, kube::Error>(http::Response::builder().status(status).body(body).unwrap())
        });
        let heard = Heard::silent_since(Instant::now().checked_sub(Duration::from_mins(1)).unwrap());
        let client = noting(Client::new(answer, "default"), heard.clone());
        let response = client.send(http::Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        let at_once = heard.age();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), pieces);
        (at_once, heard.age())
    }

    #[tokio::test]
    async fn an_answer_counts_if_it_is_a_success() {
        let (at_once, after) = age_after(200, 3).await;
        assert!(at_once.as_secs() < 30 && after.as_secs() < 30, "{at_once:?}, {after:?}");
        let (at_once, after) = age_after(503, 3).await;
        assert!(at_once.as_secs() >= 60 && after.as_secs() >= 60, "{at_once:?}, {after:?}");
    }
}
