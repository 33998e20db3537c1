//! Test cases with requests that an API server does not send, and with bodies that are not reviews.

use serde_json::json;

use crate::bad_inputs::table::{Expected, Row, good, run};
use crate::support::{KNOWN, review};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const SKIP: Expected = Expected::Skip { warned: false };

/// The first bytes of 1 MiB of zeros, compressed with gzip. The server never decompresses a body.
const BOMB: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3];

fn rows() -> Vec<Row> {
    let baggage = (0..8).map(|number| format!("key-{number}={}", "b".repeat(1024))).collect::<Vec<_>>().join(",");
    assert!(baggage.len() > 8 * 1024);
    let mut rows = vec![
        good(7, "text/plain")
            .headers(&[("Content-Type", "text/plain")])
            .refused(415, "\"text/plain\": expected application/json"),
        good(7, "no content type").headers(&[]).refused(415, "no Content-Type: expected application/json"),
        good(7, "a longer content type")
            .headers(&[("Content-Type", "application/json-patch+json")])
            .refused(415, "expected application/json"),
        good(7, "with a charset").headers(&[("Content-Type", "application/json; charset=utf-8")]),
        good(7, "in capitals").headers(&[("Content-Type", "Application/JSON ;charset=utf-8")]),
        good(8, "gzip")
            .headers(&[JSON, ("Content-Encoding", "gzip")])
            .body(BOMB)
            .refused(415, "\"gzip\": expected none"),
        good(8, "a list").headers(&[JSON, ("Content-Encoding", "identity, gzip")]).refused(415, "expected none"),
        good(8, "twice")
            .headers(&[JSON, ("Content-Encoding", "identity"), ("Content-Encoding", "br")])
            .refused(415, "\"br\""),
        good(8, "identity").headers(&[JSON, ("Content-Encoding", "identity")]),
        good(8, "gzip without Content-Encoding").body(BOMB).refused(400, "UTF-8"),
        good(9, "GET").to("GET", "/mutate").refused(405, "POST"),
        good(9, "PUT").to("PUT", "/mutate/enabled").refused(405, "POST"),
        good(9, "HEAD").to("HEAD", "/mutate/required").refused(405, ""),
        good(9, "DELETE").to("DELETE", "/validate").refused(405, "POST"),
        good(10, "unknown").to("POST", "/mutate/other").refused(404, "expected /mutate"),
        good(10, "the root path").to("POST", "/").refused(404, ""),
        good(10, "a trailing slash").to("POST", "/mutate/").refused(404, ""),
        good(10, "dots").to("POST", "/mutate/../mutate").refused(404, ""),
        good(10, "escaped dots").to("POST", "/mutate/%2e%2e/mutate").refused(404, ""),
        good(10, "10 KiB").to("POST", format!("/{}", "x".repeat(10 * 1024))).refused(404, ""),
        good(25, "8 KiB of baggage").headers(&[JSON, ("baggage", &baggage)]),
        good(28, "UPDATE")
            .request(|request| {
                request["operation"] = json!("UPDATE");
                request["oldObject"] = request["object"].clone();
            })
            .is(SKIP),
        good(28, "DELETE")
            .request(|request| {
                request["operation"] = json!("DELETE");
                request["oldObject"] = request["object"].take();
            })
            .is(SKIP),
        good(28, "CONNECT")
            .request(|request| {
                request["operation"] = json!("CONNECT");
                request["subResource"] = json!("exec");
                request["object"] = json!({"apiVersion": "v1", "kind": "PodExecOptions"});
            })
            .is(SKIP),
        good(28, "an unknown operation").request(|request| request["operation"] = json!("MERGE")).is(SKIP),
        // The webhook does not warn, because the mistake is in the rules of a webhook configuration and not in the
        // object. A warning would appear below every `kubectl apply`. The metric and the log show the mistake.
        good(29, "a Deployment")
            .request(|request| {
                request["kind"] = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
                request["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
            })
            .is(SKIP),
        good(29, "a Pod of another group")
            .request(|request| {
                request["kind"]["group"] = json!("foo");
                request["resource"]["group"] = json!("foo");
            })
            .is(SKIP),
        good(29, "ephemeral containers")
            .request(|request| request["subResource"] = json!("ephemeralcontainers"))
            .is(SKIP),
        good(30, "no object").request(|request| request["object"] = json!(null)).refused(400, "request.object is null"),
        good(30, "a list as the object")
            .request(|request| request["object"] = json!([]))
            .refused(400, "request.object is []"),
        good(30, "a string as the object")
            .request(|request| request["object"] = json!("pod"))
            .refused(400, "request.object"),
    ];
    let traces = [
        "",
        "00",
        "ff-00000000000000000000000000000000-0000000000000000-00",
        "00-zz-zz-zz",
        "é",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
    ];
    rows.extend(traces.map(|trace| good(25, "an invalid traceparent").headers(&[JSON, ("traceparent", trace)])));
    // An invalid timeout is replaced by the default, and a long one is reduced. Neither causes a rejection.
    let timeouts = [
        "timeout=0s",
        "timeout=-1s",
        "timeout=1h",
        "timeout=abc",
        "timeout=",
        "timeout=10s&timeout=1s",
        "timeout=99999999999999999999s",
        "%ff",
    ];
    rows.extend(timeouts.map(|query| good(26, "an unusual timeout").to("POST", format!("/mutate?{query}"))));
    rows
}

#[tokio::test]
async fn requests() {
    run(rows()).await;
}

const UID: &str = "\"uid\":\"0df28fbd-5f5f-11e8-bc74-36e6bb280816\"";
const LIMIT: usize = 7 * 1024 * 1024;

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn body_rows() -> Vec<Row> {
    let text = review(KNOWN).to_string();
    let not_utf8: Vec<u8> = text.replace("web-0", "web-#").bytes().map(|b| if b == b'#' { 0xff } else { b }).collect();
    let name = |escaped: &str| text.replacen("\"name\":\"web-0\"", &format!("\"name\":\"{escaped}\""), 2);
    let mut rows = vec![
        good(1, "nothing").body("").refused(400, "AdmissionReview"),
        good(1, "spaces").body("  \n").refused(400, "not valid JSON"),
        good(2, "null").body("null").refused(400, "the body is null"),
        good(2, "a list").body("[]").refused(400, "the body is []"),
        good(2, "a string").body("\"x\"").refused(400, "the body is"),
        good(2, "an empty object").body("{}").refused(400, "apiVersion"),
        good(3, "half of the review").body(&text.as_bytes()[..text.len() / 2]).refused(400, "not valid JSON"),
        good(3, "all but the last byte").body(&text.as_bytes()[..text.len() - 1]).refused(400, "not valid JSON"),
        good(3, "the review twice").body(format!("{text}{text}")).refused(400, "not valid JSON"),
        good(4, "one byte above the limit").body(" ".repeat(LIMIT + 1)).refused(413, "7340032"),
        good(4, "exactly the limit").body(format!("{text}{}", " ".repeat(LIMIT - text.len()))),
        good(11, "nested 129 levels deep").text("\"web-0\"", &nested(129)).refused(400, "deep"),
        good(11, "nested 100,000 levels deep").text("\"web-0\"", &nested(100_000)).refused(400, "deep"),
        good(11, "nested 100,000 levels deep without an end")
            .text("\"web-0\"", &"[{\"a\":".repeat(100_000))
            .refused(400, "deep"),
        good(12, "uid twice").text(UID, &format!("{UID},{UID}")).refused(400, "occurs twice"),
        good(12, "request twice").text("\"request\":", "\"request\":{},\"request\":").refused(400, "occurs twice"),
        good(13, "not UTF-8").body(not_utf8).refused(400, "UTF-8"),
        good(13, "not UTF-8 after the end").body([text.as_bytes(), b"\xff"].concat()).refused(400, "UTF-8"),
        good(13, "half of a surrogate pair").body(name("\\ud800")).refused(400, "surrogate"),
        good(13, "a zero byte").body(name("web\0")).refused(400, "not valid JSON"),
        // The input is accepted: an escaped NUL is valid JSON, and allowed in an annotation. The API server itself
        // rejects names that contain it, with a better message than a webhook's.
        good(13, "an escaped zero byte").body(name("web\\u0000")),
        good(14, "a byte order mark").body(format!("\u{feff}{text}")).refused(400, "not valid JSON"),
        good(16, "request null").review(|review| review["request"] = json!(null)).refused(400, "request is null"),
        good(16, "no request")
            .review(|review| _ = review.as_object_mut().unwrap().remove("request"))
            .refused(400, "request is absent"),
        good(16, "a list as the request").review(|review| review["request"] = json!([])).refused(400, "request is []"),
        good(17, "no uid").text(&format!("{UID},"), "").refused(400, "request.uid is absent"),
        good(17, "an empty uid").text(UID, "\"uid\":\"\"").refused(400, "request.uid"),
        good(17, "a uid of 10 KiB")
            .text(UID, &format!("\"uid\":\"{}\"", "u".repeat(10_240)))
            .refused(400, "request.uid"),
        // The response has the same version as the review. A webhook configuration can request v1beta1.
        good(18, "v1beta1").text("admission.k8s.io/v1", "admission.k8s.io/v1beta1").is(Expected::Injected(
            |injected| {
                assert_eq!(injected.answer["apiVersion"], "admission.k8s.io/v1beta1");
            },
        )),
        good(18, "v2").text("admission.k8s.io/v1", "admission.k8s.io/v2").refused(400, "admission.k8s.io/v2"),
        good(18, "another kind").text("\"AdmissionReview\"", "\"TokenReview\"").refused(400, "kind is"),
    ];
    // If the string were logged as it is, it would forge a log line and fill the log.
    let forged = format!("admission\n{}", "x".repeat(100_000));
    rows.push(
        good(18, "a long version").review(|review| review["apiVersion"] = json!(forged)).refused(400, "apiVersion"),
    );
    rows
}

#[tokio::test]
async fn bodies() {
    run(body_rows()).await;
}
