//! Tests the cache with a fake API server that can be unavailable, hang or refuse requests.

use std::sync::atomic::AtomicUsize;

use futures::FutureExt;
use prometheus_client::registry::Registry;

use super::*;

const BOUNDS: Bounds = Bounds {
    request_timeout: Duration::from_millis(240),
    concurrent: 4,
    a_second: None,
    a_second_per_client: 3,
    capacity: 1024 * 1024,
    found_for: Duration::from_secs(30),
    missing_for: Duration::from_secs(5),
    failed_for: Duration::from_secs(1),
    stale_for: MAX_STALE_DURATION,
    wanted: "a thing",
};

#[derive(Clone, Copy, Debug)]
struct TestKind;

impl LookupKind for TestKind {
    const NAME: &'static str = "pillion_things";
    const HELP: &'static str = "Things";
    const ALL: &'static [Self] = &[Self];

    fn label(self) -> Option<&'static str> {
        None
    }
}

/// The state of the fake API server.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The server responds at once. Objects whose names begin with `no` do not exist.
    Available,
    /// The server refuses connections.
    Unreachable,
    /// The server accepts connections and never responds.
    Hanging,
    /// The server denies all requests.
    Forbidding,
    /// Requests for names that begin with `broken` fail with a server error; all others succeed.
    PartlyFailing,
}

struct TestLookups {
    cache: LookupCache<Box<str>, usize, TestKind>,
    state: Arc<Mutex<State>>,
    /// Number of requests so far. For an existing object, the fake API server returns this number as the value, so that
    /// tests can tell which request a cached value came from.
    requests: Arc<AtomicUsize>,
    registry: Registry,
}

impl TestLookups {
    fn new() -> Self {
        let state = Arc::new(Mutex::new(State::Available));
        let requests = Arc::new(AtomicUsize::new(0));
        let (server_state, counter) = (Arc::clone(&state), Arc::clone(&requests));
        let fetch = move |name: Box<str>| {
            let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
            let state = *server_state.lock().unwrap();
            async move {
                match state {
                    State::Available => Ok((!name.starts_with("no")).then_some(number)),
                    State::Unreachable => Err(FetchError::unavailable("no route")),
                    State::Hanging => std::future::pending().await,
                    State::Forbidding => Err(FetchError::refused("forbidden")),
                    State::PartlyFailing if name.starts_with("broken") => {
                        let status = kube::core::Status { code: 503, ..kube::core::Status::default() };
                        Err(kube::Error::Api(status.boxed()).into())
                    }
                    State::PartlyFailing => Ok(Some(number)),
                }
            }
            .boxed()
        };
        let mut registry = Registry::default();
        let metrics = LookupMetrics::register(&mut registry);
        let cache = LookupCache::new(fetch, |_, _| 100, BOUNDS, metrics);
        Self { cache, state, requests, registry }
    }

    fn becomes(&self, state: State) {
        *self.state.lock().unwrap() = state;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the result as a string, and how long it took.
    async fn get(&self, name: &str) -> (String, Duration) {
        let began = Instant::now();
        let answer = self.cache.get(TestKind, name.into(), Caller::own(began + Duration::from_millis(250))).await;
        let text = match answer {
            Answer::Found(number) => format!("found {number}"),
            Answer::Missing => "missing".to_owned(),
            Answer::Failed(why) => format!("failed: {why}"),
            Answer::NotRequested => "not asked".to_owned(),
        };
        (text, began.elapsed())
    }

    async fn text(&self, name: &str) -> String {
        self.get(name).await.0
    }

    fn counted(&self, result: LookupResult) -> usize {
        let text = crate::labels::exposition(&self.registry);
        let series = format!("pillion_things_total{{result=\"{}\"}} ", result.as_str());
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
    }
}

/// Lets spawned tasks run without advancing time.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn entry_in_use_is_refreshed_in_background() {
    let world = TestLookups::new();
    assert_eq!(world.text("a").await, "found 1");
    pass(19).await;
    assert_eq!(world.text("a").await, "found 1");
    settle().await;
    assert_eq!(world.requests(), 1, "a fresh entry is not refreshed");
    pass(1).await;
    for _ in 0..10 {
        assert_eq!(world.text("a").await, "found 1");
    }
    settle().await;
    assert_eq!(
        (world.requests(), world.counted(LookupResult::Refreshed)),
        (2, 1),
        "an entry in its last third is refreshed once"
    );
    assert_eq!(world.text("a").await, "found 2");
    pass(30).await;
    assert_eq!(world.text("a").await, "found 3", "an unused entry is requested when it is needed");
    assert_eq!(world.counted(LookupResult::Found), 2);
}

