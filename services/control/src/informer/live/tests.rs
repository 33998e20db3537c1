//! Tests lookups of namespaces with a fake API server.

use std::sync::atomic::{AtomicUsize, Ordering};

use pillion_api::names::FailureMode;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;

use super::*;
use crate::guard::log_capture::LogCapture;

const PER_SECOND: usize = 40;
const CONCURRENT: usize = 8;

/// Lookups with a fake fetcher, and their metrics.
struct TestLookups {
    live: LiveNamespaces,
    registry: Registry,
    requests: Arc<AtomicUsize>,
}

impl TestLookups {
    /// Looks up a namespace; `None` if it does not exist or the lookup failed.
    async fn get(&self, name: &str) -> Option<Arc<Namespace>> {
        match self.live.get(name).await {
            Answer::Found(namespace) => Some(namespace),
            Answer::Missing | Answer::Failed(_) | Answer::NotRequested => None,
        }
    }

    fn new<F>(answer: impl Fn(Box<str>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Fetched> + Send + 'static,
    {
        let mut registry = Registry::default();
        let metrics = LookupMetrics::register(&mut registry);
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        let fetch = move |name| {
            counter.fetch_add(1, Ordering::SeqCst);
            answer(name).boxed()
        };
        Self { live: LiveNamespaces::by(fetch, metrics), registry, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of lookups with this result.
    fn counted(&self, result: LookupResult) -> usize {
        let text = crate::labels::exposition(&self.registry);
        let series = format!("pillion_webhook_namespace_lookups_total{{result=\"{}\"}} ", result.as_str());
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
    }
}

fn not_found() -> std::future::Ready<Fetched> {
    std::future::ready(Ok(None))
}

#[tokio::test]
async fn concurrent_lookups_share_one_request() {
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let world = TestLookups::new(move |_| {
        let gate = Arc::clone(&closed);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(Some(Namespace::new([("team", "red")], [])))
        }
    });
    let waiting = futures::future::join_all((0..50).map(|_| world.get("shop")));
    let open = async { gate.add_permits(1) };
    let (answers, ()) = futures::join!(waiting, open);
    assert!(answers.iter().flatten().all(|namespace| namespace.label("team") == Some("red")));
    assert_eq!((answers.len(), world.requests()), (50, 1));

    assert!(world.get("shop").await.is_some());
    assert_eq!(world.requests(), 1, "the result is cached");
    assert_eq!((world.counted(LookupResult::Found), world.counted(LookupResult::Hit)), (1, 50));
}

#[tokio::test]
async fn invalid_namespace_name_is_not_looked_up() {
    let world = TestLookups::new(|_| not_found());
    let long = "a".repeat(64);
    let names = ["", "-a", "a-", "A", "a.b", "a/../../secrets", "..", "a%2fb", "a?b", "a#b", "a b", "é", "a\n", &long];
    for name in names {
        assert_eq!(world.get(name).await, None);
        assert_eq!(world.requests(), 0, "{name:?}");
    }
    assert_eq!(world.counted(LookupResult::Invalid), names.len());
    let long = "a".repeat(63);
    for (index, name) in ["a", "0", "a-0", "kube-system", &long].into_iter().enumerate() {
        world.get(name).await;
        assert_eq!(world.requests(), index + 1, "{name:?}");
    }
    assert_eq!(world.counted(LookupResult::Missing), 5);
}

#[tokio::test(start_paused = true)]
async fn at_most_forty_namespace_requests_per_second() {
    let world = TestLookups::new(|_| not_found());
    for number in 0..60 {
        assert_eq!(world.get(&format!("n{number}")).await, None);
    }
    assert_eq!((world.requests(), world.counted(LookupResult::Refused)), (PER_SECOND, 20));
    tokio::time::advance(Duration::from_millis(999)).await;
    world.get("n50").await;
    assert_eq!(world.requests(), PER_SECOND, "the second has not passed yet");
    tokio::time::advance(Duration::from_millis(1)).await;
    for number in 40..100 {
        world.get(&format!("n{number}")).await;
    }
    assert_eq!(world.requests(), 2 * PER_SECOND, "refused names are looked up again");
}

#[tokio::test(start_paused = true)]
async fn client_rate_limit_spares_other_clients() {
    let world = TestLookups::new(|_| not_found());
    let (greedy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    for number in 0..100 {
        world.live.get_for(&format!("n{number}"), greedy, None).await;
    }
    assert_eq!((world.requests(), world.counted(LookupResult::Refused)), (10, 90));
    assert!(matches!(world.live.get_for("n50", greedy, None).await, Answer::Failed(_)));
    assert_eq!(world.live.get_for("n50", other, None).await, Answer::Missing);
    assert_eq!(world.live.get_for("n50", greedy, None).await, Answer::Missing, "a cached result needs no request");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(world.live.get_for("new", greedy, None).await, Answer::Missing);
}

#[tokio::test(start_paused = true)]
async fn older_result_is_requested_again() {
    let failure_mode = Arc::new(std::sync::Mutex::new(Ok(None)));
    let shared = Arc::clone(&failure_mode);
    let world = TestLookups::new(move |_| {
        let failure_mode = *shared.lock().unwrap();
        let found =
            failure_mode.map(|failure_mode| Some(failure_mode.map_or_else(Namespace::default, Namespace::opted_in)));
        std::future::ready(found.map_err(|()| FetchError::unavailable("no route")))
    });
    let client = IpAddr::from([10, 0, 0, 1]);
    let get = async |after| match world.live.get_for("shop", client, after).await {
        Answer::Found(namespace) => Ok(namespace.failure_mode()),
        Answer::Failed(_) => Err("failed"),
        Answer::Missing | Answer::NotRequested => Err("missing"),
    };
    assert_eq!(get(None).await, Ok(None));
    tokio::time::advance(Duration::from_secs(2)).await;
    let later = Instant::now();
    *failure_mode.lock().unwrap() = Ok(Some(FailureMode::Required));
    assert_eq!((get(None).await, world.requests()), (Ok(None), 1), "the result is cached");
    assert_eq!((get(Some(later)).await, world.requests()), (Ok(Some(FailureMode::Required)), 2));
    assert_eq!(
        (get(Some(later)).await, world.requests()),
        (Ok(Some(FailureMode::Required)), 2),
        "the cached result is new enough"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    *failure_mode.lock().unwrap() = Err(());
    assert_eq!(get(Some(Instant::now())).await, Err("failed"), "an older result is not used");
    assert_eq!(get(None).await, Ok(Some(FailureMode::Required)), "other callers get the older result");
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_concurrent_namespace_requests() {
    let waiting = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&waiting);
    let world = TestLookups::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending()
    });
    let began = Instant::now();
    let names: Vec<_> = (0..PER_SECOND).map(|number| format!("n{number}")).collect();
    let all = futures::future::join_all(names.iter().map(|name| world.get(name)));
    let look = async {
        tokio::time::sleep(ANSWER_LIMIT / 2).await;
        waiting.load(Ordering::SeqCst)
    };
    let (answers, concurrent) = futures::join!(all, look);
    assert_eq!(concurrent, CONCURRENT);
    assert!(answers.iter().all(Option::is_none));
    assert!(began.elapsed() < ANSWER_LIMIT * 2, "the limit includes the wait for a permit: {:?}", began.elapsed());
    assert_eq!(world.counted(LookupResult::TimedOut), PER_SECOND);
}

#[tokio::test(start_paused = true)]
async fn failed_lookup_is_cached_briefly() {
    let world = TestLookups::new(|_| std::future::ready(Err(FetchError::unavailable("no route"))));
    assert_eq!(world.get("shop").await, None);
    assert_eq!(world.counted(LookupResult::Failed), 1);
    tokio::time::advance(Duration::from_millis(999)).await;
    assert_eq!((world.get("shop").await, world.requests()), (None, 1));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!((world.get("shop").await, world.requests()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn found_namespace_survives_long_api_outage() {
    let began = Instant::now();
    let world = TestLookups::new(move |name| async move {
        if began.elapsed() > Duration::from_secs(5) {
            return Err(FetchError::unavailable("no route"));
        }
        Ok((&*name == "shop").then(|| Namespace::new([("team", "red")], [])))
    });
    for minute in 0..30 {
        let shop = world.get("shop").await;
        assert_eq!(shop.as_ref().and_then(|shop| shop.label("team")), Some("red"), "minute {minute}");
        assert_eq!(world.get("nowhere").await, None);
        tokio::time::advance(Duration::from_mins(1)).await;
    }
    assert_eq!(world.counted(LookupResult::Stale), 2 * 29);
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_are_logged_with_their_count() {
    let log = LogCapture::start();
    let fetch = |_| std::future::ready(Err(FetchError::unavailable("no route"))).boxed();
    let live = LiveNamespaces::by(fetch, LookupMetrics::register(&mut Registry::default()));
    for number in 0..25 {
        live.get(&format!("n{number}")).await;
    }
    let first = log.take();
    assert_eq!(first.lines().count(), 1, "{first}");
    assert!(first.contains("key=n0") && first.contains("no route") && first.contains("suppressed=0"), "{first}");

    tokio::time::advance(Duration::from_secs(5)).await;
    for number in 30..32 {
        live.get(&format!("n{number}")).await;
    }
    let second = log.take();
    assert_eq!(second.lines().count(), 1, "{second}");
    assert!(second.contains("key=n30") && second.contains("suppressed=24"), "{second}");
}
