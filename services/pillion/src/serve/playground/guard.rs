//! Restricts access to the page itself, in a browser on this machine, and to local programs.
//!
//! Any website can make the browser send requests to a loopback port. With DNS rebinding (a name of its own that later
//! points at 127.0.0.1) it could even read the responses. So the `Host` must be a local name or address, and the
//! request's origin must be this page.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::{assets, refused};

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The `Host` is not a name of this machine.
    Host,
    /// The request comes from another page.
    Elsewhere,
}

/// Rejects requests from elsewhere, and adds the page's headers to every response.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let checked = check(request.uri(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(Refusal::Host) => refused(
            StatusCode::MISDIRECTED_REQUEST,
            "the playground is at localhost, 127.0.0.1 or [::1], and at no other name: open it by one of these",
        ),
        Err(Refusal::Elsewhere) => refused(
            StatusCode::FORBIDDEN,
            "the playground answers its own page, and no request that another page sends",
        ),
    };
    for (name, value) in assets::HEADERS {
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
        return Err(Refusal::Elsewhere);
    }
    // Another page may link here, but not send any other request.
    let is_link = uri.path() == "/" && text("sec-fetch-mode") == Some("navigate");
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_link => Ok(()),
        Some(_) => Err(Refusal::Elsewhere),
    }
}

/// Whether a `Host` is a loopback name or address, with any port or none: a forwarded port may differ.
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
    use super::*;

    fn checked(uri: &str, headers: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        check(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn only_names_of_this_machine_for_itself_are_answered() {
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
    fn another_page_may_link_here_and_no_more() {
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
            assert_eq!(checked(uri, &[&[host], &*more].concat()), Err(Refusal::Elsewhere), "{uri} {more:?}");
        }
    }
}
