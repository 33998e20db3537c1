//! Tests over real sockets that a tenant with far more than its share of requests hardly delays the other tenants.
//!
//! Twenty quiet tenants send requests at a steady rate, whether or not earlier ones are answered. In alternate phases,
//! one more tenant (the noisy tenant) sends as much as it can over many connections. For each pair of phases, the test
//! computes the ratio of the 99th percentiles with and without the noisy tenant, and checks the median of these ratios.
//! The server has one worker. If the machine has at least two cores, no client uses the worker's core.
//!
//! On a busy machine, times are meaningless, so the test asks the kernel how long the worker waits for a core. Two
//! measures are valid on any machine: how many requests of the noisy tenant were decided before earlier requests of
//! others, and, for large pods, how much processor time the worker used while a quiet tenant's request waited.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::support::{App, Running, ask, post, review};
use axum::extract::Request;
use axum::middleware::{self, Next};
use nix::time::ClockId;
use nix::unistd::{Pid, gettid};
use pillion_api::names::FailureMode;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_webhook::overload::OverloadSettings;
use pillion_webhook::serve::ServerSettings;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::client::TlsStream;

const QUIET: usize = 20;
const NOISY: &str = "noisy";
/// The minimum ratio between the number of requests of the noisy tenant and that of one quiet tenant.
const TIMES: usize = 50;
/// The share of a worker's time that all quiet tenants use together.
const QUIET_LOAD: f64 = 0.12;
const ROUNDS: usize = 5;
const PHASE: Duration = Duration::from_millis(1500);
/// How many requests of the noisy tenant may be decided before an earlier request of a quiet tenant, at the 99th
/// percentile. At least the decision in progress, and one visit to the noisy tenant in each round of the queue, come
/// first. The typical result is five. On a busy machine it is ten: after the quiet tenant's client has read the
/// counter, it may wait for a core before it writes its request.
const OVERTAKEN: f64 = 16.0;
/// As [`OVERTAKEN`], for requests of the noisy tenant whose decisions take milliseconds.
const OVERTAKEN_BY_COSTLY: f64 = 5.0;
/// The minimum ratio between the processor times of a costly request and of a quiet tenant's request.
const COSTLY: u32 = 10;
/// How long the server's thread may wait for a core each time it wakes under a low load. If it waits longer, measured
/// times are meaningless. The kernel wakes a thread within microseconds, but waiting for another thread takes
/// milliseconds.
const BUSY_MACHINE: Duration = Duration::from_micros(100);
/// The maximum number of measurements. Other programs can delay a server, but rarely in each measurement.
const TRIES: usize = 3;

/// Returns a profile that is slow to evaluate.
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

/// Returns profiles that use up the steps that all profiles of a namespace may use for one request.
fn costly_profiles() -> Vec<Value> {
    let numbers = "lists.range(1000).map(a, lists.range(1000).map(b, a * b).sum()).sum()";
    let template = json!({"metadata": {"annotations": {"example.com/sum": format!("${{string({numbers})}}")}}});
    vec![json!({"activation": "Always", "template": template}); 4]
}

/// Returns a snapshot with all tenants, [`profile`] for all of them, and further profiles of the noisy tenant.
fn snapshot(noisy: &[Value]) -> Snapshot {
    let compiled = |name: &ProfileName, spec: &Value| {
        Arc::new(compile(name, &serde_json::from_value(spec.clone()).unwrap()).unwrap())
    };
    let own = noisy.iter().enumerate();
    let own = own.map(|(number, spec)| compiled(&ProfileName::namespaced(NOISY, format!("own-{number}")), spec));
    let profiles = ProfileSet::new(own.chain([compiled(&ProfileName::cluster("profile"), &profile())]));
    let names = (0..QUIET).map(|tenant| format!("quiet-{tenant}")).chain([NOISY.to_owned()]);
    names.fold(Snapshot::new(profiles), |snapshot, name| {
        snapshot.with_namespace(&name, Some(Namespace::opted_in(FailureMode::Enabled)))
    })
}

/// The core on which a thread runs.
#[derive(Clone, Copy)]
enum Core {
    /// The first core, which no client uses.
    Worker,
    /// Any other core.
    Others,
}

/// Binds the calling thread to the first core or to all others, if there are at least two cores. Without this, the
/// kernel may put the worker on the core of a busy thread, and the test would measure the worker's wait for the core as
/// unfairness.
fn run_on(core: Core) {
    // This reads the cores only once, because new threads inherit the binding of the thread that starts them.
    static ALLOWED: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let all = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).collect()
    });
    if let [first, others @ ..] = &ALLOWED[..]
        && !others.is_empty()
    {
        let mut chosen = CpuSet::new();
        match core {
            Core::Worker => chosen.set(*first),
            Core::Others => others.iter().for_each(|number| chosen.set(*number)),
        }
        sched_setaffinity(None, &chosen).unwrap();
    }
}

