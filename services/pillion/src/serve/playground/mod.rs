//! The playground: a page with editors for profiles and an object, which shows the result while the user types. Only
//! users of this machine can reach it: see [`guard`].
//!
//! * [`mod@run`]: converts the texts of the editors to problems or results.
//! * [`library`]: example profiles, each with an object that requests it.

mod library;
mod run;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
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
/// The maximum number of concurrent runs; further runs wait. A page cancels all its runs except the newest.
const RUNS: usize = 2;
/// The maximum time until a response, including the time that a run waits for others. After this time, the run is
/// cancelled.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The name of the simulated release, which appears only in explanations.
const RELEASE: &str = "pillion-system/pillion";

/// The state that all requests of the playground share.
pub(super) struct Playground {
    platform: Platform,
    /// Paths with example profiles, besides the embedded ones.
    paths: Vec<PathBuf>,
    /// The library, as it was read when a page was last opened.
    library: Mutex<Option<Arc<Library>>>,
    runs: Arc<Semaphore>,
}

/// An error response: the status and the message.
#[derive(Debug)]
struct ErrorResponse(StatusCode, String);

/// The query that selects an example.
#[derive(Deserialize)]
struct Chosen {
    id: String,
}

impl Playground {
    /// Creates a playground with this policy. `paths` are files and folders with example profiles.
    ///
    /// # Errors
    /// The policy has too many cluster facts, or they nest too deeply.
    pub(super) fn new(policy: WebhookPolicy, paths: Vec<PathBuf>) -> anyhow::Result<Self> {
        let release: Release = args::release(RELEASE).map_err(anyhow::Error::msg)?;
        let platform = Platform::new(policy, release)?;
        Ok(Self { platform, paths, library: Mutex::default(), runs: Arc::new(Semaphore::new(RUNS)) })
    }

    /// Returns the routes of the playground.
    pub(super) fn router(self) -> Router {
        let mut router = Router::new();
        for asset in ASSETS {
            router = router.route(asset.path, get(async move || asset.response()));
        }
        router
            .route("/playground/examples", get(examples))
            .route("/playground/example", get(example))
            .route("/playground/run", post(run))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(middleware::from_fn(guard))
            .with_state(Arc::new(self))
    }

    /// Returns the cached library, which is read if necessary.
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

    /// Does the work on a blocking thread once a slot is free, so that probes are not delayed, and responds with the
    /// result. The token is cancelled if the work takes too long, or if the client disconnects.
    async fn answer<T: Serialize>(
        self: Arc<Self>,
        work: impl FnOnce(&Self, &CancellationToken) -> Result<T, ErrorResponse> + Send + 'static,
    ) -> Response {
        let given_up = CancellationToken::new();
        let _gives_up = given_up.clone().drop_guard();
        let worked = async {
            let slot = Arc::clone(&self.runs).acquire_owned().await?;
            let worked = tokio::task::spawn_blocking(move || {
                // Kept until the work is done, even if the client has disconnected.
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
            Ok(Ok(Err(ErrorResponse(status, message)))) => refused(status, &message),
            Ok(Err(error)) => {
                tracing::error!(%error, "the playground cannot respond");
                refused(StatusCode::INTERNAL_SERVER_ERROR, "this is a bug in Pillion; the log contains the error")
            }
            Err(_) => refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "the run takes too long: make the profile or the object smaller",
            ),
        }
    }
}

async fn examples(State(playground): State<Arc<Playground>>) -> Response {
    playground.answer(|playground, _| Ok(playground.read_library().list())).await
}

async fn example(State(playground): State<Arc<Playground>>, Query(Chosen { id }): Query<Chosen>) -> Response {
    let texts = move |playground: &Playground, given_up: &CancellationToken| {
        let texts = playground.library().texts(&id, &playground.platform, given_up);
        texts.ok_or_else(|| ErrorResponse(StatusCode::NOT_FOUND, "this example does not exist any more".to_owned()))
    };
    playground.answer(texts).await
}

async fn run(
    State(playground): State<Arc<Playground>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    // Another page cannot send this content type without a CORS preflight, which this server rejects.
    if headers.get(CONTENT_TYPE).is_none_or(|sent| sent != "application/json") {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json");
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the content of the editors exceeds {MAX_BODY} bytes in total");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, &message);
        }
        Err(rejection) => return refused(rejection.status(), &rejection.body_text()),
    };
    let run = move |playground: &Playground, given_up: &CancellationToken| {
        let texts = serde_json::from_slice(&body)
            .map_err(|error| ErrorResponse(StatusCode::BAD_REQUEST, format!("the body is invalid: {error}")))?;
        Ok(run::run(&texts, &playground.platform, playground.library().parents(), given_up))
    };
    playground.answer(run).await
}

