//! Requests that are not as they should be: in process, and the same over a TLS socket. Each must get its status and a
//! text that says why, be counted, and leave the server as it was.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

#[cfg(test)]
mod support;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use pillion_webhook::serve::ServerSettings;
use support::{App, Running, exchange, review, review_text};
use tower::ServiceExt;

const JSON: (&str, &str) = ("Content-Type", "application/json");

struct Case {
    name: &'static str,
    method: &'static str,
    path: String,
    headers: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
    status: u16,
    /// Must be in the answer.
    says: &'static str,
}

fn case(name: &'static str, body: impl Into<Vec<u8>>, status: u16, says: &'static str) -> Case {
    Case { name, method: "POST", path: "/mutate".to_owned(), headers: &[JSON], body: body.into(), status, says }
}

/// [`case`] of a good review, with other headers.
fn headers(
    name: &'static str,
    headers: &'static [(&'static str, &'static str)],
    status: u16,
    says: &'static str,
) -> Case {
    Case { headers, ..case(name, review_text(), status, says) }
}

/// [`case`] of a good review, elsewhere or by another method.
fn to(name: &'static str, method: &'static str, path: impl Into<String>, status: u16) -> Case {
    Case { method, path: path.into(), ..case(name, review_text(), status, "") }
}

/// A good review with something else at a JSON pointer.
fn with(pointer: &str, value: serde_json::Value) -> String {
    let mut review = review(support::KNOWN);
    *review.pointer_mut(pointer).unwrap() = value;
    review.to_string()
}

fn nested(depth: usize) -> String {
    let nest = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    review_text().replace("\"web-0\"", &nest)
}

fn cases() -> Vec<Case> {
    let good = review_text();
    let bom = format!("\u{feff}{good}");
    let invalid = [good.as_bytes(), b"\xff"].concat();
    let invalid_inside =
        good.replace("web-0", "web-#").bytes().map(|b| if b == b'#' { 0xff } else { b }).collect::<Vec<_>>();
    let uid = "\"uid\":\"0df28fbd-5f5f-11e8-bc74-36e6bb280816\"";
    assert!(good.contains(uid));
    let mut cases = vec![
        case("the good one", good.clone(), 200, "\"allowed\":true"),
        to("the good one, enabled", "POST", "/mutate/enabled", 200),
        to("the good one, required", "POST", "/mutate/required", 200),
        to("the good one, held", "POST", "/mutate/held", 200),
        to("with a timeout", "POST", "/mutate/held?timeout=10s", 200),
        // B1 to B4
        case("B1 empty", "", 400, "AdmissionReview"),
        case("B2 null", "null", 400, ""),
        case("B2 array", "[]", 400, ""),
        case("B2 string", "\"x\"", 400, ""),
        case("B2 empty object", "{}", 400, ""),
        case("B3 truncated", good[..good.len() / 2].to_owned(), 400, ""),
        case("B3 more after the end", format!("{good}{good}"), 400, ""),
        case("B4 7 MiB + 1", " ".repeat(7 * 1024 * 1024 + 1), 413, "7340032"),
        case("B4 7 MiB", format!("{good}{}", " ".repeat(7 * 1024 * 1024 - good.len())), 200, "\"allowed\":true"),
        // B7, B8
        headers("B7 text/plain", &[("Content-Type", "text/plain")], 415, "\"text/plain\": expected application/json"),
        headers("B7 missing", &[], 415, "no Content-Type: expected application/json"),
        headers("B7 longer", &[("Content-Type", "application/json-patch+json")], 415, "expected application/json"),
        headers("B7 charset", &[("Content-Type", "application/json; charset=utf-8")], 200, "\"allowed\":true"),
        headers("B7 case", &[("Content-Type", "Application/JSON ;charset=utf-8")], 200, "\"allowed\":true"),
        headers("B8 gzip", &[JSON, ("Content-Encoding", "gzip")], 415, "\"gzip\": expected none"),
        headers("B8 list", &[JSON, ("Content-Encoding", "identity, gzip")], 415, "expected none"),
        headers("B8 twice", &[JSON, ("Content-Encoding", "identity"), ("Content-Encoding", "br")], 415, "\"br\""),
        headers("B8 identity", &[JSON, ("Content-Encoding", "identity")], 200, "\"allowed\":true"),
        // B9, B10
        to("B9 GET", "GET", "/mutate", 405),
        to("B9 PUT", "PUT", "/mutate/enabled", 405),
        to("B9 HEAD", "HEAD", "/mutate/required", 405),
        to("B9 DELETE", "DELETE", "/mutate/held", 405),
        to("B10 unknown", "POST", "/mutate/other", 404),
        to("B10 root", "POST", "/", 404),
        to("B10 slash", "POST", "/mutate/", 404),
        to("B10 dots", "POST", "/mutate/../mutate", 404),
        to("B10 long", "POST", format!("/{}", "x".repeat(10 * 1024)), 404),
        // B11
        case("B11 129 deep", nested(129), 400, ""),
        case("B11 100,000 deep", nested(100_000), 400, ""),
        // B12 to B14
        case("B12 uid twice", good.replace(uid, &format!("{uid},{uid}")), 400, ""),
        case("B12 request twice", good.replace("\"request\":", "\"request\":{},\"request\":"), 400, ""),
        case("B13 invalid UTF-8 after the end", invalid, 400, ""),
        case("B13 invalid UTF-8", invalid_inside, 400, ""),
        case("B14 byte order mark", bom, 400, ""),
        // B16 to B18
        case("B16 request null", with("/request", serde_json::Value::Null), 400, "request"),
        case("B18 v1beta1", with("/apiVersion", "admission.k8s.io/v1beta1".into()), 200, "\"allowed\":true"),
        case("B18 v2", with("/apiVersion", "admission.k8s.io/v2".into()), 400, "apiVersion"),
        case("B18 kind", with("/kind", "TokenReview".into()), 400, ""),
    ];
    // A text that would forge a line of the log, or fill it.
    let forged = format!("admission\n{}", "x".repeat(100_000));
    cases.push(case("a long text", with("/apiVersion", forged.into()), 400, ""));
    cases
}

