//! Tests publications and reports after watch events, and interrupted watches.

use std::time::Duration;

use super::*;
use crate::guard::log_capture::LogCapture;
use crate::informer::objects::ProfileChange;

/// Creates watches that deliver these updates.
fn watches(updates: impl Stream<Item = Update> + Send + 'static, client: Option<Client>) -> Watches {
    Watches { batches: updates.boxed().ready_chunks(BATCH), fetches: Fetches::new(client) }
}

fn empty_lists() -> Vec<Update> {
    let profiles = [Update::Cluster, Update::Namespaced]
        .into_iter()
        .flat_map(|update: fn(ProfileChange) -> Update| [update(Change::Restarted), update(Change::ListComplete)]);
    let shop = ("shop".into(), pillion_engine::snapshot::Namespace::default());
    let namespaces = [Change::Restarted, Change::Listed(shop), Change::ListComplete].map(Update::Namespace);
    profiles.chain(namespaces).collect()
}

#[tokio::test]
async fn synced_after_first_snapshot_until_shutdown() {
    let served = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let (publisher, mut status) = Publisher::new(Arc::clone(&served));
    let shutdown = CancellationToken::new();
    let updates = stream::iter(empty_lists()).chain(stream::pending());
    let running = tokio::spawn(publisher.follow(watches(updates, None), shutdown.clone()));
    let synced = *status.wait_for(|status| status.synced).await.unwrap();
    assert_eq!(synced.namespaces, 1);
    assert!(served.load().namespace("shop").is_some());
    shutdown.cancel();
    assert!(running.await.unwrap().is_ok());
}

#[tokio::test]
async fn guardrails_of_first_snapshot_stay() {
    let guardrails = pillion_engine::limits::Guardrails { max_containers: 1, ..Default::default() };
    let served = Arc::new(ArcSwap::from_pointee(Snapshot::default().with_guardrails(guardrails.clone())));
    let (publisher, status) = Publisher::new(Arc::clone(&served));
    let ended = publisher.follow(watches(stream::iter(empty_lists()), None), CancellationToken::new()).await;
    assert!(ended.is_err() && status.borrow().synced);
    assert_eq!(served.load().namespace_count(), 1);
    assert_eq!(*served.load().guardrails(), guardrails);
}

#[tokio::test]
async fn panic_while_publishing_keeps_last_snapshot() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let updates = stream::poll_fn(move |context| receiver.poll_recv(context));
    let (publisher, mut status) = Publisher::new(Arc::default());
    let shutdown = CancellationToken::new();
    let fault = crate::guard::faults::at("the snapshot");
    let running = tokio::spawn(publisher.follow(watches(updates, None), shutdown.clone()));
    for update in empty_lists() {
        sender.send(update).unwrap();
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!running.is_finished() && !status.borrow().synced, "a replica without a snapshot must not become ready");
    drop(fault);
    let later = ("later".into(), pillion_engine::snapshot::Namespace::default());
    sender.send(Update::Namespace(Change::Applied(later))).unwrap();
    let synced = *status.wait_for(|status| status.synced).await.unwrap();
    assert_eq!(synced.namespaces, 2);
    shutdown.cancel();
    assert!(running.await.unwrap().is_ok());
}

#[tokio::test]
async fn ended_watches_are_an_error() {
    let (publisher, status) = Publisher::new(Arc::default());
    let ended = publisher.follow(watches(stream::iter(empty_lists()), None), CancellationToken::new()).await;
    assert!(ended.is_err());
    assert!(status.borrow().synced, "earlier updates were applied");
}

#[tokio::test(start_paused = true)]
async fn synced_without_revision_that_stays_unavailable() {
    let answers = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let status = r#"{"apiVersion":"v1","kind":"Status","status":"Failure","message":"no","code":403}"#;
        http::Response::builder().status(403).body(kube::client::Body::from(status.as_bytes().to_vec()))
    });
    let status = pillion_api::kinds::ProfileStatus { revision: Some("ab".to_owned()), ..Default::default() };
    let profile = profile("proxy", 1, "proxy:1").with_status(status);
    let namespaces = [Change::Restarted, Change::ListComplete].map(Update::Namespace);
    let updates = [
        Update::Namespaced(Change::Restarted),
        Update::Namespaced(Change::ListComplete),
        Update::Cluster(Change::Restarted),
        Update::Cluster(Change::Listed(profile)),
        Update::Cluster(Change::ListComplete),
    ];
    let updates = stream::iter(updates.into_iter().chain(namespaces)).chain(stream::pending());
    let (publisher, mut status) = Publisher::new(Arc::default());
    let watches = watches(updates, Some(Client::new(answers, "default")));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(publisher.serves_revisions().follow(watches, shutdown.clone()));
    let began = tokio::time::Instant::now();
    let limit = Duration::from_mins(1);
    let synced = tokio::time::timeout(limit, status.wait_for(|status| status.synced)).await;
    assert_eq!(synced.unwrap().unwrap().broken_profiles, 1);
    assert!(began.elapsed() >= Duration::from_secs(2), "a single refusal is retried: {:?}", began.elapsed());
    shutdown.cancel();
    assert!(running.await.unwrap().is_ok());
}

