//! One tenant asks for far more than its share, over real sockets: the others notice next to nothing.
//!
//! Twenty quiet tenants send at a steady rate, whether they are answered or not; then one more sends as much as it can
//! over many connections. Phases with and without it take turns, and what counts is the median of the ratios of their
//! 99th percentiles: a machine that is busy with other things slows both. The server has one worker, so that its clients
//! have a core where there are two.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

#[cfg(test)]
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillion_webhook::overload::OverloadSettings;
use pillion_webhook::router::RequestSettings;
use pillion_webhook::serve::ServerSettings;
use serde_json::{Value, json};
use support::{Answer, App, Running, post, review};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::client::TlsStream;

const QUIET: usize = 20;
/// How many times a quiet tenant's requests the noisy one sends at least.
const TIMES: usize = 50;
/// How much of a worker's time the quiet ones need together.
const QUIET_LOAD: f64 = 0.2;
const ROUNDS: usize = 5;
const PHASE: Duration = Duration::from_millis(1500);
const SHED: &str = "pillion_admission_requests_total{endpoint=\"any\",outcome=\"shed\"}";

/// A profile that takes a while.
fn profile() -> Value {
    json!({
        "activation": "Always",
        "variables": [
            {"name": "ten", "expression": "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"},
            {"name": "hundred", "expression": "variables.ten.map(a, variables.ten.map(b, a * 10 + b)).flatten()"},
            {"name": "most", "expression": "variables.ten.map(a, variables.hundred.map(b, a * 100 + b)).flatten().size()"},
        ],
        "template": {"metadata": {"annotations": {"example.com/count": "${string(variables.most)}"}}},
    })
}

/// A server on a runtime of its own.
struct Server {
    app: App,
    running: Running,
    /// Ended without waiting: nobody needs what it still does.
    runtime: Option<Runtime>,
}

impl Server {
    fn start(overload: OverloadSettings) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut settings = RequestSettings::default();
        settings.overload = overload;
        let (app, running) = runtime.block_on(async {
            let app = App::with_all(settings, Some(&profile()), None, None);
            let running = Running::start(app.router.clone(), ServerSettings::default()).await;
            (app, running)
        });
        Self { app, running, runtime: Some(runtime) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn request(namespace: &str) -> String {
    post("/mutate?timeout=10s", &review(namespace).to_string())
}

/// A review of more than 3 MiB.
fn large_request(namespace: &str) -> String {
    let mut review = review(namespace);
    let env: Vec<_> = (0..300).map(|number| json!({"name": format!("E{number}"), "value": "x".repeat(10_500)})).collect();
    review["request"]["object"]["spec"]["containers"][0]["env"] = env.into();
    post("/mutate?timeout=10s", &review.to_string())
}

async fn ask(stream: &mut TlsStream<TcpStream>, text: &str) -> Answer {
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    Answer::read(stream).await
}

/// How long it takes to answer one request when there is no other.
async fn unloaded(server: &Running) -> Duration {
    let mut stream = server.http1().await;
    let text = request("quiet-0");
    let mut took = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        assert_eq!(ask(&mut stream, &text).await.status, 200);
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[50]
}

/// The quiet tenants, and the connections that they have.
struct Quiet {
    server: Arc<Server>,
    pools: Vec<Mutex<Vec<TlsStream<TcpStream>>>>,
    texts: Vec<String>,
    /// From one request of a tenant to its next.
    interval: Duration,
}

impl Quiet {
    /// Sends for the time of a phase, and returns how long each request took from the moment at which it was due.
    async fn run(self: &Arc<Self>) -> Vec<Duration> {
        let began = Instant::now();
        let mut tenants = JoinSet::new();
        for tenant in 0..QUIET {
            let quiet = Arc::clone(self);
            tenants.spawn(async move {
                let mut requests = JoinSet::new();
                // Not all in step, and not in a fixed order either.
                let mut due = began + quiet.interval.mul_f64(fraction(tenant));
                for number in 0.. {
                    if due >= began + PHASE {
                        break;
                    }
                    sleep_until(due).await;
                    let quiet = Arc::clone(&quiet);
                    requests.spawn(async move { quiet.one(tenant, due).await });
                    due += quiet_interval(&quiet_jitter(tenant, number), quiet_base(&requests));
                    due = due.max(began);
                }
                requests.join_all().await
            });
        }
        tenants.join_all().await.concat()
    }

    async fn one(&self, tenant: usize, due: Instant) -> Duration {
        let pooled = self.pools[tenant].lock().unwrap().pop();
        let mut stream = match pooled {
            Some(stream) => stream,
            None => self.server.running.http1().await,
        };
        let answer = ask(&mut stream, &self.texts[tenant]).await;
        let took = due.elapsed();
        assert_eq!(answer.status, 200, "a quiet tenant was turned away: {answer:?}");
        if !answer.closes() {
            self.pools[tenant].lock().unwrap().push(stream);
        }
        took
    }
}