/// Returns how much processor time a thread of this process has used.
fn processor_time(thread: Pid) -> Duration {
    // Linux encodes the clock of a thread as the inverted thread id and these bits, which mean a thread's clock and
    // scheduler time.
    let clock = ClockId::from_raw((!thread.as_raw() << 3) | 0b110);
    clock.now().unwrap().into()
}

/// A server with its own runtime.
struct Server {
    app: App,
    running: Running,
    /// The number of decided requests of the noisy tenant. Each response contains it as a header.
    answered: Arc<AtomicU64>,
    /// The worker thread.
    worker: Arc<OnceLock<Pid>>,
    /// The server's runtime. It is shut down without waiting, because its remaining work is not needed.
    runtime: Option<Runtime>,
}

impl Server {
    fn start(overload: OverloadSettings, snapshot: Snapshot) -> Self {
        let worker = Arc::new(OnceLock::new());
        let thread = Arc::clone(&worker);
        // The runtime starts its worker first. Any later thread of the runtime is for blocking work.
        let on_start = move || {
            let mut is_worker = false;
            thread.get_or_init(|| {
                is_worker = true;
                gettid()
            });
            run_on(if is_worker { Core::Worker } else { Core::Others });
        };
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().on_thread_start(on_start).build().unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&answered);
        let (app, running) = runtime.block_on(async {
            let app = App::of(snapshot, |admission| admission.settings.overload = overload);
            let numbering = middleware::from_fn(move |request: Request, next: Next| {
                let is_noisy = request.uri().query().is_some_and(|query| query.ends_with(NOISY));
                let counter = Arc::clone(&counter);
                async move {
                    let mut answer = next.run(request).await;
                    let is_decided = answer.status() == 200;
                    counter.fetch_add(u64::from(is_noisy && is_decided), Ordering::Relaxed);
                    answer.headers_mut().insert("x-number", counter.load(Ordering::Relaxed).into());
                    let used = processor_time(gettid()).as_nanos();
                    answer.headers_mut().insert("x-worked", u64::try_from(used).unwrap().into());
                    answer
                }
            });
            let numbered = app.router.clone().layer(numbering);
            let running = Running::start(numbered, ServerSettings::default()).await;
            (app, running)
        });
        Self { app, running, answered, worker, runtime: Some(runtime) }
    }

    /// Returns the time in nanoseconds for which the worker was runnable but not running, and the number of times that
    /// it has run.
    fn waits(&self) -> [u64; 2] {
        let path = format!("/proc/self/task/{}/schedstat", self.worker.get().unwrap());
        let text = std::fs::read_to_string(path).unwrap();
        // The first number is the time for which the thread has run.
        let mut numbers = text.trim().split(' ').skip(1).map(|number| number.parse().unwrap());
        [(); 2].map(|()| numbers.next().unwrap())
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
    post(&format!("/mutate?timeout=10s&{namespace}"), &review(namespace).to_string())
}

/// Returns a review with this number of environment variables, each of more than 10 KiB.
fn request_with_env(namespace: &str, count: usize) -> String {
    let mut review = review(namespace);
    let env: Vec<_> =
        (0..count).map(|number| json!({"name": format!("E{number}"), "value": "x".repeat(10_500)})).collect();
    review["request"]["object"]["spec"]["containers"][0]["env"] = env.into();
    post(&format!("/mutate?timeout=10s&{namespace}"), &review.to_string())
}

/// The median times of a request while no other request is in flight.
#[derive(Clone, Copy, Debug)]
struct Unloaded {
    took: Duration,
    /// The processor time that the worker used.
    worked: Duration,
}

impl Unloaded {
    async fn measure(server: &Server, text: &str) -> Self {
        let mut stream = server.running.http1().await;
        let thread = *server.worker.get().unwrap();
        let (mut took, mut worked) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            let (began, before) = (Instant::now(), processor_time(thread));
            let answer = ask(&mut stream, text).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            took.push(began.elapsed());
            worked.push(Duration::from_nanos(answer.number("x-worked")).saturating_sub(before));
        }
        took.sort_unstable();
        worked.sort_unstable();
        Self { took: took[25], worked: worked[25] }
    }
}

/// The measurements of one request of a quiet tenant.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// Time from the planned start to the response.
    took: Duration,
    /// The processor time that the worker used from the start of this request to its decision, for any requests.
    worked: Duration,
    /// The number of requests of the noisy tenant that were decided in the same time.
    overtaken: u64,
}

