//! Fetches published revisions by name.
//!
//! A revision never changes, so it is fetched once and not watched. A few revisions are fetched in parallel. While the
//! API server is unavailable, a fetch is retried after a growing pause, and does not block other fetches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use http_body_util::LengthLimitError;
use kube::{Api, Client};
use pillion_api::revision::{MAX_TEXT_BYTES, object_name};
use pillion_api::{ClusterProfileRevision, ProfileRevision, RevisionSpec};
use pillion_engine::profile::{Diagnostic, Part, ProfileSource};

use crate::client::bounded;
use crate::guard;
use crate::informer::published::{Fetched, RevisionKey};

/// Maximum number of concurrent fetches.
const CONCURRENT_FETCHES: usize = 8;

/// Maximum bytes of a response: at most two specs as JSON strings, and metadata. The API server escapes some
/// characters, so a spec in a response may be seven times as long.
const MAX_RESPONSE_BYTES: usize = 8 * 1024 * 1024;
const _: () = assert!(MAX_RESPONSE_BYTES > 2 * 7 * MAX_TEXT_BYTES);

/// The pause before the first retry. It doubles with each further retry.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// After a pause of at least this length, the caller no longer waits for the revision.
const MAX_WAIT_PAUSE: Duration = Duration::from_millis(1_600);

/// The result of a fetch, or the error of a request that may succeed later.
pub type FetchResult = Result<Fetched, kube::Error>;

/// Running and waiting fetches.
pub(crate) struct Fetches {
    client: Option<Client>,
    queue: VecDeque<(RevisionKey, Duration)>,
    /// Fetches that are retried after a pause.
    paused: FuturesUnordered<BoxFuture<'static, (RevisionKey, Duration)>>,
    running: FuturesUnordered<BoxFuture<'static, (RevisionKey, Duration, FetchResult)>>,
}

impl Fetches {
    /// Creates an empty queue. Without a client, nothing is fetched.
    pub(crate) fn new(client: Option<Client>) -> Self {
        let client = client.map(|client| bounded(client, MAX_RESPONSE_BYTES));
        Self { client, queue: VecDeque::new(), paused: FuturesUnordered::new(), running: FuturesUnordered::new() }
    }

    /// Queues fetches of these revisions.
    pub(crate) fn queue(&mut self, keys: impl IntoIterator<Item = RevisionKey>) {
        self.queue.extend(keys.into_iter().map(|key| (key, Duration::ZERO)));
        self.start();
    }

    /// Queues a retry after a pause. The pause is twice as long as `paused`, the pause before the last attempt, but at
    /// least [`FIRST_PAUSE`] and at most [`LONGEST_PAUSE`].
    pub(crate) fn queue_retry(&mut self, key: RevisionKey, paused: Duration) {
        let pause = (paused * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.paused.push(tokio::time::sleep(pause).map(move |()| (key, pause)).boxed());
    }

    /// Waits for the next finished fetch, and returns it with the pause before the fetch. Waits forever while no fetch
    /// runs or is paused.
    pub(crate) async fn next(&mut self) -> (RevisionKey, Duration, FetchResult) {
        loop {
            // Cancel-safe: unfinished fetches remain in their collections, and `select!` is the only await.
            tokio::select! {
                Some(waited) = self.paused.next() => {
                    self.queue.push_back(waited);
                    self.start();
                }
                Some(done) = self.running.next() => {
                    self.start();
                    return done;
                }
                else => std::future::pending().await,
            }
        }
    }

    fn start(&mut self) {
        let Some(client) = &self.client else { return };
        while self.running.len() < CONCURRENT_FETCHES
            && let Some((key, pause)) = self.queue.pop_front()
        {
            let client = client.clone();
            self.running.push(
                async move {
                    let result = get(client, &key).await;
                    (key, pause, result)
                }
                .boxed(),
            );
        }
    }
}

/// Whether the last pause was so long that the caller should no longer wait for the revision.
pub(crate) fn exceeds_wait(paused: Duration) -> bool {
    paused >= MAX_WAIT_PAUSE
}

/// Returns the result for a revision that cannot be read at present. `reason` becomes part of the message.
pub(crate) fn unavailable_revision(key: &RevisionKey, reason: &str) -> Fetched {
    let name = object_name(&key.profile.name, &key.revision);
    Fetched::Missing(vec![diagnostic(
        format!("the published revision {name} cannot be read: {reason}"),
        "the read is retried",
    )])
}

fn diagnostic(message: String, help: &str) -> Diagnostic {
    Diagnostic { path: "status.revision".to_owned(), message, help: Some(help.to_owned()), part: Part::Value }
}

/// Returns why a retry cannot help; `None` if it may help.
fn permanent_error(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Service(cause) if cause.is::<LengthLimitError>() => {
            Some(format!("its object is larger than {MAX_RESPONSE_BYTES} bytes"))
        }
        // The excluded status codes are temporary: permissions may be granted, and load decreases.
        kube::Error::Api(status)
            if ![401, 403, 408, 409, 429].contains(&status.code) && (400..500).contains(&status.code) =>
        {
            Some(status.message.clone())
        }
        _ => None,
    }
}

