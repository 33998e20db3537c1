//! The memory of bodies in flight: clients that send much and then pause do not take all of it, and small reviews are
//! answered meanwhile.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking, also in its helpers")]

use std::time::Duration;

use crate::support::{Answer, App, Running, post, review_text, until};
use futures::future::join_all;
use pillion_webhook::admission::RequestSettings;
use pillion_webhook::serve::ServerSettings;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const BUDGET: usize = 8 * 1024 * 1024;
const LARGE: usize = 2 * 1024 * 1024;
const CLIENTS: usize = 24;
const SHED: &str = "pillion_admission_requests_total{endpoint=\"any\",outcome=\"shed\"}";

fn app() -> App {
    let mut settings = RequestSettings::default();
    settings.body_budget = BUDGET;
    // Nobody's time is to run out on a machine that is slow.
    settings.body_timeout = Duration::from_mins(1);
    App::with(settings, None)
}

fn held(app: &App) -> f64 {
    app.metric("pillion_body_bytes").unwrap()
}

#[expect(clippy::cast_precision_loss, reason = "small")]
const fn number(count: usize) -> f64 {
    count as f64
}

/// Says that it sends so many bytes, and sends a part of them.
async fn begin(server: &Running, declared: usize, sent: usize) -> TlsStream<TcpStream> {
    let mut client = server.http1().await;
    let head = format!(
        "POST /mutate?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {declared}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    // Whoever is refused may see the connection end.
    let _ = client.write_all(&vec![b' '; sent]).await;
    let _ = client.flush().await;
    client
}

#[tokio::test]
async fn what_is_declared_takes_nothing_before_it_comes() {
    let app = app();
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    let mut clients = join_all((0..CLIENTS).map(|_| begin(&server, LARGE, 1000))).await;
    until("the first piece of each was read", || held(&app) >= number(CLIENTS * 1000)).await;
    for client in &mut clients {
        client.write_all(&[b' '; 1000]).await.unwrap();
    }
    until("the second piece of each was read", || held(&app) >= number(CLIENTS * 2000)).await;
    assert!(held(&app) <= number(CLIENTS * 16 * 1024), "{}", held(&app));
    drop(clients);
    until("all is given back", || held(&app) < 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_clients_never_take_more_than_the_budget_and_small_reviews_are_answered() {
    let app = app();
    let server = Running::start(app.router.clone(), ServerSettings::default()).await;
    // Looked at all the time: no moment may be beyond the budget.
    let mut paused = Vec::new();
    for _ in 0..CLIENTS {
        paused.push(begin(&server, LARGE, LARGE - 1).await);
        assert!(held(&app) <= number(BUDGET), "{}", held(&app));
    }
    until("some are refused", || app.metric(SHED) >= Some(number(CLIENTS - BUDGET / LARGE))).await;
    assert!(held(&app) <= number(BUDGET) && held(&app) >= number(BUDGET / 2), "{}", held(&app));

    for _ in 0..10 {
        let mut client = server.http1().await;
        client.write_all(post("/mutate", &review_text()).as_bytes()).await.unwrap();
        assert_eq!(Answer::read(&mut client).await.status, 200);
    }

    // Who was refused was told so, and what to do.
    let mut refused = 0;
    let mut waiting = Vec::new();
    for mut client in paused {
        match tokio::time::timeout(Duration::from_secs(1), Answer::read(&mut client)).await {
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                assert!(answer.closes() && answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
                refused += 1;
            }
            Err(_) => waiting.push(client),
        }
    }
    assert_eq!(app.metric(SHED), Some(number(refused)));
    assert!(waiting.len() >= 2 && waiting.len() <= BUDGET / LARGE, "{}", waiting.len());

    // Who was not is answered when the last byte has come; and then all is as it was.
    for client in &mut waiting {
        client.write_all(b" ").await.unwrap();
        assert_eq!(Answer::read(client).await.status, 400, "it is no review");
    }
    until("all is given back", || held(&app) < 1.0).await;
    assert_eq!(app.metric(SHED), Some(number(refused)));
}