/// Returns an error response.
fn refused(status: StatusCode, message: &str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json!({"error": message}).to_string()).into_response()
}

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct Asset {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

/// All files of the page: one document, one style sheet, a script in two files and an icon. They are embedded in this
/// program. The page loads nothing from other servers, which the content security policy enforces.
const ASSETS: [Asset; 5] = [
    Asset { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("assets/index.html") },
    Asset {
        path: "/playground/style.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("assets/style.css"),
    },
    Asset {
        path: "/playground/playground.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/playground.js"),
    },
    Asset {
        path: "/playground/editor.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/editor.js"),
    },
    Asset { path: "/playground/icon.svg", media_type: "image/svg+xml", text: include_str!("assets/icon.svg") },
];

/// The content security policy. The page may only load files from this server, and only call this server. Inline
/// scripts and styles, HTML from strings, and framing are forbidden.
const SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Headers of every response.
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    // Another version of this program may serve a different page at this address, so the page must not be cached.
    ("cache-control", "no-store"),
];

impl Asset {
    fn response(self) -> Response {
        ([(CONTENT_TYPE, self.media_type)], self.text).into_response()
    }
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The `Host` is missing or is given more than once, or a host of the request is not a loopback name or address.
    Host,
    /// The request comes from another page.
    CrossOrigin,
}

/// Rejects requests from other pages and hosts, and adds the page's headers to every response.
///
/// Any website can make the browser send requests to a loopback port. With DNS rebinding (a domain name that later
/// resolves to 127.0.0.1), it could even read the responses. So the `Host` must be a local name or address, and the
/// request's origin must be this page.
async fn guard(request: Request, next: Next) -> Response {
    let checked = check(request.uri(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(Refusal::Host) => refused(
            StatusCode::MISDIRECTED_REQUEST,
            "the playground is served only at localhost, 127.0.0.1 and [::1]: open it at one of these addresses",
        ),
        Err(Refusal::CrossOrigin) => {
            refused(StatusCode::FORBIDDEN, "the playground accepts requests only from its own page")
        }
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) if is_own(host) => host,
        _ => return Err(Refusal::Host),
    };
    // The request line may contain a host too.
    if uri.authority().is_some_and(|authority| !is_own(authority.as_str())) {
        return Err(Refusal::Host);
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_own_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(|origin| origin == host);
    if headers.get(ORIGIN).is_some_and(|origin| !origin.to_str().is_ok_and(is_own_origin)) {
        return Err(Refusal::CrossOrigin);
    }
    // Another page may link to this page, but not send any other request.
    let is_link = uri.path() == "/" && text("sec-fetch-mode") == Some("navigate");
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_link => Ok(()),
        Some(_) => Err(Refusal::CrossOrigin),
    }
}

