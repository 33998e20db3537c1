//! Tests the memory limits of namespaced profiles.

use super::*;
use crate::informer::objects::ProfileChange;

const SMALL: usize = 100;
const LARGE: usize = 10_000;

fn stored(name: &str, generation: i64, size: usize) -> StoredProfile {
    let mut stored =
        profile(name, generation, json!({"template": {"metadata": {"annotations": {"a/b": "c".repeat(size)}}}}));
    stored.name = ProfileName::namespaced("shop", name);
    stored
}

/// Returns limits that fit one large profile with its spec and a small profile, but not two large profiles.
fn limits() -> share::Limits {
    let takes = |size| {
        let mut index = Index::default();
        feed(&mut index, list([stored("a", 1, size)]).into_iter().map(Update::Namespaced));
        index.state(&ProfileName::namespaced("shop", "a")).unwrap().good.unwrap().memory()
    };
    share::Limits { of_namespace: takes(LARGE) + takes(SMALL) + LARGE, of_all: usize::MAX }
}

fn list_all(index: &mut Index, profiles: impl IntoIterator<Item = StoredProfile>) -> Vec<Broken> {
    feed(index, list([]).into_iter().map(Update::Cluster));
    feed(index, list([enabled("shop")]).into_iter().map(Update::Namespace));
    feed(index, list(profiles).into_iter().map(Update::Namespaced))
}

fn apply(index: &mut Index, stored: StoredProfile) -> Vec<Broken> {
    index.update(Update::Namespaced(ProfileChange::Applied(stored)))
}

fn active(index: &mut Index) -> Vec<String> {
    index.publish();
    names(&index.snapshot)
}

#[test]
fn profile_beyond_the_share_waits_for_memory() {
    let mut index = Index::default().bounded_by(limits());
    let broken = list_all(&mut index, [stored("a", 1, LARGE), stored("b", 1, LARGE), stored("c", 1, SMALL)]);
    let [Broken { name, serving: None, diagnostics, .. }] = &broken[..] else { panic!("{broken:?}") };
    assert_eq!(name.to_string(), "shop/b");
    assert!(diagnostics[0].message.starts_with("the profiles of namespace shop may take 0."), "{diagnostics:?}");
    assert_eq!(active(&mut index), ["shop/a", "shop/c"]);

    // Without free memory, no profile is read again, even after a new list.
    assert!(index.take_readable(9).is_empty());
    list_all(&mut index, [stored("a", 1, LARGE), stored("b", 1, LARGE), stored("c", 1, SMALL)]);
    assert_eq!(active(&mut index), ["shop/a", "shop/c"]);
    assert!(index.take_readable(9).is_empty());

    index.update(Update::Namespaced(Change::Deleted(ProfileName::namespaced("shop", "a"))));
    let readable = index.take_readable(9);
    assert_eq!(readable, [ProfileName::namespaced("shop", "b")]);
    assert!(index.take_readable(9).is_empty(), "each profile is returned once");
    index.not_read(readable[0].clone());
    assert_eq!(index.take_readable(9), readable);
    assert!(apply(&mut index, stored("b", 1, LARGE)).is_empty());
    assert_eq!(active(&mut index), ["shop/b", "shop/c"]);
}

#[test]
fn edit_beyond_the_share_keeps_accepted_version() {
    let mut index = Index::default().bounded_by(limits());
    list_all(&mut index, [stored("a", 1, LARGE), stored("b", 1, SMALL)]);
    let before = revisions(&index.publish().unwrap());
    let broken = apply(&mut index, stored("b", 2, LARGE));
    assert_eq!(broken[0].serving.as_deref(), Some(&*before[1].1), "{broken:?}");
    assert_eq!(revisions(&index.snapshot), before);
    // An edit can use the memory of the profile's earlier version.
    assert!(apply(&mut index, stored("a", 2, LARGE - 1)).is_empty());
    assert_ne!(revisions(&index.publish().unwrap()), before);
}

#[test]
fn accepted_child_follows_a_larger_parent() {
    let mut index = Index::default().bounded_by(limits());
    list_all(&mut index, []);
    let parent = |generation, size: usize| {
        let spec = json!({"activation": "Never", "template": {"metadata": {"annotations": {"p/q": "c".repeat(size)}}}});
        Update::Cluster(ProfileChange::Applied(profile("parent", generation, spec)))
    };
    index.update(parent(1, SMALL));
    let mut child = stored("child", 1, 0);
    child.spec = json!({"extends": {"name": "parent"}, "template": {"metadata": {"labels": {"own": "label"}}}});
    assert!(apply(&mut index, child).is_empty());
    let revision =
        |index: &mut Index| revisions(&index.publish().unwrap()).into_iter().find(|(name, _)| name == "shop/child");
    let before = revision(&mut index);
    // After the parent has grown, the accepted child remains active and leaves no memory for new profiles.
    assert!(index.update(parent(2, 4 * LARGE)).is_empty());
    assert_ne!(revision(&mut index), before);
    assert_eq!(apply(&mut index, stored("a", 1, SMALL)).len(), 1);
}

#[test]
fn accepted_texts_get_memory_first() {
    let mut index = Index::default().keeping_texts().bounded_by(limits());
    let (old, new) = (stored("z", 1, LARGE), stored("a", 1, LARGE));
    index.seed(old.name.clone(), old.uid.clone(), &old.spec.to_string());
    assert!(list_all(&mut index, [new.clone(), old]).is_empty());
    assert!(index.state(&new.name).unwrap().due, "the new text was not compiled yet");
    assert_eq!(active(&mut index), ["shop/z"]);
    assert_eq!(index.take_readable(9), std::slice::from_ref(&new.name));
    assert_eq!(apply(&mut index, new).len(), 1);
    assert_eq!(active(&mut index), ["shop/z"]);
}
