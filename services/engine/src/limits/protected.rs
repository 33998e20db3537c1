//! Protects the changes of the platform's profiles. Namespaced profiles must not change, remove or move them, or insert
//! elements in front of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::difference::{Difference, Differences, Order, pointer};
use super::excess::{Excess, Limit};
use crate::json::Value;
use crate::record::ChangeKind;

/// Paths that the platform's profiles added or set, as pointers in the notation of the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protected {
    pointers: BTreeMap<Box<str>, ChangeKind>,
    /// Elements whose position is protected, even if their value is not: [`ChangeKind::Moved`] or
    /// [`ChangeKind::PutInFront`].
    placed: BTreeMap<Box<str>, ChangeKind>,
}

/// The role of an element in the order of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// It does not belong to the platform.
    Other,
    /// It keeps its position among the existing elements.
    Kept,
    /// It also stays in front of all new elements.
    InFront,
}

impl Protected {
    /// Creates it from pointers. Of two entries with the same pointer, the last one counts.
    pub(crate) fn new<P: Into<Box<str>>>(pointers: impl IntoIterator<Item = (P, ChangeKind)>) -> Self {
        let mut protected = Self::default();
        for (pointer, done) in pointers {
            match done {
                ChangeKind::Added | ChangeKind::Set => protected.pointers.insert(pointer.into(), done),
                ChangeKind::Moved => Some(*protected.placed.entry(pointer.into()).or_insert(done)),
                ChangeKind::PutInFront => protected.placed.insert(pointer.into(), done),
            };
        }
        protected
    }

    /// Checks that everything protected in one state of a pod is unchanged in another.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self, before: Value<'_>, after: Value<'_>) -> Result<(), Excess> {
        Differences::of_pods(before, after, &mut |difference| match difference {
            Difference::Order(order) => self.check_order(order),
            Difference::Change(change) => {
                let place = pointer(change.path);
                let was_there = change.before.is_some() || change.is_duplicate;
                self.touched(&place, was_there).map_or(Ok(()), |protected| Err(taken(&place, protected)))
            }
        })
    }

    /// Checks that no replaced place is protected.
    ///
    /// # Errors
    /// The first place that is.
    pub(crate) fn check_replaced<'p>(&self, mut places: impl Iterator<Item = Cow<'p, str>>) -> Result<(), Excess> {
        places
            .try_for_each(|place| self.touched(&place, true).map_or(Ok(()), |protected| Err(taken(&place, protected))))
    }

    /// Returns the protected path that a change touches: the changed path, one of its parents, or a path below it if an
    /// existing value is removed or replaced.
    fn touched(&self, pointer: &str, was_there: bool) -> Option<&str> {
        let ends = pointer.match_indices('/').map(|(index, _)| index).filter(|index| *index > 0);
        let mut around = ends.filter_map(|end| self.pointers.get_key_value(pointer.get(..end)?));
        let at = || self.pointers.get_key_value(pointer).filter(|(_, done)| was_there || **done == ChangeKind::Set);
        let found = around.next().or_else(at).map(|(pointer, _)| &**pointer);
        found.or_else(|| self.below(pointer).next().filter(|_| was_there))
    }

    /// Returns the protected paths below another one.
    pub(super) fn below(&self, pointer: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{pointer}/").into_boxed_str();
        let from = self.pointers.range(folder.clone()..).map(|(pointer, _)| &**pointer);
        from.take_while(move |found| found.starts_with(&*folder))
    }

    /// Returns the number of elements at the start of a list among which nothing may be inserted. They end with the
    /// last element that the platform put in front. `elements` are pointers, in order.
    pub(crate) fn front(&self, elements: impl Iterator<Item = impl AsRef<str>>) -> usize {
        let ranks = self.ranks(elements);
        ranks.iter().rposition(|rank| *rank == Rank::InFront).map_or(0, |last| last + 1)
    }

    /// Returns the rank of each element of a list. Platform elements at the start of the list rank as in front: without
    /// namespaced profiles they would be first.
    fn ranks(&self, elements: impl Iterator<Item = impl AsRef<str>>) -> Vec<Rank> {
        let mut is_beginning = true;
        let mut rank_of = |element: &str| {
            let rank = match self.placed.get(element) {
                Some(ChangeKind::PutInFront) => return Rank::InFront,
                Some(_) => Rank::Kept,
                None if self.pointers.contains_key(element) => Rank::Kept,
                None => Rank::Other,
            };
            is_beginning &= rank == Rank::Kept;
            if is_beginning { Rank::InFront } else { rank }
        };
        elements.map(|element| rank_of(element.as_ref())).collect()
    }

    fn check_order(&self, Order { path, before, after }: Order<'_>) -> Result<(), Excess> {
        let ranks = {
            let mut element = path.to_vec();
            let place = |(key, _): &(String, usize)| {
                element.truncate(path.len());
                element.push(key.clone());
                pointer(&element)
            };
            self.ranks(before.iter().map(place))
        };
        let mut in_front = ranks.iter().filter(|rank| **rank == Rank::InFront).count();
        // The number of the platform's elements before each element.
        let mut passed = 0;
        let mut places = HashMap::with_capacity(before.len());
        for (key, rank) in before.iter().zip(ranks) {
            places.insert(key, (rank, passed));
            passed += usize::from(rank != Rank::Other);
        }
        passed = 0;
        for key in after {
            let excess = |message: &str| {
                let mut element = path.to_vec();
                element.push(key.0.clone());
                Excess::new(Limit::Order, pointer(&element), message)
            };
            match places.get(key) {
                None if in_front > 0 => {
                    return Err(excess(
                        "it would stand before what a cluster profile put first in this list; leave $position out, or \
                         put it behind that",
                    ));
                }
                None => {}
                Some((_, stood_behind)) if *stood_behind != passed => {
                    return Err(excess(
                        "it would stand on the other side of what a cluster profile put into this list; leave it in its \
                         place",
                    ));
                }
                Some((rank, _)) => {
                    passed += usize::from(*rank != Rank::Other);
                    in_front -= usize::from(*rank == Rank::InFront);
                }
            }
        }
        Ok(())
    }
}

