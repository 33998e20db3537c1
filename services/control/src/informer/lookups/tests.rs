//! Tests lookups with a fake API server.

use std::sync::Mutex;

use pillion_engine::lookup::{ObjectSelection as Asked, OwnerReference};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::informer::lookup_cache::FetchError;

/// Lookups with a fake fetcher, and their requests.
struct TestLookups {
    lookups: Lookups,
    registry: Registry,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TestLookups {
    fn new<F>(answer: impl Fn(Key) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Fetched> + Send + 'static,
    {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&requests);
        let fetch = move |key: Key| {
            recorded.lock().unwrap().push(key.to_string());
            answer(key).boxed()
        };
        Self { lookups: Lookups::by(fetch, metrics), registry, requests }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Returns the number of lookups of service accounts with this result.
    fn accounts(&self, result: LookupResult) -> usize {
        let text = crate::labels::exposition(&self.registry);
        let labels = format!("{{kind=\"service_account\",result=\"{}\"}}", result.as_str());
        let series = format!("pillion_lookups_total{labels} ");
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
    }
}

fn found(value: &Value) -> Fetched {
    Ok(Some(Arc::new(OwnedTape::parse(value.to_string()).map_err(FetchError::refused)?)))
}

fn account(name: &str) -> Wanted {
    Wanted { namespace: "shop".into(), service_account: Some(name.into()), ..Wanted::default() }
}

fn config_map(name: &str) -> Query {
    Query {
        group: "".into(),
        version: "v1".into(),
        resource: "configmaps".into(),
        namespace: "shop".into(),
        which: Asked::Named(name.into()),
    }
}

fn name_of(answer: &ObjectAnswer) -> Option<String> {
    match answer {
        Answer::Found(object) => object.root().at(&["metadata", "name"])?.as_str().map(Into::into),
        _ => None,
    }
}

#[tokio::test]
async fn pods_of_one_workload_share_one_request() {
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let world = TestLookups::new(move |_| {
        let gate = Arc::clone(&closed);
        async move {
            gate.acquire().await.unwrap().forget();
            found(&json!({"metadata": {"name": "web"}}))
        }
    });
    let waiting = join_all((0..50).map(|_| world.lookups.get(account("web"))));
    let (answers, ()) = futures::join!(waiting, async { gate.add_permits(1) });
    assert!(answers.iter().all(|answer| name_of(&answer.service_account).as_deref() == Some("web")));
    assert_eq!((answers.len(), world.requests()), (50, vec!["serviceaccounts shop/web".to_owned()]));
    world.lookups.get(account("web")).await;
    assert!(world.requests().is_empty(), "the result is cached");
    assert_eq!((world.accounts(LookupResult::Found), world.accounts(LookupResult::Hit)), (1, 50));
}

#[tokio::test]
async fn missing_object_differs_from_failed_lookup() {
    let world = TestLookups::new(|_| std::future::ready(Ok(None)));
    assert_eq!(world.lookups.get(account("web")).await.service_account.ending(), "missing");
    let world = TestLookups::new(|_| std::future::ready(Err(FetchError::unavailable("no route"))));
    let Answer::Failed(why) = world.lookups.get(account("web")).await.service_account else { panic!("a failure") };
    assert!(!why.contains("route"), "{why}: the message must not reveal the API server's address");
    world.lookups.get(account("web")).await;
    assert_eq!(world.requests().len(), 1, "the next pods fail at once");
}

trait Ending {
    fn ending(&self) -> &'static str;
}

impl<T> Ending for Answer<T> {
    fn ending(&self) -> &'static str {
        match self {
            Self::NotRequested => "not asked",
            Self::Missing => "missing",
            Self::Found(_) => "found",
            Self::Failed(_) => "failed",
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lookups_of_review_share_one_deadline() {
    let world = TestLookups::new(|_| std::future::pending());
    let objects = (0..40).map(|number| config_map(&format!("c{number}"))).collect();
    let began = Instant::now();
    let looked_up = world.lookups.get(Wanted { objects, ..account("web") }).await;
    assert!(began.elapsed() <= ANSWER_LIMIT + Duration::from_millis(10), "{:?}", began.elapsed());
    assert_eq!(looked_up.service_account.ending(), "failed");
    assert_eq!(looked_up.objects.len(), 40);
    assert!(looked_up.objects.iter().all(|(_, answer)| answer.ending() == "failed"));
    assert_eq!(looked_up.owners.ending(), "not asked");
}

#[tokio::test(start_paused = true)]
async fn client_rate_limit_spares_other_clients() {
    let world = TestLookups::new(|_| std::future::ready(Ok(None)));
    let (greedy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let mut endings = Vec::new();
    for number in 0..300 {
        let looked_up = world.lookups.get_for(account(&format!("a{number}")), greedy).await;
        endings.push(looked_up.service_account.ending());
    }
    let per_second = LookupSettings::default().a_second_per_client as usize;
    assert_eq!((per_second, world.requests().len()), (200, 200));
    assert!(endings[..200].iter().all(|ending| *ending == "missing"), "{endings:?}");
    assert!(endings[200..].iter().all(|ending| *ending == "failed"), "{endings:?}");
    assert_eq!(world.accounts(LookupResult::Refused), 100);

    // The limit applies to all objects of a review.
    let object = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "backup-1", "uid": "j", "controller": true}]}});
    let wanted =
        || Wanted { owners: Some(chain_of(&object)), objects: vec![config_map("settings")], ..account("a250") };
    let endings = |looked_up: &LookedUp| {
        (looked_up.service_account.ending(), looked_up.owners.ending(), looked_up.objects[0].1.ending())
    };
    assert_eq!(endings(&world.lookups.get_for(wanted(), greedy).await), ("failed", "failed", "failed"));
    assert!(world.requests().is_empty());
    assert_eq!(endings(&world.lookups.get_for(wanted(), other).await), ("missing", "found", "missing"));
    assert_eq!(world.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn longer_limit_permits_slower_responses() {
    let fetch = |_| {
        tokio::time::sleep(Duration::from_millis(900)).map(|()| found(&json!({"metadata": {"name": "web"}}))).boxed()
    };
    for (answer_limit, ending) in [(ANSWER_LIMIT, "failed"), (Duration::from_secs(1), "found")] {
        let metrics = Metrics::register(&mut Registry::default());
        let lookups =
            Lookups::with_fetcher(fetch, metrics, LookupSettings { answer_limit, ..LookupSettings::default() });
        assert_eq!(lookups.get(account("web")).await.service_account.ending(), ending, "{answer_limit:?}");
    }
}

#[tokio::test]
async fn owner_lookup_stops_at_the_wanted_kind() {
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": "c", "controller": true});
    let job = json!({"metadata": {"uid": "j", "ownerReferences": [cron]}});
    let answer = {
        let job = job.clone();
        move |key: Key| {
            let job = job.clone();
            async move { if &*key.resource == "jobs" { found(&job) } else { Err(FetchError::refused("asked for more")) } }
        }
    };
    let world = TestLookups::new(answer);
    let object = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "batch/v1beta1/../x", "kind": "Job", "name": "backup-1", "uid": "j", "controller": true}]}});
    // The engine builds the owner chain of a pod.
    let chain = chain_of(&object);
    let wanted = Wanted { namespace: "shop".into(), owners: Some(chain), ..Wanted::default() };
    let looked_up = world.lookups.get(wanted).await;
    assert_eq!(world.requests(), ["jobs.batch shop/backup-1"]);
    let Answer::Found(chain) = looked_up.owners else { panic!("a chain") };
    assert_eq!(chain.next(), None, "the chain is complete");
}

