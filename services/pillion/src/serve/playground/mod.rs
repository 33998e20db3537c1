//! The playground: a page with editors for profiles and an object, which shows the result while the user types. It is
//! only for users of this machine: see [`guard`].
//!
//! * [`assets`]: the page.
//! * [`guard`]: restricts access.
//! * [`mod@run`]: one run: from the texts to problems or results.
//! * [`library`]: example profiles, each with an object that requests it; [`shipped`]: those that are embedded.

mod assets;
mod guard;
mod library;
mod run;
mod shipped;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pillion_control::Release;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::library::Library;
use self::run::Platform;
use crate::args;
use crate::config::WebhookPolicy;

/// The maximum size of a request, in bytes. The API server accepts no object this large.
const MAX_BODY: usize = 2 * 1024 * 1024;
/// The maximum number of concurrent runs. Others wait; a page gives up all but its newest run.
const RUNS: usize = 2;
/// How long a response may take, including the wait. A longer run is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The name of the simulated release, which appears only in explanations.
const RELEASE: &str = "pillion-system/pillion";

/// The state of the playground.
pub(super) struct Playground {
    platform: Platform,
    /// Paths with example profiles, besides the embedded ones.
    paths: Vec<PathBuf>,
    /// The library as read when a page was last opened.
    library: Mutex<Option<Arc<Library>>>,
    runs: Arc<Semaphore>,
}

/// Why a request gets an error.
#[derive(Debug)]
struct Refused(StatusCode, String);

/// The query that selects an example.
#[derive(Deserialize)]
struct Chosen {
    id: String,
}

impl Playground {
    /// Creates a playground with this policy. `paths` are files and folders with example profiles.
    ///
    /// # Errors
    /// The policy's cluster facts nest too deeply.
    pub(super) fn new(policy: WebhookPolicy, paths: Vec<PathBuf>) -> anyhow::Result<Self> {
        let release: Release = args::release(RELEASE).map_err(anyhow::Error::msg)?;
        let platform = Platform::new(policy, release)?;
        Ok(Self { platform, paths, library: Mutex::default(), runs: Arc::new(Semaphore::new(RUNS)) })
    }

    /// Returns the routes.
    pub(super) fn router(self) -> Router {
        let mut router = Router::new();
        for asset in assets::ALL {
            router = router.route(asset.path, get(async move || asset.response()));
        }
        router
            .route("/playground/examples", get(examples))
            .route("/playground/example", get(example))
            .route("/playground/run", post(run))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(middleware::from_fn(guard::guard))
            .with_state(Arc::new(self))
    }

    /// Returns the cached library.
    fn library(&self) -> Arc<Library> {
        let known = self.library.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.unwrap_or_else(|| self.read_library())
    }

    /// Reads the library again.
    fn read_library(&self) -> Arc<Library> {
        let library = Arc::new(Library::read(&self.paths));
        *self.library.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&library));
        library
    }

    /// Runs work on a blocking thread, so that probes are not delayed, once a slot is free. Responds with the result.
    /// The token is cancelled if the work takes too long, or the client disconnects.
    async fn answer<T: Serialize>(
        self: Arc<Self>,
        work: impl FnOnce(&Self, &CancellationToken) -> Result<T, Refused> + Send + 'static,
    ) -> Response {
        let given_up = CancellationToken::new();
        let _gives_up = given_up.clone().drop_guard();
        let worked = async {
            let slot = Arc::clone(&self.runs).acquire_owned().await?;
            let worked = tokio::task::spawn_blocking(move || {
                // Released when the work is done, even if the client no longer waits.
                let _slot = slot;
                work(&self, &given_up).map(|done| serde_json::to_vec(&done))
            });
            Ok::<_, anyhow::Error>(match worked.await? {
                Ok(body) => Ok(body?),
                Err(refused) => Err(refused),
            })
        };
        match tokio::time::timeout(ANSWER_WITHIN, worked).await {
            Ok(Ok(Ok(body))) => (StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response(),
            Ok(Ok(Err(Refused(status, message)))) => refused(status, &message),
            Ok(Err(error)) => {
                tracing::error!(%error, "the playground cannot answer");
                refused(StatusCode::INTERNAL_SERVER_ERROR, "this is a mistake in Pillion; its log says more")
            }
            Err(_) => {
                refused(StatusCode::SERVICE_UNAVAILABLE, "this takes too long: make the profile or the object smaller")
            }
        }
    }
}