fn profile(name: &str, generation: i64, image: &str) -> StoredProfile {
    let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some(name.to_owned()),
        generation: Some(generation),
        ..Default::default()
    };
    let spec = serde_json::json!({"template": {"spec": {"containers": [{"name": "sidecar", "image": image}]}}});
    StoredProfile::new(metadata, spec)
}

#[test]
fn logs_profiles_that_change_with_their_revisions() {
    let log = LogCapture::start();
    let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let (mut publisher, _status) = Publisher::new(Arc::clone(&snapshots));
    let mut watches = watches(stream::pending(), None);
    let revision = || snapshots.load().profiles().iter().next().map(|profile| profile.revision().to_owned());

    for update in empty_lists().into_iter().chain([Update::Cluster(Change::Applied(profile("proxy", 1, "proxy:1")))]) {
        publisher.index.update(update);
    }
    publisher.publish(&mut watches);
    let (text, first) = (log.take(), revision().unwrap());
    assert!(text.contains(&format!("the profile is active profile=proxy revision=\"{first}\"")), "{text}");

    publisher.index.update(Update::Cluster(Change::Applied(profile("proxy", 2, "proxy:2"))));
    publisher.publish(&mut watches);
    let (text, second) = (log.take(), revision().unwrap());
    let expected = format!("profile=proxy old_revision=\"{first}\" revision=\"{second}\"");
    assert!(text.contains(&expected) && text.lines().count() == 1, "{text}");

    let other = ("other".into(), pillion_engine::snapshot::Namespace::default());
    publisher.index.update(Update::Namespace(Change::Applied(other)));
    publisher.publish(&mut watches);
    assert_eq!(log.take(), "", "changes of namespaces are not logged");

    publisher.index.update(Update::Cluster(Change::Deleted(profile("proxy", 2, "proxy:2").name)));
    publisher.publish(&mut watches);
    let text = log.take();
    assert!(
        text.contains(&format!("the profile is no longer active profile=proxy old_revision=\"{second}\"")),
        "{text}"
    );

    for number in 0..MAX_LOGGED + 5 {
        let stored = profile(&format!("p{number}"), 1, "p:1");
        publisher.index.update(Update::Cluster(Change::Applied(stored)));
    }
    publisher.publish(&mut watches);
    let text = log.take();
    assert!(text.lines().count() == MAX_LOGGED + 1 && text.contains("more=5"), "{text}");
}

type WatchEvent = watcher::Result<Event<&'static str>>;

fn interruption() -> WatchEvent {
    Err(watcher::Error::NoResourceVersion)
}

fn changes_of(events: Vec<WatchEvent>) -> impl Stream<Item = Change<&'static str, &'static str>> + Send {
    changes(stream::iter(events), WatchedKind::Namespaces, CacheMetrics::default(), |object| object, |object| object)
}

#[tokio::test(start_paused = true)]
async fn interrupted_list_starts_again() {
    let events = vec![
        Ok(Event::Init),
        Ok(Event::InitApply("half")),
        interruption(),
        Ok(Event::Init),
        Ok(Event::InitApply("whole")),
        Ok(Event::InitDone),
        Ok(Event::Delete("whole")),
    ];
    let expected = [
        Change::Listed("half"),
        Change::Restarted,
        Change::Listed("whole"),
        Change::ListComplete,
        Change::Deleted("whole"),
    ];
    assert_eq!(changes_of(events).collect::<Vec<_>>().await, expected);
}

#[tokio::test(start_paused = true)]
async fn pause_grows_with_each_failed_attempt() {
    let events = (0..8).flat_map(|_| [Ok(Event::Init), interruption()]).collect();
    let began = tokio::time::Instant::now();
    assert_eq!(changes_of(events).count().await, 8);
    let took = began.elapsed();
    // Without growing pauses, the eight attempts would take less than 4 seconds. The upper limit checks that attempts
    // soon follow a recovery.
    assert!(took > Duration::from_secs(8) && took < Duration::from_secs(40), "{took:?}");
}