fn taken(place: &str, protected: &str) -> Excess {
    let message = format!(
        "a cluster profile has set {protected}, and a namespaced profile cannot change or remove it; leave it as it is"
    );
    Excess::new(Limit::Protected, place, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_what_it_is_what_it_is_in_and_what_is_in_it() {
        let protected = Protected::new([
            ("/spec/containers/proxy", ChangeKind::Added),
            ("/spec/containers/app/env/A", ChangeKind::Added),
            ("/spec/containers/app/env/GONE", ChangeKind::Set),
            ("/metadata/labels/x~1y", ChangeKind::Added),
        ]);
        for (pointer, was_there, expected) in [
            ("/spec/containers/proxy", true, true),
            ("/spec/containers/proxy", false, false),
            ("/spec/containers/proxy/env/B", false, true),
            ("/spec/containers/proxy2", true, false),
            ("/spec/containers/prox", true, false),
            ("/spec/containers/app/env/A/value", true, true),
            ("/spec/containers/app/env/GONE", false, true),
            ("/spec/containers/app/env/A", false, false),
            ("/spec/containers/app/env/AB", true, false),
            ("/spec/containers/app/env", true, true),
            ("/spec/containers/app", true, true),
            ("/spec/containers/app/image", true, false),
            ("/metadata/labels/x~1y", true, true),
            ("/metadata/labels/x", true, false),
        ] {
            assert_eq!(protected.touched(pointer, was_there).is_some(), expected, "{pointer} {was_there}");
        }
    }

    #[test]
    fn platform_elements_keep_their_places() {
        let protected = Protected::new([
            ("/spec/initContainers/lock", ChangeKind::Added),
            ("/spec/initContainers/second", ChangeKind::Added),
            ("/spec/initContainers/moved", ChangeKind::Moved),
            ("/spec/initContainers/late", ChangeKind::PutInFront),
        ]);
        let path = ["spec".to_owned(), "initContainers".to_owned()];
        let keys = |names: &str| -> Vec<_> { names.split(' ').map(|name| (name.to_owned(), 0)).collect() };
        for (before, after, expected) in [
            ("lock app", "lock new app", true),
            ("lock app", "new lock app", false),
            ("lock second app", "lock new second app", false),
            ("app lock", "new app lock", true),
            ("app lock", "lock app", false),
            ("app lock", "app new lock", true),
            ("app other lock", "other app lock", true),
            ("app other lock", "other lock app", false),
            ("app moved", "moved app", false),
            ("moved app", "new moved app", false),
            ("app late other", "new app late other", false),
            ("app late other", "app late new other", true),
            ("app other", "new other app", true),
            ("app lock other", "lock other new", true),
        ] {
            let (before_keys, after_keys) = (keys(before), keys(after));
            let order = Order { path: &path, before: &before_keys, after: &after_keys };
            assert_eq!(protected.check_order(order).is_ok(), expected, "{before} -> {after}");
        }
        let names = ["lock", "app", "late", "other"].map(|name| format!("/spec/initContainers/{name}"));
        assert_eq!(protected.front(names.iter()), 3);
    }
}
