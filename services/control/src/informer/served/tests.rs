//! Tests which revisions are served while published ones are fetched, and if they are unusable.

use pillion_engine::profile::compile;
use serde_json::json;

use super::*;

fn name() -> ProfileName {
    ProfileName::cluster("proxy")
}

fn key(revision: &str) -> RevisionKey {
    RevisionKey { profile: name(), revision: revision.into() }
}

/// A compiled text with its revision.
fn compiled(label: &str) -> Arc<CompiledProfile> {
    let spec = json!({"template": {"metadata": {"labels": {"a": label}}}});
    Arc::new(compile(&name(), &serde_json::from_value(spec).unwrap()).unwrap())
}

fn pointer(uid: &str, published: Option<(&str, Option<&str>, Option<u8>)>) -> Pointer {
    let published = published.map(|(newest, promoted, percent)| Publication {
        newest: newest.into(),
        promoted: promoted.map(Into::into),
        rollout: percent.map(|percent| Rollout { percent: Some(percent), namespace_selector: None }),
        kept: Arc::default(),
    });
    Pointer { name: name(), uid: uid.into(), published }
}

fn listed(pointers: impl IntoIterator<Item = Pointer>) -> ServedIndex {
    let mut index = ServedIndex::default();
    index.update(Change::Restarted);
    for pointer in pointers {
        index.update(Change::Listed(pointer));
    }
    index.update(Change::ListComplete);
    index
}

fn served(index: &ServedIndex) -> Vec<(String, Option<String>)> {
    let revision = |profile: &Arc<CompiledProfile>| profile.revision().to_owned();
    let promoted = |served: &Served| served.stage.as_ref()?.promoted.as_ref().map(revision);
    index.at_work().map(|served| (revision(&served.profile), promoted(served))).collect()
}

#[test]
fn it_is_synced_when_all_that_is_published_was_fetched_or_cannot_be_used() {
    assert!(listed([]).synced());
    assert!(listed([pointer("1", None)]).synced(), "nothing is published of it");
    let one = compiled("one");
    let mut index = listed([pointer("1", Some((one.revision(), Some(one.revision()), None)))]);
    assert!(!index.synced());
    assert_eq!(index.due(), [key(one.revision())]);
    assert_eq!(index.due(), [], "each is given once");
    assert!(index.still_wants(&key(one.revision())) && !index.synced());
    assert!(index.fetched(&key(one.revision()), Fetched::Compiled(Arc::clone(&one))).changed);
    assert!(index.synced());
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);

    let mut index = listed([pointer("1", Some(("gone", None, None)))]);
    index.due();
    let fault = Fetched::Unusable(Vec::new());
    assert_eq!(index.fetched(&key("gone"), fault).broken.len(), 1);
    assert_eq!((index.synced(), index.broken(), served(&index).len()), (true, 1, 0));
}

#[test]
fn what_is_served_stays_until_the_next_is_at_hand() {
    let [one, two] = ["one", "two"].map(compiled);
    let mut index = listed([pointer("1", Some((one.revision(), None, None)))]);
    index.due();
    index.fetched(&key(one.revision()), Fetched::Compiled(Arc::clone(&one)));

    let newer = pointer("1", Some((two.revision(), Some(one.revision()), Some(10))));
    assert!(!index.update(Change::Applied(newer.clone())).changed);
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);
    assert_eq!(index.due(), [key(two.revision())], "the promoted one is at hand");
    assert!(!index.fetched(&key(two.revision()), Fetched::Unusable(Vec::new())).changed);
    assert_eq!(served(&index), [(one.revision().to_owned(), None)]);
    assert_eq!(index.broken(), 1);
    assert!(!index.update(Change::Applied(newer)).changed, "the same again");

    assert!(index.fetched(&key(two.revision()), Fetched::Compiled(Arc::clone(&two))).changed);
    assert_eq!(served(&index), [(two.revision().to_owned(), Some(one.revision().to_owned()))]);
    assert_eq!(index.broken(), 0);

    // For half of the pods, then for all: no fetch is needed.
    for percent in [Some(50), None] {
        let promoted = if percent.is_some() { &one } else { &two };
        let pointer = pointer("1", Some((two.revision(), Some(promoted.revision()), percent)));
        assert!(index.update(Change::Applied(pointer)).changed);
        assert_eq!(index.due(), []);
    }
    assert_eq!(served(&index), [(two.revision().to_owned(), None)]);
}