/// The quiet tenants and their connections.
struct QuietTenants {
    server: Arc<Server>,
    pools: Vec<Mutex<Vec<TlsStream<TcpStream>>>>,
    texts: Vec<String>,
    /// The number of requests that a tenant sends at the same time.
    burst: u32,
    /// The average time between two bursts of a tenant.
    interval: Duration,
}

impl QuietTenants {
    /// Sends requests for the duration of a phase.
    async fn run(self: &Arc<Self>) -> Vec<Measurement> {
        let began = Instant::now();
        let mut tenants = JoinSet::new();
        for tenant in 0..QUIET {
            let quiet = Arc::clone(self);
            tenants.spawn(async move {
                let mut requests = JoinSet::new();
                let mut random = Random(0x9e37_79b9 + u64::try_from(tenant).unwrap());
                let mut due = began + quiet.interval.mul_f64(random.next());
                while due < began + PHASE {
                    sleep_until(due).await;
                    for _ in 0..quiet.burst {
                        let sender = Arc::clone(&quiet);
                        requests.spawn(async move { sender.send(tenant, due).await });
                    }
                    // The interval is random, so that the tenants do not send at the same times.
                    due += quiet.interval.mul_f64(0.5 + random.next());
                }
                requests.join_all().await
            });
        }
        tenants.join_all().await.concat()
    }

    async fn send(&self, tenant: usize, due: Instant) -> Measurement {
        let pooled = self.pools[tenant].lock().unwrap().pop();
        let mut stream = match pooled {
            Some(stream) => stream,
            None => self.server.running.http1().await,
        };
        let thread = *self.server.worker.get().unwrap();
        let before = (self.server.answered.load(Ordering::Relaxed), processor_time(thread));
        let answer = ask(&mut stream, &self.texts[tenant]).await;
        // The server reports the worker's processor time at the decision, because this thread may read the response
        // late.
        let worked = Duration::from_nanos(answer.number("x-worked")).saturating_sub(before.1);
        let measurement = Measurement { took: due.elapsed(), worked, overtaken: answer.number("x-number") - before.0 };
        assert_eq!(answer.status, 200, "a request of a quiet tenant was shed: {answer:?}");
        if !answer.closes() {
            self.pools[tenant].lock().unwrap().push(stream);
        }
        measurement
    }
}

/// Pseudorandom numbers from 0 to 1, which are the same in each run.
struct Random(u64);

