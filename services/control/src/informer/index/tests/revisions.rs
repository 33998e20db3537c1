//! Tests which revisions are served until the published revisions are fetched, and which are served if the published
//! revisions are unusable.

use pillion_api::profile::Rollout;
use pillion_engine::profile::compile;
use pillion_engine::snapshot::Served;

use super::*;

fn name() -> ProfileName {
    ProfileName::cluster("proxy")
}

fn key(revision: &str) -> RevisionKey {
    RevisionKey { profile: name(), revision: revision.into() }
}

/// Compiles a profile whose template sets this value of a label.
fn compiled(label: &str) -> Arc<CompiledProfile> {
    let spec = json!({"template": {"metadata": {"labels": {"a": label}}}});
    Arc::new(compile(&name(), &serde_json::from_value(spec).unwrap()).unwrap())
}

fn pointer(uid: &str, published: Option<(&str, Option<&str>, Option<u8>)>) -> StoredProfile {
    let status = published.map(|(newest, promoted, percent)| ProfileStatus {
        revision: Some(newest.to_owned()),
        promoted_revision: promoted.map(str::to_owned),
        rollout: percent.map(|percent| Rollout { percent: Some(percent), ..Rollout::default() }),
        ..ProfileStatus::default()
    });
    let mut stored = profile("proxy", 1, Value::Null).with_status(status.unwrap_or_default());
    stored.uid = uid.into();
    stored
}

fn listed(pointers: impl IntoIterator<Item = StoredProfile>) -> Index {
    let mut index = Index::default().serves_revisions();
    feed(&mut index, list([]).into_iter().map(Update::Namespaced));
    feed(&mut index, list([]).into_iter().map(Update::Namespace));
    feed(&mut index, list(pointers).into_iter().map(Update::Cluster));
    index.publish();
    index
}

fn served(index: &Index) -> Vec<(String, Option<String>)> {
    let revision = |profile: &Arc<CompiledProfile>| profile.revision().to_owned();
    let promoted = |served: &Served| served.stage.as_ref()?.promoted.as_ref().map(revision);
    let served = index.entries.values().filter_map(|entry| entry.published.served.as_ref());
    served.map(|served| (revision(&served.profile), promoted(served))).collect()
}

/// Applies a change. Returns whether a snapshot was published.
fn changes(index: &mut Index, change: ProfileChange) -> bool {
    index.update(Update::Cluster(change));
    index.publish().is_some()
}

/// Applies the result of a fetch. Returns whether a snapshot was published.
fn fetched(index: &mut Index, key: &RevisionKey, fetched: Fetched) -> bool {
    index.update(Update::Fetched(key.clone(), fetched));
    index.publish().is_some()
}

fn broken(index: &Index) -> usize {
    index.status().broken_profiles
}

#[test]
fn synced_once_published_revisions_are_fetched_or_unusable() {
    assert!(listed([]).synced());
    assert!(listed([pointer("1", None)]).synced(), "the profile has no published revision");
    let one = compiled("one");
    let mut index = listed([pointer("1", Some((one.revision(), Some(one.revision()), None)))]);
    assert!(!index.synced());
    assert_eq!(index.take_unfetched(), [key(one.revision())]);
    assert_eq!(index.take_unfetched(), [], "each revision is returned once");
    assert!(index.still_needs(&key(one.revision())) && !index.synced());
    assert!(fetched(&mut index, &key(one.revision()), Fetched::Compiled(Arc::clone(&one))));
    assert!(index.synced());
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);

    let mut index = listed([pointer("1", Some(("gone", None, None)))]);
    index.take_unfetched();
    let fault = Fetched::Unusable(Vec::new());
    assert_eq!(index.update(Update::Fetched(key("gone"), fault)).len(), 1);
    assert_eq!((index.synced(), broken(&index), served(&index).len()), (true, 1, 0));
}

#[test]
fn served_revision_stays_until_next_is_fetched() {
    let [one, two] = ["one", "two"].map(compiled);
    let mut index = listed([pointer("1", Some((one.revision(), None, None)))]);
    index.take_unfetched();
    fetched(&mut index, &key(one.revision()), Fetched::Compiled(Arc::clone(&one)));

    let newer = pointer("1", Some((two.revision(), Some(one.revision()), Some(10))));
    assert!(!changes(&mut index, Change::Applied(newer.clone())));
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);
    assert_eq!(index.take_unfetched(), [key(two.revision())], "the promoted revision is already fetched");
    assert!(!fetched(&mut index, &key(two.revision()), Fetched::Unusable(Vec::new())));
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);
    assert_eq!(broken(&index), 1);
    assert!(!changes(&mut index, Change::Applied(newer)), "the same status changes nothing");

    assert!(fetched(&mut index, &key(two.revision()), Fetched::Compiled(Arc::clone(&two))));
    assert_eq!(served(&index), [(two.revision().to_owned(), Some(one.revision().to_owned()))]);
    assert_eq!(broken(&index), 0);

    // Raising the rollout to half of the workloads, and then to all, needs no fetch.
    for percent in [Some(50), None] {
        let promoted = if percent.is_some() { &one } else { &two };
        let pointer = pointer("1", Some((two.revision(), Some(promoted.revision()), percent)));
        assert!(changes(&mut index, Change::Applied(pointer)));
        assert_eq!(index.take_unfetched(), []);
    }
    assert_eq!(served(&index), [(two.revision().to_owned(), None)]);
}