#[test]
fn what_is_withdrawn_deleted_or_made_anew_is_not_served() {
    let one = compiled("one");
    let with = || {
        let mut index = listed([pointer("1", Some((one.revision(), None, None)))]);
        index.due();
        index.fetched(&key(one.revision()), Fetched::Compiled(Arc::clone(&one)));
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
        let changed = change.into_iter().any(|change| index.update(change).changed);
        assert!(changed && served(&index).is_empty());
    }
}

#[test]
fn a_status_of_a_newer_build_gives_everybody_what_is_promoted() {
    let status = json!({
        "revision": "b", "promotedRevision": "a", "acceptedRevision": "b", "revisions": ["b", "a"],
        "rollout": {"percent": 10, "byPhaseOfTheMoon": true},
    });
    let read = read_status(status.clone());
    assert_eq!((read.revision.as_deref(), read.promoted_revision.as_deref()), (Some("a"), Some("a")));
    assert_eq!((read.accepted_revision.as_deref(), read.rollout), (Some("b"), None));
    assert_eq!(read.revisions, ["b", "a"]);
    let mut known = status;
    known["rollout"] = json!({"percent": 10});
    assert_eq!(read_status(known).revision.as_deref(), Some("b"));
    assert_eq!(read_status(Value::Null), ProfileStatus::default());
}

#[test]
fn who_has_just_started_serves_an_older_one_instead_of_what_cannot_be_used() {
    let [new, promoted, old] = ["new", "promoted", "old"].map(compiled);
    let start = |percent| {
        let mut pointer = pointer("1", Some((new.revision(), Some(promoted.revision()), percent)));
        let kept = [&new, &promoted, &old].map(|profile| profile.revision().into());
        pointer.published.as_mut().unwrap().kept = kept.into();
        let mut index = listed([pointer]);
        index.due();
        index
    };
    let give = |index: &mut ServedIndex, profile: &Arc<CompiledProfile>| {
        index.fetched(&key(profile.revision()), Fetched::Compiled(Arc::clone(profile))).changed
    };
    let fail = |index: &mut ServedIndex, profile: &Arc<CompiledProfile>| {
        index.fetched(&key(profile.revision()), Fetched::Missing(Vec::new())).changed
    };
    let only = |profile: &Arc<CompiledProfile>| [(profile.revision().to_owned(), None)];

    // The newest revision is unusable; the promoted one is already fetched, or comes next.
    let mut index = start(Some(10));
    give(&mut index, &promoted);
    assert!(fail(&mut index, &new) && index.synced());
    assert_eq!((served(&index), index.broken()), (only(&promoted).to_vec(), 1));
    let mut index = start(Some(10));
    fail(&mut index, &new);
    assert!(!index.synced());
    assert!(give(&mut index, &promoted) && index.synced());
    assert_eq!(served(&index), only(&promoted));
    // The newest revision becomes usable and is served.
    assert!(index.still_wants(&key(new.revision())));
    assert!(give(&mut index, &new));
    assert_eq!(served(&index), [(new.revision().to_owned(), Some(promoted.revision().to_owned()))]);

    // Both are unusable: the next kept revision is fetched first.
    let mut index = start(None);
    fail(&mut index, &new);
    assert_eq!(index.due(), [key(promoted.revision())]);
    fail(&mut index, &promoted);
    assert_eq!((index.due(), index.synced()), (vec![key(old.revision())], false));
    assert!(give(&mut index, &old) && index.synced());
    assert_eq!(served(&index), only(&old));

    // Only the promoted revision is missing, and no older one is usable: all pods get the newest.
    let mut index = start(Some(10));
    give(&mut index, &new);
    fail(&mut index, &promoted);
    assert_eq!(index.due(), [key(old.revision())]);
    fail(&mut index, &old);
    assert_eq!((served(&index), index.due(), index.synced()), (only(&new).to_vec(), Vec::new(), true));
    // No revision is usable.
    let mut index = start(None);
    for profile in [&new, &promoted, &old] {
        assert!(!index.synced());
        fail(&mut index, profile);
        index.due();
    }
    assert!(index.synced() && served(&index).is_empty());
}

#[test]
fn what_nobody_wants_any_more_is_not_waited_for() {
    let mut index = listed([pointer("1", Some(("first", None, None)))]);
    index.due();
    index.update(Change::Applied(pointer("1", None)));
    assert!(!index.still_wants(&key("first")));
    assert!(index.synced());
    let late = index.fetched(&key("first"), Fetched::Compiled(compiled("one")));
    assert!(!late.changed && served(&index).is_empty());
}
