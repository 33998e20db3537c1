//! A substitute for the real binary in tests of the replica harness. It accepts the arguments of the harness, and
//! prints the environment variable `GREETING`. `/readyz` reports readiness, and `/metrics` returns the arguments except
//! `--metrics-listen`. It exits with code 5 on SIGTERM.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Parser)]
enum Arguments {
    Webhook {
        #[arg(long)]
        kubeconfig: PathBuf,
        #[arg(long)]
        tls_cert: PathBuf,
        #[arg(long)]
        tls_key: PathBuf,
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        metrics_listen: SocketAddr,
    },
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the output goes to the replica's log")]
async fn main() -> anyhow::Result<ExitCode> {
    let Arguments::Webhook { kubeconfig, tls_cert, tls_key, listen, metrics_listen } = Arguments::parse();
    println!("{}", std::env::var("GREETING").unwrap_or_default());
    let mut asked_to_end = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let said =
        format!("# listens on {listen}\n# {} {} {}\n", kubeconfig.display(), tls_cert.display(), tls_key.display());
    let app = Router::new().route("/readyz", get("ok")).route("/metrics", get(said));
    let listener = TcpListener::bind(metrics_listen).await.context("cannot listen")?;
    tokio::select! {
        served = axum::serve(listener, app) => served.context("cannot serve")?,
        _ = asked_to_end.recv() => {}
    }
    Ok(ExitCode::from(5))
}