#[test]
fn withdrawn_deleted_or_recreated_profile_is_not_served() {
    let one = compiled("one");
    let with = || {
        let mut index = listed([pointer("1", Some((one.revision(), None, None)))]);
        index.take_unfetched();
        fetched(&mut index, &key(one.revision()), Fetched::Compiled(Arc::clone(&one)));
        assert_eq!(served(&index).len(), 1);
        index
    };
    for change in [
        vec![Change::Applied(pointer("1", None))],
        vec![Change::Applied(pointer("2", None))],
        vec![Change::Deleted(name())],
        vec![Change::Restarted, Change::ListComplete],
    ] {
        let mut index = with();
        let changed = change.into_iter().any(|change| changes(&mut index, change));
        assert!(changed && served(&index).is_empty());
    }
}

#[test]
fn new_replica_serves_older_revision_if_newest_unusable() {
    let [new, promoted, old] = ["new", "promoted", "old"].map(compiled);
    let start = |percent| {
        let mut pointer = pointer("1", Some((new.revision(), Some(promoted.revision()), percent)));
        pointer.status.revisions = [&new, &promoted, &old].map(|profile| profile.revision().to_owned()).into();
        let mut index = listed([pointer]);
        index.take_unfetched();
        index
    };
    let give = |index: &mut Index, profile: &Arc<CompiledProfile>| {
        fetched(index, &key(profile.revision()), Fetched::Compiled(Arc::clone(profile)))
    };
    let fail = |index: &mut Index, profile: &Arc<CompiledProfile>| {
        fetched(index, &key(profile.revision()), Fetched::Missing(Vec::new()))
    };
    let only = |profile: &Arc<CompiledProfile>| [(profile.revision().to_owned(), None)];

    // If the newest revision is unusable, the promoted one is served, whether it was fetched before or after.
    let mut index = start(Some(10));
    give(&mut index, &promoted);
    assert!(fail(&mut index, &new) && index.synced());
    assert_eq!((served(&index), broken(&index)), (only(&promoted).to_vec(), 1));
    let mut index = start(Some(10));
    fail(&mut index, &new);
    assert!(!index.synced());
    assert!(give(&mut index, &promoted) && index.synced());
    assert_eq!(served(&index), only(&promoted));
    // Once the newest revision becomes usable, it is served.
    assert!(index.still_needs(&key(new.revision())));
    assert!(give(&mut index, &new));
    assert_eq!(served(&index), [(new.revision().to_owned(), Some(promoted.revision().to_owned()))]);

    // If the newest and the promoted revision are unusable, the next kept revision is fetched.
    let mut index = start(None);
    fail(&mut index, &new);
    assert_eq!(index.take_unfetched(), [key(promoted.revision())]);
    fail(&mut index, &promoted);
    assert_eq!((index.take_unfetched(), index.synced()), (vec![key(old.revision())], false));
    assert!(give(&mut index, &old) && index.synced());
    assert_eq!(served(&index), only(&old));

    // If the promoted revision is missing and no older one is usable, all pods get the newest.
    let mut index = start(Some(10));
    give(&mut index, &new);
    fail(&mut index, &promoted);
    assert_eq!(index.take_unfetched(), [key(old.revision())]);
    fail(&mut index, &old);
    assert_eq!((served(&index), index.take_unfetched(), index.synced()), (only(&new).to_vec(), Vec::new(), true));
    // No revision is usable.
    let mut index = start(None);
    for profile in [&new, &promoted, &old] {
        assert!(!index.synced());
        fail(&mut index, profile);
        index.take_unfetched();
    }
    assert!(index.synced() && served(&index).is_empty());
}

#[test]
fn revision_no_longer_published_is_not_awaited() {
    let mut index = listed([pointer("1", Some(("first", None, None)))]);
    index.take_unfetched();
    changes(&mut index, Change::Applied(pointer("1", None)));
    assert!(!index.still_needs(&key("first")));
    assert!(index.synced());
    index.publish();
    let late = fetched(&mut index, &key("first"), Fetched::Compiled(compiled("one")));
    assert!(!late && served(&index).is_empty());
}