#[tokio::test(start_paused = true)]
async fn api_outage_changes_no_cached_result() {
    for state in [State::Unreachable, State::Hanging] {
        let world = TestLookups::new();
        let names: Vec<_> =
            (0..20).map(|number| format!("{}-{number}", if number % 4 == 0 { "no" } else { "yes" })).collect();
        let mut before = Vec::new();
        for name in &names {
            before.push(world.text(name).await);
        }
        assert_eq!(before.iter().filter(|answer| *answer == "missing").count(), 5);
        world.becomes(state);
        let mut waited = 0;
        for minute in 0..30 {
            pass(60).await;
            for (name, before) in names.iter().zip(&before) {
                let (answer, took) = world.get(name).await;
                assert_eq!(answer, *before, "{state:?}, minute {minute}, {name}");
                assert!(took <= Duration::from_millis(250), "{took:?}");
                waited += usize::from(took > Duration::ZERO);
                settle().await;
            }
        }
        assert!(waited <= 30, "{state:?}: at most one pod waits per minute: {waited}");
        assert_eq!(world.counted(LookupResult::Stale), 600);
        assert!(world.text("yes-new").await.starts_with("failed: "), "an object that was never cached is unavailable");

        world.becomes(State::Available);
        pass(10).await;
        for name in &names {
            world.get(name).await;
            settle().await;
        }
        let stale = world.counted(LookupResult::Stale);
        assert_ne!(world.text("yes-1").await, before[1], "results are fresh again");
        assert_eq!(world.counted(LookupResult::Stale), stale);
    }
}

#[tokio::test(start_paused = true)]
async fn stale_entry_expires_sooner_after_refusal() {
    let world = TestLookups::new();
    world.get("a").await;
    world.get("b").await;
    world.becomes(State::Forbidding);
    pass(31).await;
    assert_eq!(world.text("b").await, "found 2", "a refusal may be temporary, so the entry is served");
    pass(270).await;
    assert_eq!(world.text("b").await, "failed: the API server returned an error");
    world.becomes(State::Unreachable);
    pass(3230).await;
    assert_eq!(world.text("a").await, "found 1");
    pass(100).await;
    assert_eq!(world.text("a").await, "failed: the API server returned an error");
    assert_eq!(
        world.text("b").await,
        "failed: the API server returned an error",
        "a refused entry is no longer served"
    );
}

#[tokio::test(start_paused = true)]
async fn failure_of_one_lookup_leaves_others_fresh() {
    let world = TestLookups::new();
    assert_eq!([world.text("broken").await, world.text("a").await], ["found 1", "found 2"]);
    world.becomes(State::PartlyFailing);
    pass(2400).await;
    assert_eq!(world.text("broken").await, "found 1", "the stale entry is served");
    assert_eq!(world.text("a").await, "found 4", "other objects are requested");
}

#[tokio::test(start_paused = true)]
async fn callers_of_expired_entry_share_one_request() {
    let world = TestLookups::new();
    world.get("a").await;
    pass(40).await;
    let answers = futures::future::join_all((0..50).map(|_| world.text("a"))).await;
    assert!(answers.iter().all(|answer| answer == "found 2"), "{answers:?}");
    assert_eq!(world.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn busy_tenant_leaves_permits_to_others() {
    let order = Arc::<Mutex<Vec<Box<str>>>>::default();
    let shared = Arc::clone(&order);
    let fetch = move |name: Box<str>| {
        shared.lock().unwrap().push(name);
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(Some(1))
        }
        .boxed()
    };
    let metrics = LookupMetrics::register(&mut Registry::default());
    let cache = LookupCache::new(fetch, |_, _| 100, Bounds { concurrent: 8, ..BOUNDS }, metrics);
    let get = async |name: String, tenant: &str| {
        let own = Caller::own(Instant::now() + Duration::from_millis(240));
        let caller = Caller { tenant: Some(tenant), ..own };
        cache.get(TestKind, name.into(), caller).await
    };
    let noisy = futures::future::join_all((0..40).map(|number| get(format!("noisy-{number}"), "noisy")));
    let quiet = get("quiet".to_owned(), "quiet");
    let (_, quiet) = futures::join!(noisy, quiet);
    assert!(matches!(quiet, Answer::Found(_)));
    let at = order.lock().unwrap().iter().position(|name| &**name == "quiet").unwrap();
    assert!(at <= 2, "{at} requests of the noisy tenant were sent before");
    assert!(cache.fetcher.tenants.permits.lock().unwrap().values().all(|permits| permits.strong_count() == 0));
}
