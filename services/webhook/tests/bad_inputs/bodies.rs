//! Bodies that are no reviews: B1 to B4, B11 to B18.

use serde_json::json;

use crate::bad_inputs::table::{Row, good, run};
use crate::support::{KNOWN, review};

const UID: &str = "\"uid\":\"0df28fbd-5f5f-11e8-bc74-36e6bb280816\"";
const LIMIT: usize = 7 * 1024 * 1024;

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn rows() -> Vec<Row> {
    let text = review(KNOWN).to_string();
    let not_utf8: Vec<u8> = text.replace("web-0", "web-#").bytes().map(|b| if b == b'#' { 0xff } else { b }).collect();
    let name = |escaped: &str| text.replacen("\"name\":\"web-0\"", &format!("\"name\":\"{escaped}\""), 2);
    let mut rows = vec![
        good(1, "nothing").body("").refused(400, "AdmissionReview"),
        good(1, "spaces").body("  \n").refused(400, "not JSON"),
        good(2, "null").body("null").refused(400, "the body is null"),
        good(2, "a list").body("[]").refused(400, "the body is []"),
        good(2, "a text").body("\"x\"").refused(400, "the body is"),
        good(2, "an empty object").body("{}").refused(400, "apiVersion"),
        good(3, "half of it").body(&text.as_bytes()[..text.len() / 2]).refused(400, "not JSON"),
        good(3, "all but the end").body(&text.as_bytes()[..text.len() - 1]).refused(400, "not JSON"),
        good(3, "twice").body(format!("{text}{text}")).refused(400, "not JSON"),
        good(4, "a byte too many").body(" ".repeat(LIMIT + 1)).refused(413, "7340032"),
        good(4, "as large as may be").body(format!("{text}{}", " ".repeat(LIMIT - text.len()))),
        good(11, "129 deep").text("\"web-0\"", &nested(129)).refused(400, "deep"),
        good(11, "100,000 deep").text("\"web-0\"", &nested(100_000)).refused(400, "deep"),
        good(11, "100,000 deep and no end").text("\"web-0\"", &"[{\"a\":".repeat(100_000)).refused(400, "deep"),
        good(12, "uid twice").text(UID, &format!("{UID},{UID}")).refused(400, "stands twice"),
        good(12, "request twice").text("\"request\":", "\"request\":{},\"request\":").refused(400, "stands twice"),
        good(13, "no UTF-8").body(not_utf8).refused(400, "UTF-8"),
        good(13, "no UTF-8 behind the end").body([text.as_bytes(), b"\xff"].concat()).refused(400, "UTF-8"),
        good(13, "half of a surrogate pair").body(name("\\ud800")).refused(400, "surrogate"),
        good(13, "a zero byte").body(name("web\0")).refused(400, "not JSON"),
        // Not 400: an escaped NUL is a text as JSON has it. The API server refuses names with it by itself, and says so
        // better than a webhook could; and an annotation may have it.
        good(13, "an escaped zero byte").body(name("web\\u0000")),
        good(14, "a byte order mark").body(format!("\u{feff}{text}")).refused(400, "not JSON"),
        good(16, "request null").review(|review| review["request"] = json!(null)).refused(400, "request is null"),
        good(16, "no request")
            .review(|review| _ = review.as_object_mut().unwrap().remove("request"))
            .refused(400, "request is absent"),
        good(16, "request a list").review(|review| review["request"] = json!([])).refused(400, "request is []"),
        good(17, "no uid").text(&format!("{UID},"), "").refused(400, "request.uid is absent"),
        good(17, "an empty uid").text(UID, "\"uid\":\"\"").refused(400, "request.uid"),
        good(17, "a uid of 10 KiB")
            .text(UID, &format!("\"uid\":\"{}\"", "u".repeat(10_240)))
            .refused(400, "request.uid"),
        // Not 400 but an answer in kind: API servers of before 1.22 speak v1beta1, and so do tools that people still have.
        good(18, "v1beta1").text("admission.k8s.io/v1", "admission.k8s.io/v1beta1").is(
            crate::bad_inputs::table::Expected::Injected(|injected| {
                assert_eq!(injected.answer["apiVersion"], "admission.k8s.io/v1beta1");
            }),
        ),
        good(18, "v2").text("admission.k8s.io/v1", "admission.k8s.io/v2").refused(400, "admission.k8s.io/v2"),
        good(18, "another kind").text("\"AdmissionReview\"", "\"TokenReview\"").refused(400, "kind is"),
    ];
    // A text that would forge a line of the log, or fill it.
    let forged = format!("admission\n{}", "x".repeat(100_000));
    rows.push(
        good(18, "a long version").review(|review| review["apiVersion"] = json!(forged)).refused(400, "apiVersion"),
    );
    rows
}

#[tokio::test]
async fn bodies() {
    run(rows()).await;
}