/// Returns the engine's owner chain for this pod, with a profile that reads the owner's name.
fn chain_of(pod: &Value) -> OwnerChain {
    use pillion_engine::profile::{ProfileName, compile};
    use pillion_engine::review::{Endpoint, Facts, Review};
    use pillion_engine::snapshot::{ProfileSet, Snapshot};
    let spec = json!({"activation": "Always", "template": {"metadata": {"labels": {"a": "b"}}},
        "matchConditions": [{"name": "c", "expression": "owner.?name.hasValue()"}]});
    let profile = compile(&ProfileName::cluster("p"), &serde_json::from_value(spec).unwrap()).unwrap();
    let snapshot = Snapshot::new(ProfileSet::new([Arc::new(profile)]));
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let request = json!({"uid": "u", "namespace": "shop", "operation": "CREATE", "resource": resource, "object": pod});
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string();
    let review = Review::parse(body.as_bytes()).unwrap();
    let endpoint = Endpoint::FailureMode(pillion_api::names::FailureMode::Enabled);
    review.needs(endpoint, &snapshot, &Facts::default()).owners.unwrap()
}

#[tokio::test]
async fn invalid_object_name_is_not_looked_up() {
    let world = TestLookups::new(|_| std::future::ready(Ok(None)));
    let long = "a".repeat(254);
    for name in ["", "-a", "a/../../secrets/x", "..", "a..b", "A", "a%2fb", "a?b", &long] {
        assert_eq!(world.lookups.get(account(name)).await.service_account.ending(), "missing", "{name}");
    }
    assert!(world.requests().is_empty());
    assert_eq!(world.accounts(LookupResult::Invalid), 9);

    let query = |resource: &str, which: Asked| Query {
        group: "".into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: "".into(),
        which,
    };
    assert_eq!(Key::declared(&query("secrets", Asked::Named("a".into()))), None);
    assert_eq!(Key::declared(&query("pods/exec", Asked::Named("a".into()))), None);
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["d", "e"]}, {"key": "f", "operator": "DoesNotExist"},
        {"key": "g", "operator": "NotIn", "values": ["h"]}, {"key": "i", "operator": "Exists"}]});
    let selected = Key::declared(&query("nodes", Asked::Selected(serde_json::from_value(selector).unwrap()))).unwrap();
    assert_eq!(selected.which, KeyObjects::Selected("a=b,c in (d,e),!f,g notin (h),i".into()));
    let game = OwnerReference { api_version: "example.com/v1".into(), kind: "Job".into(), name: "a".into(), uid: None };
    assert_eq!(Key::owner("shop", &game), None, "only built-in kinds are looked up");
}

#[tokio::test(start_paused = true)]
async fn api_outage_changes_no_lookup() {
    let began = Instant::now();
    let world = TestLookups::new(move |key: Key| async move {
        if began.elapsed() > Duration::from_secs(5) {
            return Err(FetchError::unavailable("no route"));
        }
        let KeyObjects::Metadata(name) = &key.which else { return Ok(None) };
        if &**name == "web" { found(&json!({"metadata": {"name": "web"}})) } else { Ok(None) }
    });
    for minute in 0..30 {
        let web = world.lookups.get(account("web")).await.service_account;
        assert_eq!(name_of(&web).as_deref(), Some("web"), "minute {minute}");
        assert_eq!(world.lookups.get(account("nobody")).await.service_account.ending(), "missing", "minute {minute}");
        tokio::time::advance(Duration::from_mins(1)).await;
    }
    assert_eq!(world.accounts(LookupResult::Stale), 2 * 29);
}