/// Fetches and compiles a revision.
///
/// # Errors
/// The API server is unavailable, or the permission is missing. A later attempt may succeed.
pub async fn get(client: Client, key: &RevisionKey) -> FetchResult {
    let name = object_name(&key.profile.name, &key.revision);
    let found = if let Some(namespace) = &key.profile.namespace {
        let found = Api::<ProfileRevision>::namespaced(client, namespace).get_opt(&name).await;
        found.map(|found| found.map(|object| object.spec))
    } else {
        let found = Api::<ClusterProfileRevision>::all(client).get_opt(&name).await;
        found.map(|found| found.map(|object| object.spec))
    };
    let found: Option<RevisionSpec> = match found {
        // The revision exists, but this build cannot read it.
        Err(kube::Error::SerdeError(_)) => None,
        Err(error) => match permanent_error(&error) {
            Some(reason) => {
                let message = format!("the published revision {name} cannot be read: {reason}");
                return Ok(Fetched::Unusable(vec![diagnostic(
                    message,
                    "make the profile's spec smaller, or roll back to another revision",
                )]));
            }
            None => return Err(error),
        },
        Ok(found) => found,
    };
    let Some(spec) = found.filter(|spec| *spec.revision == *key.revision) else {
        let message = format!("the published revision {name} does not exist, or this build cannot read it");
        return Ok(Fetched::Missing(vec![diagnostic(message, "the controller recreates it if it is missing")]));
    };
    Ok(match guard::compiled(&key.profile, || ProfileSource::Revision(&spec).compile(&key.profile)) {
        Ok(compiled) => Fetched::Compiled(Arc::new(compiled)),
        Err(diagnostics) => Fetched::Unusable(diagnostics),
    })
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use pillion_engine::profile::{ProfileName, compile};
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    fn spec() -> serde_json::Value {
        json!({"activation": "Never", "template": {"metadata": {"labels": {"a": "b"}}}})
    }

    fn key(profile: &str) -> RevisionKey {
        let profile = ProfileName::cluster(profile);
        let compiled = compile(&profile, &serde_json::from_value(spec()).unwrap()).unwrap();
        RevisionKey { revision: compiled.revision().into(), profile }
    }

    /// Fetches from a fake API server that responds by request path.
    fn fetches(answer: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static) -> Fetches {
        let service = service_fn(move |request: http::Request<Body>| {
            let (code, text) = answer(request.uri().path());
            let answer = http::Response::builder().status(code).body(Body::from(text.into_bytes()));
            async move { answer.map_err(|error| kube::Error::Service(error.into())) }
        });
        Fetches::new(Some(Client::new(service, "default")))
    }

    /// Returns a revision object as JSON, with an annotation of about `bytes` bytes of escape sequences.
    fn object(bytes: usize) -> String {
        let (text, revision) = (spec().to_string(), key("big").revision);
        let description = "\\u003c".repeat(bytes / 6);
        format!(
            r#"{{"apiVersion":"pillion.dev/v1alpha1","kind":"ClusterProfileRevision",
                "metadata":{{"name":"big-{revision}","annotations":{{"a":"{description}"}}}},
                "spec":{{"profile":"big","revision":"{revision}","generation":1,"bounds":"Platform","text":{}}}}}"#,
            json!(text)
        )
    }

    #[tokio::test]
    async fn reads_escaped_revision_and_rejects_endless_response() {
        let mut fetches = fetches(|path| {
            (200, object(if path.contains("big-") { 7 * 2 * MAX_TEXT_BYTES } else { 2 * MAX_RESPONSE_BYTES }))
        });
        fetches.queue([key("big"), key("endless")]);
        for _ in 0..2 {
            let (key, _, result) = fetches.next().await;
            match (&*key.profile.name, result.unwrap()) {
                ("big", Fetched::Compiled(_)) => {}
                ("endless", Fetched::Unusable(why)) => assert!(why[0].message.contains("larger"), "{why:?}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn revision_that_panics_is_unusable() {
        let mut fetches = fetches(|_| (200, object(0)));
        for (panics, message) in [(true, "a bug in Pillion"), (false, "")] {
            let fault = panics.then(|| guard::faults::at("big"));
            fetches.queue([key("big")]);
            let (_, _, result) = fetches.next().await;
            drop(fault);
            match result.unwrap() {
                Fetched::Unusable(why) if panics => assert!(why[0].message.contains(message), "{why:?}"),
                Fetched::Compiled(_) if !panics => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn permanent_errors_are_not_retried() {
        let status = |code: u16| {
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no", "code": code})
                .to_string()
        };
        for (code, is_final) in [(400, true), (422, true), (403, false), (429, false), (500, false)] {
            let mut fetches = fetches(move |_| (code, status(code)));
            fetches.queue([key("proxy")]);
            let (_, _, result) = fetches.next().await;
            assert_eq!(matches!(result, Ok(Fetched::Unusable(_))), is_final, "{code}: {result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn paused_fetches_take_no_permit() {
        let mut fetches = fetches(|_| (404, "{}".to_owned()));
        for number in 0..2 * CONCURRENT_FETCHES {
            fetches.queue_retry(key(&format!("gone-{number}")), LONGEST_PAUSE);
        }
        let began = tokio::time::Instant::now();
        fetches.queue([key("new")]);
        assert_eq!(&*fetches.next().await.0.profile.name, "new");
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..2 * CONCURRENT_FETCHES {
            assert!(exceeds_wait(fetches.next().await.1));
        }
        assert!(began.elapsed() >= LONGEST_PAUSE);
    }
}
