//! The benchmark's baseline server: reads the whole body of a POST and returns a fixed JSON body of 4 KB. It uses the
//! same HTTPS stack as the webhook, so the difference in cost is the webhook's own work.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use bytes::Bytes;
use clap::Parser;
use pillion_testkit::https;
use tokio::net::TcpListener;

/// The webhook's body limit.
const BODY_LIMIT: usize = 7 * 1024 * 1024;
const ANSWER_BYTES: usize = 4096;

/// Answers every POST with a fixed JSON body of 4 KB: the baseline of the benchmark.
#[derive(Debug, Parser)]
struct Arguments {
    /// The address and the port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The certificate chain, PEM.
    #[arg(long, value_name = "FILE")]
    tls_cert: PathBuf,
    /// The certificate's private key, PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: PathBuf,
    /// Worker threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let tls = https::server_config(&read(&arguments.tls_cert)?, &read(&arguments.tls_key)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads.into())
        .enable_all()
        .build()
        .context("cannot build a Tokio runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen)
            .await
            .with_context(|| format!("cannot listen on {}", arguments.listen))?;
        // `block_on` runs its future on the main thread, so the server is spawned onto a worker thread.
        tokio::spawn(https::serve(listener, tls, app())).await.context("the server ended")
    })
}

fn app() -> Router {
    let answer = answer();
    let handler = move |body: Bytes| async move {
        // axum reads the whole body before it calls this function. Reading it is part of the measured cost.
        drop(body);
        ([("content-type", "application/json")], answer)
    };
    Router::new().fallback_service(post(handler).layer(DefaultBodyLimit::max(BODY_LIMIT)))
}

fn answer() -> Bytes {
    let (head, foot) = (r#"{"padding":""#, r#""}"#);
    let padding = "x".repeat(ANSWER_BYTES.saturating_sub(head.len() + foot.len()));
    Bytes::from(format!("{head}{padding}{foot}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_four_kilobytes_of_json() {
        assert_eq!(answer().len(), 4096);
        assert!(serde_json::from_slice::<serde_json::Value>(&answer()).is_ok());
    }
}
