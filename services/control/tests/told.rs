//! Tests the log lines about failed lookups. The test has a process of its own, since all threads share the log
//! subscriber.

#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use pillion_control::LiveNamespaces;
use pillion_control::informer::live::{FetchError, LookupMetrics};
use prometheus_client::registry::Registry;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_are_logged_with_their_count() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let told = move || String::from_utf8(std::mem::take(&mut *lines.0.lock().unwrap())).unwrap();

    let fetch = |_| std::future::ready(Err(FetchError::unavailable("no route"))).boxed();
    let live = LiveNamespaces::by(fetch, LookupMetrics::register(&mut Registry::default()));
    for number in 0..25 {
        live.get(&format!("n{number}")).await;
    }
    let first = told();
    assert_eq!(first.lines().count(), 1, "{first}");
    assert!(first.contains("key=n0") && first.contains("no route") && first.contains("suppressed=0"), "{first}");

    tokio::time::advance(Duration::from_secs(5)).await;
    for number in 30..32 {
        live.get(&format!("n{number}")).await;
    }
    let second = told();
    assert_eq!(second.lines().count(), 1, "{second}");
    assert!(second.contains("key=n30") && second.contains("suppressed=24"), "{second}");
}
