//! A row of the table of bad inputs. Also the code that sends each row, in process and over TLS.

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http_body_util::BodyExt;
use pillion_webhook::serve::ServerSettings;
use serde_json::Value as Json;
use tokio::io::AsyncWriteExt;
use tower::ServiceExt;

use crate::support::{Answer, App, KNOWN, Running, anonymous_memory, ask, post, review, review_text, sidecar};

/// An input and its expected result.
pub(crate) struct Row {
    /// The number under which failures report the case, from 1 to 70 (`B1` to `B70`).
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// The profile that the server has. Its activation is `Always` unless the row changes it.
    pub(crate) profile: Json,
    pub(crate) expected: Expected,
}

/// The expected result of an input.
pub(crate) enum Expected {
    /// The response is not a review. It has this status, and a line of text that contains this string.
    Status(u16, &'static str),
    /// The pod is allowed without a patch, with or without a warning.
    Skip { warned: bool },
    /// The pod is rejected with this code, and a message that contains this string.
    Deny(u16, &'static str),
    /// A patch is returned, and this check passes.
    Injected(fn(&Injected)),
}

/// An injected object.
pub(crate) struct Injected {
    pub(crate) answer: Json,
    pub(crate) patch: String,
    /// The patched object. Null if `serde_json` cannot represent the input.
    pub(crate) object: Json,
}

/// The response to a row's request.
struct Received {
    status: u16,
    content_type: String,
    body: String,
}

/// Returns a row with a valid review. Each test case then changes the row.
pub(crate) fn good(number: u8, name: &'static str) -> Row {
    Row {
        number,
        name,
        method: "POST",
        path: "/mutate".to_owned(),
        headers: vec![("Content-Type", "application/json".to_owned())],
        body: review(KNOWN).to_string().into_bytes(),
        profile: sidecar(),
        expected: Expected::Injected(|_| {}),
    }
}

impl Row {
    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Changes the review.
    pub(crate) fn review(mut self, change: impl FnOnce(&mut Json)) -> Self {
        let mut review: Json = serde_json::from_slice(&self.body).unwrap();
        change(&mut review);
        self.body = review.to_string().into_bytes();
        self
    }

    /// Changes the request in the review.
    pub(crate) fn request(self, change: impl FnOnce(&mut Json)) -> Self {
        self.review(|review| change(&mut review["request"]))
    }

    /// Changes the object in the review.
    pub(crate) fn pod(self, change: impl FnOnce(&mut Json)) -> Self {
        self.request(|request| change(&mut request["object"]))
    }

    /// Replaces the first occurrence of `from` in the JSON of the review. `from` must occur.
    pub(crate) fn text(mut self, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.body).unwrap();
        assert!(text.contains(from), "{}: {from} is not in {text}", self.name);
        self.body = text.replacen(from, to, 1).into_bytes();
        self
    }

    pub(crate) fn to(mut self, method: &'static str, path: impl Into<String>) -> Self {
        (self.method, self.path) = (method, path.into());
        self
    }

    /// Replaces all headers.
    pub(crate) fn headers(mut self, headers: &[(&'static str, &str)]) -> Self {
        self.headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self
    }

    pub(crate) fn profile(mut self, change: impl FnOnce(&mut Json)) -> Self {
        change(&mut self.profile);
        self
    }

    pub(crate) fn is(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// Expects a response with this status and a text that contains this string.
    pub(crate) fn refused(self, status: u16, says: &'static str) -> Self {
        self.is(Expected::Status(status, says))
    }

    fn app(&self) -> App {
        App::with_profile(&self.profile, None)
    }

    /// Returns the acceptable outcomes of the row's request. Empty: the request reaches no endpoint, so it is not
    /// counted.
    fn outcomes(&self) -> &'static [&'static str] {
        match self.expected {
            Expected::Status(404 | 405, _) => &[],
            Expected::Status(..) => &["bad_request"],
            Expected::Skip { .. } => &["skipped", "unchanged"],
            Expected::Deny(..) => &["denied"],
            Expected::Injected(_) => &["injected"],
        }
    }

    fn check(&self, way: &str, received: &Received) {
        let at = format!("B{} {} ({way})", self.number, self.name);
        let short: String = received.body.chars().take(600).collect();
        if let Expected::Status(status, says) = self.expected {
            assert_eq!(received.status, status, "{at}: {short}");
            assert!(received.body.contains(says), "{at}: {short:?} does not contain {says:?}");
            assert!(received.body.len() <= 1100 && received.body.trim_end().lines().count() <= 1, "{at}: {short:?}");
            return;
        }
        assert_eq!((received.status, &*received.content_type), (200, "application/json"), "{at}: {short}");
        let answer: Json = serde_json::from_str(&received.body).unwrap();
        let response = &answer["response"];
        let allowed = response["allowed"].as_bool().unwrap();
        let warned = response["warnings"].as_array().is_some_and(|warnings| !warnings.is_empty());
        for warning in response["warnings"].as_array().into_iter().flatten() {
            let warning = warning.as_str().unwrap();
            assert!(warning.chars().count() <= 256 && warning.lines().count() == 1, "{at}: {warning}");
        }
        match &self.expected {
            Expected::Status(..) => {}
            Expected::Skip { warned: expected } => {
                assert!(allowed && response.get("patch").is_none(), "{at}: {short}");
                assert_eq!(warned, *expected, "{at}: {short}");
            }
            Expected::Deny(code, says) => {
                assert!(!allowed && response.get("patch").is_none(), "{at}: {short}");
                assert_eq!(response["status"]["code"], *code, "{at}: {short}");
                let message = response["status"]["message"].as_str().unwrap();
                assert!(message.contains(says) && message.len() < 2048, "{at}: {message}");
            }
            Expected::Injected(holds) => {
                let patch = response["patch"].as_str().unwrap_or_else(|| panic!("{at}: no patch in {short}"));
                let patch = STANDARD.decode(patch).unwrap();
                let operations: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
                let mut object = serde_json::from_slice::<Json>(&self.body)
                    .map_or(Json::Null, |review| review["request"]["object"].clone());
                if !object.is_null() {
                    json_patch::patch(&mut object, &operations).unwrap_or_else(|error| panic!("{at}: {error}"));
                }
                holds(&Injected { answer, patch: String::from_utf8(patch).unwrap(), object });
            }
        }
    }

    /// Asserts that nothing panicked, that no resource is still in use, and that the row was counted correctly. `more`
    /// is the number of requests, with any outcome, that were sent after the row's request.
    fn check_metrics(&self, way: &str, app: &App, more: u8) {
        let at = format!("B{} {} ({way})", self.number, self.name);
        for series in
            ["pillion_webhook_panics_total", "pillion_webhook_inflight_requests", "pillion_webhook_body_memory_bytes"]
        {
            assert_eq!(app.metric(series), Some(0.0), "{at}: {series}");
        }
        let outcomes = self.outcomes();
        let own = f64::from(u8::from(!outcomes.is_empty()));
        let all = app.sum("pillion_webhook_requests_total{");
        assert!((all - own - f64::from(more)).abs() < 0.5, "{at}: {all} requests were counted");
        let of = |outcome: &&str| app.sum_with("pillion_webhook_requests_total{", &format!("outcome=\"{outcome}\""));
        let counted: f64 = outcomes.iter().map(of).sum();
        assert!(counted > own - 0.5, "{at}: {counted} are counted as {outcomes:?}");
    }

    async fn in_process(&self) {
        let app = self.app();
        let mut request = Request::builder().method(self.method).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(self.body.clone())).unwrap();
        let response = app.router.clone().oneshot(request).await.unwrap();
        let content_type = response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        self.check("in process", &Received { status, content_type: content_type.unwrap_or_default(), body });
        self.check_metrics("in process", &app, 0);
    }

    async fn over_tls(&self) {
        let app = self.app();
        let server = Running::start(app.router.clone(), ServerSettings::default()).await;
        let mut text = format!("{} {} HTTP/1.1\r\nHost: x\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
        text.extend_from_slice(&self.body);
        let mut stream = server.http1().await;
        // The server may respond and close the connection before it has read the whole request.
        let _ = stream.write_all(&text).await;
        let _ = stream.flush().await;
        // The response to a HEAD request declares the length of a body that is not sent.
        let mut answer =
            if self.method == "HEAD" { Answer::read_head(&mut stream).await } else { Answer::read(&mut stream).await };
        let content_type = answer.header("content-type").unwrap_or_default().to_owned();
        let body = std::mem::take(&mut answer.body);
        self.check("over TLS", &Received { status: answer.status, content_type, body });

        if answer.closes() {
            stream = server.http1().await;
        }
        let next = ask(&mut stream, post("/mutate", &review_text())).await;
        assert_eq!(next.status, 200, "B{} {}: the next request", self.number, self.name);
        self.check_metrics("over TLS", &app, 1);
    }
}

/// Each test that uses much memory holds this lock, because tests of one process share the memory that they measure.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs all rows, in process and over TLS.
pub(crate) async fn run(rows: Vec<Row>) {
    // Exceeds the size of all bodies of one row together, plus the memory that the allocator retains.
    const SLACK: usize = 96 * 1024 * 1024;
    let _alone = ALONE.lock().await;
    let before = anonymous_memory();
    for row in &rows {
        row.in_process().await;
        row.over_tls().await;
    }
    let after = anonymous_memory();
    println!("{} rows; {} KiB before and {} KiB after", rows.len(), before >> 10, after >> 10);
    assert!(after < before + SLACK, "{} MiB more than before", after.saturating_sub(before) >> 20);
}