async fn examples(State(playground): State<Arc<Playground>>) -> Response {
    playground.answer(|playground, _| Ok(playground.read_library().list())).await
}

async fn example(State(playground): State<Arc<Playground>>, Query(Chosen { id }): Query<Chosen>) -> Response {
    let texts = move |playground: &Playground, given_up: &CancellationToken| {
        let texts = playground.library().texts(&id, &playground.platform, given_up);
        texts.ok_or_else(|| Refused(StatusCode::NOT_FOUND, "there is no such example any more".to_owned()))
    };
    playground.answer(texts).await
}

async fn run(
    State(playground): State<Arc<Playground>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    // A form of another page cannot send this type without a CORS preflight, which this server rejects.
    if headers.get(CONTENT_TYPE).is_none_or(|sent| sent != "application/json") {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body has to be application/json");
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the texts have more than {MAX_BODY} bytes together");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, &message);
        }
        Err(rejection) => return refused(rejection.status(), &rejection.body_text()),
    };
    let run = move |playground: &Playground, given_up: &CancellationToken| {
        let texts = serde_json::from_slice(&body).map_err(|error| {
            Refused(StatusCode::BAD_REQUEST, format!("the body is not what the page sends: {error}"))
        })?;
        Ok(run::run(&texts, &playground.platform, playground.library().parents(), given_up))
    };
    playground.answer(run).await
}

/// Returns an error response.
fn refused(status: StatusCode, message: &str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json!({"error": message}).to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn so_many_run_at_one_time_and_the_next_one_once_there_is_room() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let playground = Arc::new(Playground::new(WebhookPolicy::default(), Vec::new()).unwrap());
        let (started, starts) = mpsc::channel();
        let mut holds = Vec::new();
        for number in 0..=RUNS {
            let (hold, until) = mpsc::channel::<()>();
            let started = started.clone();
            let answer = Arc::clone(&playground).answer(move |_, _| {
                started.send(number).unwrap();
                let _ = until.recv();
                Ok(())
            });
            holds.push((Some(hold), runtime.spawn(answer)));
            if number < RUNS {
                starts.recv_timeout(LIMIT).unwrap();
            }
        }
        assert_eq!(playground.runs.available_permits(), 0);
        assert!(starts.try_recv().is_err(), "the last one waits");
        // A run that was given up keeps its slot until it ends.
        holds[0].1.abort();
        assert!(starts.recv_timeout(Duration::from_millis(100)).is_err());
        holds[0].0 = None;
        assert_eq!(starts.recv_timeout(LIMIT).unwrap(), RUNS);
    }
    #[test]
    fn work_that_nobody_waits_for_any_more_is_told_so() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let playground = Arc::new(Playground::new(WebhookPolicy::default(), Vec::new()).unwrap());
        let (told, tells) = mpsc::channel();
        let (hold, until) = mpsc::channel::<()>();
        let answer = runtime.spawn(playground.answer(move |_, given_up| {
            told.send(given_up.clone()).unwrap();
            let _ = until.recv();
            Ok(())
        }));
        let given_up = tells.recv_timeout(LIMIT).unwrap();
        assert!(!given_up.is_cancelled());
        answer.abort();
        runtime.block_on(async { tokio::time::timeout(LIMIT, given_up.cancelled()).await.unwrap() });
        drop(hold);
    }
}
