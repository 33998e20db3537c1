//! Requests that are not as the API server sends them: B7 to B10, B25 to B30.

use serde_json::json;

use crate::bad_inputs::table::{Expected, Row, good, run};

const JSON: (&str, &str) = ("Content-Type", "application/json");
const SKIP: Expected = Expected::Skip { warned: false };

/// What gzip makes of 1 MiB of zero bytes begins so; nobody unpacks it.
const BOMB: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 3];

fn rows() -> Vec<Row> {
    let baggage = (0..8).map(|number| format!("key-{number}={}", "b".repeat(1024))).collect::<Vec<_>>().join(",");
    assert!(baggage.len() > 8 * 1024);
    let mut rows = vec![
        good(7, "text/plain")
            .headers(&[("Content-Type", "text/plain")])
            .refused(415, "\"text/plain\": expected application/json"),
        good(7, "no content type").headers(&[]).refused(415, "no Content-Type: expected application/json"),
        good(7, "a longer one")
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
        good(8, "gzip that nobody speaks of").body(BOMB).refused(400, "UTF-8"),
        good(9, "GET").to("GET", "/mutate").refused(405, "POST"),
        good(9, "PUT").to("PUT", "/mutate/enabled").refused(405, "POST"),
        good(9, "HEAD").to("HEAD", "/mutate/required").refused(405, ""),
        good(9, "DELETE").to("DELETE", "/validate").refused(405, "POST"),
        good(10, "unknown").to("POST", "/mutate/other").refused(404, "expected /mutate"),
        good(10, "the root").to("POST", "/").refused(404, ""),
        good(10, "a slash more").to("POST", "/mutate/").refused(404, ""),
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
        good(28, "an operation that there is not").request(|request| request["operation"] = json!("MERGE")).is(SKIP),
        // Without the warning that the table asks for: who made the object did nothing wrong, the rules of a webhook
        // configuration did, and a warning would stand below every `kubectl apply`. The metric and the log tell.
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
        good(30, "a text as the object")
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
    rows.extend(traces.map(|trace| good(25, "a traceparent that is none").headers(&[JSON, ("traceparent", trace)])));
    // Whatever is asked for, it is bounded by what the server itself allows; and it is no reason to refuse the review.
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
    rows.extend(timeouts.map(|query| good(26, "a strange timeout").to("POST", format!("/mutate?{query}"))));
    rows
}

#[tokio::test]
async fn requests() {
    run(rows()).await;
}