/// Whether a `Host` is a loopback name or address, with any port or none, since a forwarded port may differ.
fn is_own(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || v6.and_then(|address| address.parse::<Ipv6Addr>().ok()).is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn concurrent_runs_are_limited() {
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
        assert!(starts.try_recv().is_err(), "the last run waits for a slot");
        // A cancelled run keeps its slot until it ends.
        holds[0].1.abort();
        assert!(starts.recv_timeout(Duration::from_millis(100)).is_err());
        holds[0].0 = None;
        assert_eq!(starts.recv_timeout(LIMIT).unwrap(), RUNS);
    }
    #[test]
    fn abandoned_run_is_cancelled() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let playground = Arc::new(Playground::new(WebhookPolicy::default(), Vec::new()).unwrap());
        let (sender, receiver) = mpsc::channel();
        let (hold, until) = mpsc::channel::<()>();
        let answer = runtime.spawn(playground.answer(move |_, given_up| {
            sender.send(given_up.clone()).unwrap();
            let _ = until.recv();
            Ok(())
        }));
        let given_up = receiver.recv_timeout(LIMIT).unwrap();
        assert!(!given_up.is_cancelled());
        answer.abort();
        runtime.block_on(async { tokio::time::timeout(LIMIT, given_up.cancelled()).await.unwrap() });
        drop(hold);
    }

    #[test]
    fn page_has_no_inline_or_foreign_content() {
        let [page, style, script, editor, icon] = ASSETS.map(|asset| asset.text);
        for forbidden in ["<style", "style=", "javascript:", " onclick", " onload", "<base", "<iframe"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<script").count(), 1);
        for (name, text) in [("page", page), ("style", style), ("script", script), ("editor", editor)] {
            assert!(!text.contains("https://") && !text.contains("http://") && !text.contains("url(//"), "{name}");
        }
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!script.contains(forbidden) && !editor.contains(forbidden), "{forbidden}");
        }
        assert!(icon.starts_with("<svg"));
        for asset in ASSETS.iter().skip(1) {
            let file = asset.path.trim_start_matches("/playground/");
            assert!(page.contains(asset.path) || script.contains(&format!("\"./{file}\"")), "{file} is not used");
        }
    }

    fn checked(uri: &str, headers: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        check(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn only_loopback_host_names_are_accepted() {
        for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:1", "127.1.2.3", "[::1]:9090", "[::1]"] {
            assert_eq!(checked("/", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example:9090",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:9090",
            "[::2]:1",
            "::1",
            "",
            "localhost:x",
            "localhost:9090:9090",
            "user@localhost",
            "0.0.0.0:9090",
            "[::ffff:10.0.0.1]",
        ] {
            assert_eq!(checked("/", &[("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(checked("/", &[]), Err(Refusal::Host));
        assert_eq!(checked("/", &[("host", "localhost"), ("host", "evil.example")]), Err(Refusal::Host));
        assert_eq!(checked("http://evil.example/", &[("host", "localhost")]), Err(Refusal::Host));
    }

    #[test]
    fn cross_site_requests_may_only_navigate() {
        let host = ("host", "localhost:9090");
        for (uri, more) in [
            ("/playground/run", vec![]),
            ("/playground/run", vec![("origin", "http://localhost:9090"), ("sec-fetch-site", "same-origin")]),
            ("/", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]),
            ("/", vec![("sec-fetch-site", "none")]),
        ] {
            assert_eq!(checked(uri, &[&[host], &*more].concat()), Ok(()), "{uri} {more:?}");
        }
        for (uri, more) in [
            ("/playground/run", vec![("origin", "http://evil.example")]),
            ("/playground/run", vec![("origin", "http://localhost:3000")]),
            ("/playground/run", vec![("origin", "https://localhost:9090")]),
            ("/playground/run", vec![("origin", "null")]),
            ("/playground/run", vec![("sec-fetch-site", "same-site")]),
            ("/playground/examples", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]),
            ("/", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]),
        ] {
            assert_eq!(checked(uri, &[&[host], &*more].concat()), Err(Refusal::CrossOrigin), "{uri} {more:?}");
        }
    }
}