fn check(case: &Case, transport: &str, status: u16, body: &str) {
    let name = case.name;
    assert_eq!(status, case.status, "{name} ({transport}): {body}");
    assert!(body.contains(case.says), "{name} ({transport}): {body:?} does not say {:?}", case.says);
    if status == 400 || status == 415 {
        assert!(body.len() <= 1100 && body.trim_end().lines().count() == 1, "{name} ({transport}): {body:?}");
    }
}

/// How many requests ended in one of these ways, by any path.
fn count(app: &App, outcomes: &[&str]) -> f64 {
    let of = |endpoint: &'static str| {
        outcomes.iter().map(move |outcome| {
            let series = format!("pillion_admission_requests_total{{endpoint=\"{endpoint}\",outcome=\"{outcome}\"}}");
            app.metric(&series).unwrap()
        })
    };
    ["any", "enabled", "required", "held"].into_iter().flat_map(of).sum()
}

fn check_counters(app: &App, cases: &[Case]) {
    let status = |wanted: &[u16]| {
        let found = cases.iter().filter(|case| wanted.contains(&case.status)).count();
        f64::from(u32::try_from(found).unwrap())
    };
    // Wrong paths and methods are nobody's requests for admission.
    let (good, bad) = (status(&[200]), status(&[400, 408, 413, 415]));
    let counted = (
        count(app, &["injected", "unchanged", "skipped", "validated", "denied"]),
        count(app, &["bad_request"]),
        count(app, &["error"]),
    );
    assert_eq!(counted, (good, bad, 0.0));
    assert_eq!(app.metric("pillion_panics_total"), Some(0.0));
    assert_eq!(app.metric("pillion_inflight"), Some(0.0));
}

#[tokio::test]
async fn in_process() {
    let app = App::new();
    let cases = cases();
    for case in &cases {
        let mut request = Request::builder().method(case.method).uri(&case.path);
        for (name, value) in case.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(case.body.clone())).unwrap();
        let response = app.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        if status == StatusCode::OK {
            assert_eq!(response.headers()["content-type"], "application/json", "{}", case.name);
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        check(case, "in process", status.as_u16(), std::str::from_utf8(&body).unwrap());
    }
    check_counters(&app, &cases);
}

#[tokio::test]
async fn over_tls() {
    let app = App::new();
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let cases = cases();
    for case in &cases {
        let mut text =
            format!("{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", case.method, case.path).into_bytes();
        for (name, value) in case.headers {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", case.body.len()).as_bytes());
        text.extend_from_slice(&case.body);
        let answer = exchange(&mut server.http1().await, &text).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{}: {answer:?}", case.name));
        check(case, "over TLS", head[9..12].parse().unwrap(), body);
    }
    check_counters(&app, &cases);
}