impl Random {
    #[expect(clippy::cast_precision_loss, reason = "an f64 holds 24 bits exactly")]
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// The behaviour of the quiet tenants.
struct Quiet {
    /// Returns the request of the tenant of this name.
    text: fn(&str) -> String,
    /// The number of requests that a tenant sends at the same time.
    burst: u32,
}

const ONE_SMALL: Quiet = Quiet { text: request, burst: 1 };

/// The behaviour of the noisy tenant.
struct Noise {
    /// The profiles in the tenant's namespace.
    profiles: Vec<Value>,
    connections: usize,
    /// The request that the tenant repeats.
    text: String,
    /// The increase of the niceness of the tenant's thread. A real noisy tenant has its own machine. Here, creating
    /// megabytes of requests takes processor time from the quiet tenants' client, which the test would measure as a
    /// delay by the server.
    nice_increment: i32,
}

impl Noise {
    /// Creates the runtime of the noisy tenant, with one thread.
    fn runtime(&self) -> Runtime {
        let increment = self.nice_increment;
        let lower_priority = move || {
            rustix::process::nice(increment).unwrap();
            run_on(Core::Others);
        };
        Builder::new_multi_thread().worker_threads(1).enable_all().on_thread_start(lower_priority).build().unwrap()
    }
}

/// Runs one connection of the noisy tenant: sends the next request after each response, and retries shed requests as
/// the API server does.
async fn noise(server: Arc<Server>, text: Arc<str>, sent: Arc<AtomicUsize>, shed: Arc<AtomicUsize>) {
    loop {
        let mut stream = server.running.http1().await;
        loop {
            sent.fetch_add(1, Ordering::Relaxed);
            let answer = ask(&mut stream, &*text).await;
            if answer.status == 503 {
                shed.fetch_add(1, Ordering::Relaxed);
                assert!(answer.closes() && answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
                sleep(Duration::from_secs(1)).await;
            } else {
                assert_eq!(answer.status, 200, "{answer:?}");
            }
            if answer.closes() {
                break;
            }
        }
    }
}

/// The 99th percentiles over several requests.
#[derive(Clone, Copy, Debug)]
struct P99 {
    took: Duration,
    worked: Duration,
    overtaken: u64,
}

impl P99 {
    fn of(measurements: &[Measurement]) -> Self {
        fn of<T: Copy + Ord>(measurements: &[Measurement], field: impl Fn(&Measurement) -> T) -> T {
            let mut values: Vec<_> = measurements.iter().map(field).collect();
            values.sort_unstable();
            values[values.len() * 99 / 100]
        }
        Self {
            took: of(measurements, |one| one.took),
            worked: of(measurements, |one| one.worked),
            overtaken: of(measurements, |one| one.overtaken),
        }
    }
}

/// One round of two phases: the quiet tenants alone, and then together with the noisy tenant.
#[derive(Debug)]
struct Round {
    alone: P99,
    together: P99,
    /// How long the worker waited for a core on average each time it ran, because of other programs. Measured in the
    /// phase without the noisy tenant.
    core_wait: Duration,
}

/// The measurements for one kind of noisy tenant.
#[derive(Debug)]
struct Results {
    rounds: Vec<Round>,
    /// The cost of one request of a quiet tenant, and of the noisy tenant.
    unloaded: [Unloaded; 2],
    /// The number of requests that the noisy tenant sent while the quiet tenants were measured. `shed` is the number of
    /// its requests that were shed at any time.
    sent: usize,
    shed: usize,
    /// The number of requests of one quiet tenant in the same phases.
    quiet_sent: usize,
}

impl Results {
    /// Returns the factor by which the noisy tenant increases the time of the quiet tenants' requests. Uses only rounds
    /// in which the worker hardly waited for a core, because other programs can delay it too. `None`: there is no such
    /// round.
    fn slower(&self) -> Option<f64> {
        let free = self.rounds.iter().filter(|round| round.core_wait < BUSY_MACHINE);
        median(free.map(|round| round.together.took.as_secs_f64() / round.alone.took.as_secs_f64()))
    }

    /// Returns the factor by which the noisy tenant increases the processor time that the worker uses while a quiet
    /// tenant's request waits. Unlike [`Results::slower`], this does not depend on other programs on the machine.
    fn more_work(&self) -> f64 {
        let ratio = |round: &Round| round.together.worked.as_secs_f64() / round.alone.worked.as_secs_f64();
        median(self.rounds.iter().map(ratio)).unwrap()
    }

    /// Returns how many of the noisy tenant's requests overtook a request of a quiet tenant, at the 99th percentile:
    /// the median of the rounds.
    fn overtaken(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an f64 holds small counts exactly")]
        median(self.rounds.iter().map(|round| round.together.overtaken as f64)).unwrap()
    }

    /// Returns whether the noisy tenant multiplies the quiet tenants' 99th percentile by at most this factor. Also
    /// returns true if no round can be used.
    fn slows_at_most(&self, times: f64) -> bool {
        self.slower().is_none_or(|slower| slower <= times)
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn measure(overload: OverloadSettings, rounds: usize, noisy: Noise, quiet: &Quiet) -> Results {
    // Only one measurement runs at a time, even if there are several test threads.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run_on(Core::Others);
    let server = Arc::new(Server::start(overload, snapshot(&noisy.profiles)));
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    let noisy_runtime = noisy.runtime();
    let noisy_clients = noisy_runtime.handle().clone();
    let results = clients.block_on(async move {
        let pools = (0..QUIET).map(|_| Mutex::default()).collect();
        let texts: Vec<_> = (0..QUIET).map(|tenant| (quiet.text)(&format!("quiet-{tenant}"))).collect();
        let unloaded = [Unloaded::measure(&server, &texts[0]).await, Unloaded::measure(&server, &noisy.text).await];
        let tenants = f64::from(u32::try_from(QUIET).unwrap());
        let interval = unloaded[0].took.mul_f64(f64::from(quiet.burst) * tenants / QUIET_LOAD);
        let server_of_quiet = Arc::clone(&server);
        let quiet = Arc::new(QuietTenants { server: server_of_quiet, pools, texts, burst: quiet.burst, interval });
        let text: Arc<str> = noisy.text.into();
        let (sent, shed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut results = Results { rounds: Vec::new(), unloaded, sent: 0, shed: 0, quiet_sent: 0 };
        // The first run opens the connections of the quiet tenants.
        quiet.run().await;
        for _ in 0..rounds {
            let before = server.waits();
            let alone = P99::of(&quiet.run().await);
            let after = server.waits();
            let core_wait = Duration::from_nanos((after[0] - before[0]) / (after[1] - before[1]).max(1));
            let mut tenant = JoinSet::new();
            for _ in 0..noisy.connections {
                let connection = noise(Arc::clone(&server), Arc::clone(&text), Arc::clone(&sent), Arc::clone(&shed));
                tenant.spawn_on(connection, &noisy_clients);
            }
            // In this time, the noisy tenant opens its connections.
            sleep(PHASE / 3).await;
            let before = sent.load(Ordering::Relaxed);
            let measurements = quiet.run().await;
            results.sent += sent.load(Ordering::Relaxed) - before;
            results.quiet_sent += measurements.len() / QUIET;
            results.rounds.push(Round { alone, together: P99::of(&measurements), core_wait });
            // If a task panicked, the assertion fails.
            tenant.abort_all();
            while let Some(ended) = tenant.join_next().await {
                assert!(ended.unwrap_err().is_cancelled());
            }
            // The noisy tenant's last requests must end before the next round.
            crate::support::until("nothing is in flight", || {
                server.app.metric("pillion_webhook_inflight_requests") == Some(0.0)
            })
            .await;
        }
        results.shed = shed.load(Ordering::Relaxed);
        println!(
            "overtaken by {}, {:.2} times the work, {:?} times slower, {results:#?}",
            results.overtaken(),
            results.more_work(),
            results.slower()
        );
        results
    });
    noisy_runtime.shutdown_background();
    results
}

/// Repeats a measurement, and asserts that one result meets the condition.
#[track_caller]
fn assert_once(measure: impl Fn() -> Results, is_met: impl Fn(&Results) -> bool) {
    let mut all = Vec::new();
    loop {
        let results = measure();
        if is_met(&results) {
            return;
        }
        all.push(results);
        assert!(all.len() < TRIES, "{all:#?}");
    }
}

/// Returns a noisy tenant that sends as many small requests as it can.
fn many_small() -> Noise {
    Noise { profiles: Vec::new(), connections: 64, text: request(NOISY), nice_increment: 0 }
}

#[test]
fn flooding_tenant_at_most_doubles_p99_of_others() {
    let measured = || measure(OverloadSettings::default(), ROUNDS, many_small(), &ONE_SMALL);
    assert_once(measured, |results| {
        // If the machine gives the server only a part of a core, the server reaches its limit earlier, so the ratio of
        // requests is not checked.
        let is_noisy = results.slower().is_none() || results.sent >= TIMES * results.quiet_sent;
        is_noisy && results.overtaken() <= OVERTAKEN && results.slows_at_most(2.0)
    });
}

#[test]
fn only_flooding_tenant_is_shed() {
    let mut overload = OverloadSettings::default();
    overload.max_queued_per_tenant = 32;
    let measured = || measure(overload.clone(), 3, many_small(), &ONE_SMALL);
    assert_once(measured, |results| results.shed > 0 && results.overtaken() <= OVERTAKEN && results.slows_at_most(2.0));
}

/// Compares the worker's processor time. Elapsed time would also depend on whether the thread that decides large pods
/// competes with the clients or with the worker for a core.
#[test]
fn large_pods_at_most_double_work_before_others() {
    let measured = || {
        let text = request_with_env(NOISY, 300);
        let noisy = Noise { profiles: Vec::new(), connections: 4, text, nice_increment: 10 };
        measure(OverloadSettings::default(), ROUNDS, noisy, &ONE_SMALL)
    };
    assert_once(measured, |results| results.sent > 0 && results.overtaken() <= OVERTAKEN && results.more_work() <= 2.0);
}

/// The noisy tenant's pods are the smallest, but its profiles use up their budget. The quiet tenants send bursts of
/// larger pods. By bytes alone, dozens of costly decisions would come before the last request of a burst.
#[test]
fn costly_profiles_delay_others_little() {
    let quiet = Quiet { text: |namespace| request_with_env(namespace, 4), burst: 5 };
    let measured = || {
        let noisy = Noise { profiles: costly_profiles(), ..many_small() };
        measure(OverloadSettings::default(), ROUNDS, noisy, &quiet)
    };
    assert_once(measured, |results| {
        let [one, costly] = results.unloaded;
        costly.worked >= COSTLY * one.worked && results.sent > 0 && results.overtaken() <= OVERTAKEN_BY_COSTLY
    });
}

/// Shows the effect of the fair queue: without it, the same load delays all tenants.
#[test]
fn without_fair_queue_others_wait_behind_flood() {
    let mut overload = OverloadSettings::default();
    overload.unqueued_per_worker = usize::MAX;
    let measured = || measure(overload.clone(), 1, many_small(), &ONE_SMALL);
    assert_once(measured, |results| results.overtaken() > 2.0 * OVERTAKEN);
}
