//! Sends a request and checks its response. This happens once for each webhook before its times are measured, and for
//! all requests to a server with a full cluster before its memory is measured.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::server::{PATH, Server};

/// The timeout of one exchange.
const LIMIT: Duration = Duration::from_secs(10);

/// Sends a review, and checks that the response injects exactly these containers into the pod.
///
/// # Errors
/// The server does not respond in time with status 200, or its response has no patch that adds exactly these
/// containers.
pub(crate) async fn expect_containers(server: &Server, review: &Value, expected: &[&str]) -> anyhow::Result<()> {
    let answer = post(server, review.to_string()).await?;
    let before = review.pointer("/request/object").context("the review has no object")?;
    let after = patched(before, &answer).with_context(|| format!("the response was {answer}"))?;
    let own = containers(before);
    let added: BTreeSet<_> = containers(&after).into_iter().filter(|name| !own.contains(name)).collect();
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    if added != expected {
        bail!("the pod got the containers {added:?}, expected {expected:?}: {answer}");
    }
    Ok(())
}

fn patched(object: &Value, answer: &Value) -> anyhow::Result<Value> {
    let patch = answer.pointer("/response/patch").and_then(Value::as_str).context("the response has no patch")?;
    let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch)?)?;
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch)?;
    Ok(object)
}

fn containers(pod: &Value) -> Vec<&str> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    containers.filter_map(|container| container.get("name")?.as_str()).collect()
}

async fn post(server: &Server, body: String) -> anyhow::Result<Value> {
    let exchange = async {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&server.ca)?)?;
        pillion_testkit::certificates::install_crypto_provider();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::from(server.address.ip());
        let stream = TcpStream::connect(server.address).await?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::post(PATH)
            .header("host", server.address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            if status != StatusCode::OK {
                bail!("the response is {status}: {}", String::from_utf8_lossy(&body));
            }
            Ok(serde_json::from_slice(&body)?)
        };
        // The request makes progress only while the connection is polled. If the connection fails first, returns its
        // error.
        tokio::select! {
            answer = answer => answer,
            Err(error) = connection => Err(error.into()),
        }
    };
    let answered = tokio::time::timeout(LIMIT, exchange).await;
    answered.context("no response in time").flatten().with_context(|| format!("POST {}", server.url()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patch_is_applied_and_containers_read() {
        let pod = json!({"spec": {"containers": [{"name": "app"}]}});
        let patch = STANDARD.encode(r#"[{"op":"add","path":"/spec/containers/1","value":{"name":"sidecar"}}]"#);
        let after = patched(&pod, &json!({"response": {"patch": patch}})).unwrap();
        assert_eq!(containers(&after), ["app", "sidecar"]);
        assert!(patched(&pod, &json!({"response": {"allowed": true}})).is_err());
    }
}
