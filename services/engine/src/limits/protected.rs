//! Protects the changes of cluster profiles. Namespaced profiles must not change, remove or move them, or insert
//! elements before those that cluster profiles put at the start of a list.
//!
//! The check lists the differences between two states of a pod by path. Elements of keyed lists are matched by their
//! keys, as in the merge, so the paths equal those in the injection record. If only one state has a keyed list, or a
//! map whose entries the record lists one by one, all its elements are listed. The time is linear in the size of both
//! states. Parts that are equal byte for byte are skipped.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use indexmap::IndexMap;

use crate::json::{Kind, Value};
use crate::record::ChangeKind;
use crate::schema::{self, Field, KeyedList, Type};

use super::{Excess, Limit};

static POD: Field = Field::Object(&schema::POD);

static CONTAINER: Field = Field::Object(&schema::CONTAINER);

/// A difference between two states of a pod at one path. At least one state has a value there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'c, 'v> {
    /// The tokens of the path from the root of the pod.
    pub(super) path: &'c [String],
    pub(super) before: Option<Value<'v>>,
    pub(super) after: Option<Value<'v>>,
    /// The innermost element of a keyed list on the path, in the later state.
    pub(super) element: Option<Value<'v>>,
    /// Whether this is a new element with the same key as an existing one, so that it is unclear which of them is used.
    pub(super) is_duplicate: bool,
}

/// The key of an element of a list, and the number of earlier elements with the same key.
pub(super) type ElementKey = (String, usize);

/// A change in the order of a keyed list, because elements were added, removed or moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'c> {
    /// The tokens of the path of the list.
    pub(super) path: &'c [String],
    pub(super) before: &'c [ElementKey],
    pub(super) after: &'c [ElementKey],
}

/// A difference between two states of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Difference<'c, 'v> {
    Change(Change<'c, 'v>),
    Order(Order<'c>),
}

/// A walk through the differences between two states of a pod. Calls `see` with each difference.
pub(super) struct Differences<'v, 's, E> {
    path: Vec<String>,
    element: Option<Value<'v>>,
    see: &'s mut dyn FnMut(Difference<'_, 'v>) -> Result<(), E>,
}

/// The values at a path in the two states. `None` if the state has no value.
type Pair<'v> = (Option<Value<'v>>, Option<Value<'v>>);

impl<'v, 's, E> Differences<'v, 's, E> {
    /// Calls `see` with each difference between two states of a pod. Stops at the first error of `see`.
    pub(super) fn of_pods(
        before: Value<'v>,
        after: Value<'v>,
        see: &'s mut dyn FnMut(Difference<'_, 'v>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut walk = Self { path: Vec::new(), element: None, see };
        walk.value((Some(before), Some(after)), Some(&POD))
    }

    /// Calls `see` with each difference between two states of a container. Stops at the first error of `see`. `path` is
    /// the path of `after`.
    pub(super) fn of_containers(
        before: Value<'v>,
        after: Value<'v>,
        path: [&str; 3],
        see: &'s mut dyn FnMut(Difference<'_, 'v>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut walk = Self { path: path.map(str::to_owned).into(), element: Some(after), see };
        walk.value((Some(before), Some(after)), Some(&CONTAINER))
    }

    fn value(&mut self, (before, after): Pair<'v>, field: Option<&'static Field>) -> Result<(), E> {
        // A null field is treated as absent.
        let (before, after) = (before.filter(|value| !value.is_null()), after.filter(|value| !value.is_null()));
        let is_or_absent = |kind| [before, after].into_iter().flatten().all(|value| value.kind() == kind);
        let both = match (before, after) {
            (None, None) => return Ok(()),
            (Some(before), Some(after)) if before.raw() == after.raw() => return Ok(()),
            (Some(_), Some(_)) => true,
            _ => false,
        };
        match field {
            Some(Field::Keyed(keyed)) if is_or_absent(Kind::Array) => self.list((before, after), keyed),
            Some(Field::Object(type_)) if is_or_absent(Kind::Object) && (both || type_.records_by_field) => {
                self.object((before, after), type_)
            }
            None if both && is_or_absent(Kind::Object) => self.object((before, after), &schema::ANY),
            _ if before.zip(after).is_some_and(|(before, after)| is_same(before, after)) => Ok(()),
            _ => self.change(before, after, false),
        }
    }

    fn change(&mut self, before: Option<Value<'v>>, after: Option<Value<'v>>, is_duplicate: bool) -> Result<(), E> {
        let change = Change { path: &self.path, before, after, element: self.element, is_duplicate };
        (self.see)(Difference::Change(change))
    }

    fn object(&mut self, pair: Pair<'v>, type_: &'static Type) -> Result<(), E> {
        for (key, pair) in members(pair) {
            self.path.push(key.into_owned());
            let field = self.path.last().and_then(|name| type_.field(name));
            self.value(pair, field)?;
            self.path.pop();
        }
        Ok(())
    }

    fn list(&mut self, (before, after): Pair<'v>, keyed: &'static KeyedList) -> Result<(), E> {
        // Elements with the same key are paired in their order.
        let mut pairs: IndexMap<ElementKey, Pair<'v>> = IndexMap::new();
        let mut orders = [Vec::new(), Vec::new()];
        for (order, (is_after, list)) in orders.iter_mut().zip([(false, before), (true, after)]) {
            let mut counts: HashMap<String, usize> = HashMap::new();
            for element in list.into_iter().flat_map(Value::items) {
                let key = token(element, keyed);
                let count = counts.entry(key.clone()).or_default();
                order.push((key.clone(), *count));
                let pair = pairs.entry((key, *count)).or_default();
                *count += 1;
                *(if is_after { &mut pair.1 } else { &mut pair.0 }) = Some(element);
            }
        }
        let [order_before, order_after] = orders;
        let was_there: HashSet<_> = order_before.iter().map(|(key, _)| key).collect();
        let around = self.element;
        for ((key, _), (before, after)) in pairs {
            let is_duplicate = before.is_none() && was_there.contains(&key);
            self.path.push(key);
            self.element = after;
            let are_objects =
                [before, after].map(|element| element.is_some_and(|element| element.kind() == Kind::Object));
            match (before, after) {
                (Some(before), Some(after)) if before.raw() == after.raw() => {}
                (Some(_), Some(_)) if are_objects == [true, true] => self.object((before, after), keyed.element)?,
                _ => self.change(before, after, is_duplicate)?,
            }
            self.path.pop();
        }
        self.element = around;
        if order_before == order_after {
            return Ok(());
        }
        (self.see)(Difference::Order(Order { path: &self.path, before: &order_before, after: &order_after }))
    }
}

/// Pairs the members of two objects by key. If a key is repeated, its last value is used.
fn members<'v>((before, after): Pair<'v>) -> IndexMap<Cow<'v, str>, Pair<'v>> {
    let mut pairs: IndexMap<Cow<'v, str>, Pair<'v>> = IndexMap::new();
    for (key, value) in before.into_iter().flat_map(Value::members) {
        pairs.entry(key.text()).or_default().0 = Some(value);
    }
    for (key, value) in after.into_iter().flat_map(Value::members) {
        pairs.entry(key.text()).or_default().1 = Some(value);
    }
    pairs
}

/// Whether two values are equal as JSON. Numbers are compared as they are written.
fn is_same(before: Value<'_>, after: Value<'_>) -> bool {
    if before.raw() == after.raw() {
        return true;
    }
    match (before.kind(), after.kind()) {
        (Kind::Object, Kind::Object) => members((Some(before), Some(after)))
            .into_values()
            .all(|(before, after)| before.zip(after).is_some_and(|(before, after)| is_same(before, after))),
        (Kind::Array, Kind::Array) => {
            let (mut left, mut right) = (before.items(), after.items());
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(left), Some(right)) if is_same(left, right) => {}
                    _ => return false,
                }
            }
        }
        (Kind::String | Kind::EscapedString, Kind::String | Kind::EscapedString) => before.as_str() == after.as_str(),
        _ => false,
    }
}

/// Returns the unescaped token of an element: the values of its key fields, separated by commas.
fn token(element: Value<'_>, keyed: &KeyedList) -> String {
    let mut token = String::new();
    for (index, key) in keyed.keys.iter().enumerate() {
        if index > 0 {
            token.push(',');
        }
        let default = || keyed.defaults.iter().find(|(field, _)| field == key);
        let value = element.get(key).map(|value| value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw())));
        let value = value.or_else(|| default().map(|(_, text)| Cow::Borrowed(text.trim_matches('"'))));
        token.push_str(&value.unwrap_or_default());
    }
    token
}

/// Formats a path as in the injection record: each token after a slash.
pub(super) fn pointer(path: &[String]) -> String {
    let mut pointer = String::with_capacity(path.iter().map(|token| token.len() + 1).sum());
    for token in path {
        pointer.push('/');
        if token.contains(['~', '/']) {
            pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
        } else {
            pointer.push_str(token);
        }
    }
    pointer
}

/// Paths that cluster profiles added or set, as pointers in the format of the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protected {
    pointers: BTreeMap<Box<str>, ChangeKind>,
    /// Elements with a protected position, even if their value is not protected: [`ChangeKind::Moved`] or
    /// [`ChangeKind::PutInFront`].
    placed: BTreeMap<Box<str>, ChangeKind>,
}

/// The role of an element in the order of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// No cluster profile added, set or moved the element.
    Other,
    /// The element keeps its position relative to the existing elements.
    Kept,
    /// Like [`Self::Kept`], and all new elements must come after it.
    InFront,
}

impl Protected {
    /// Creates the set from pointers. If a pointer is repeated, its last entry is used, except that `Moved` does not
    /// replace `PutInFront`.
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

    /// Checks that the protected values and positions of `before` have not changed in `after`.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self, before: Value<'_>, after: Value<'_>) -> Result<(), Excess> {
        Differences::of_pods(before, after, &mut |difference| match difference {
            Difference::Order(order) => self.check_order(order),
            Difference::Change(change) => {
                let place = pointer(change.path);
                let was_there = change.before.is_some() || change.is_duplicate;
                self.touched(&place, was_there).map_or(Ok(()), |protected| Err(changed(&place, protected)))
            }
        })
    }

    /// Checks that no replaced place is a protected path, or is above or below one.
    ///
    /// # Errors
    /// The first replaced place that fails the check.
    pub(crate) fn check_replaced<'p>(&self, mut places: impl Iterator<Item = Cow<'p, str>>) -> Result<(), Excess> {
        places.try_for_each(|place| {
            self.touched(&place, true).map_or(Ok(()), |protected| Err(changed(&place, protected)))
        })
    }

    /// Returns the protected path that a change affects: a parent of the changed path, the path itself, or a path below
    /// it. If `was_there` is false, the change only adds a value. In that case, paths below the changed path are
    /// ignored, and the path itself is affected only if it is a [`ChangeKind::Set`].
    fn touched(&self, pointer: &str, was_there: bool) -> Option<&str> {
        let ends = pointer.match_indices('/').map(|(index, _)| index).filter(|index| *index > 0);
        let mut around = ends.filter_map(|end| self.pointers.get_key_value(pointer.get(..end)?));
        let at = || self.pointers.get_key_value(pointer).filter(|(_, done)| was_there || **done == ChangeKind::Set);
        let found = around.next().or_else(at).map(|(pointer, _)| &**pointer);
        found.or_else(|| self.below(pointer).next().filter(|_| was_there))
    }

    /// Returns the protected paths below a pointer.
    pub(super) fn below(&self, pointer: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{pointer}/").into_boxed_str();
        let from = self.pointers.range(folder.clone()..).map(|(pointer, _)| &**pointer);
        from.take_while(move |found| found.starts_with(&*folder))
    }

    /// Returns the number of elements at the start of a list before which nothing may be inserted: those up to the last
    /// element with the rank [`Rank::InFront`]. `elements` are pointers in the order of the list.
    pub(crate) fn front(&self, elements: impl Iterator<Item = impl AsRef<str>>) -> usize {
        let ranks = self.ranks(elements);
        ranks.iter().rposition(|rank| *rank == Rank::InFront).map_or(0, |last| last + 1)
    }

    /// Returns the rank of each element of a list. Elements of cluster profiles at the start of the list are
    /// [`Rank::InFront`], because they would be first without namespaced profiles.
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
        // The number of protected elements before the current element.
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
                        "it would precede an element that a cluster profile put first in this list; remove $position, \
                         or place it after that element",
                    ));
                }
                None => {}
                Some((_, stood_behind)) if *stood_behind != passed => {
                    return Err(excess(
                        "its position relative to an element of a cluster profile in this list would change; keep its \
                         position",
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

fn changed(place: &str, protected: &str) -> Excess {
    let message = format!(
        "a cluster profile has set {protected}, and a namespaced profile cannot change or remove it; remove this \
         change from the profile"
    );
    Excess::new(Limit::Protected, place, message)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value as Json, json};

    use crate::json::OwnedTape;

    use super::*;

    fn places(before: &Json, after: &Json) -> Vec<String> {
        let (before, after) =
            (OwnedTape::parse(before.to_string()).unwrap(), OwnedTape::parse(after.to_string()).unwrap());
        let mut places = Vec::new();
        let mut see = |difference: Difference<'_, '_>| -> Result<(), ()> {
            let Difference::Change(change) = difference else { return Ok(()) };
            let sign = match (change.before, change.after) {
                (None, _) => '+',
                (_, None) => '-',
                _ => '~',
            };
            places.push(format!("{sign}{}", pointer(change.path)));
            Ok(())
        };
        Differences::of_pods(before.root(), after.root(), &mut see).unwrap();
        places
    }

    #[test]
    fn difference_names_elements_by_keys() {
        let before = json!({
            "metadata": {"labels": {"a": "1", "b": "2", "x/y": "1"}},
            "spec": {
                "containers": [
                    {"name": "app", "image": "a", "ports": [{"containerPort": 80}], "securityContext": {"runAsUser": 1}},
                    {"name": "gone"},
                ],
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "nodeName": null,
            },
        });
        let after = json!({
            "spec": {
                "tolerations": [{"operator": "Exists", "key": "a"}],
                "containers": [
                    {"name": "app", "image": "b", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                     "env": [{"name": "A", "value": "1"}], "securityContext": {"runAsUser": 2}},
                    {"name": "new"},
                ],
                "volumes": [{"name": "v"}],
                "hostNetwork": true,
            },
            "metadata": {"labels": {"b": "3", "a": "1", "x/y": "2"}, "annotations": {"c": "d"}},
        });
        let expected = [
            "~/metadata/labels/b",
            "~/metadata/labels/x~1y",
            "+/metadata/annotations/c",
            "~/spec/containers/app/image",
            "+/spec/containers/app/ports/80,TCP/protocol",
            "~/spec/containers/app/securityContext/runAsUser",
            "+/spec/containers/app/env/A",
            "-/spec/containers/gone",
            "+/spec/containers/new",
            "+/spec/volumes/v",
            "+/spec/hostNetwork",
        ];
        assert_eq!(places(&before, &after), expected);
        assert_eq!(places(&before, &before), Vec::<String>::new());
    }

    #[test]
    fn value_of_other_kind_is_one_difference() {
        let before = json!({"spec": {"containers": [1, {"name": "a"}], "volumes": "x"}});
        let after = json!({"spec": {"containers": {"name": "a"}, "volumes": [2]}});
        assert_eq!(places(&before, &after), ["~/spec/containers", "~/spec/volumes"]);
    }

    #[test]
    fn compares_equally_named_elements_in_order() {
        let pod = |images: &[&str]| {
            let containers: Vec<_> = images.iter().map(|image| json!({"name": "a", "image": image})).collect();
            json!({"spec": {"containers": containers}})
        };
        assert_eq!(places(&pod(&["1", "2"]), &pod(&["1", "3"])), ["~/spec/containers/a/image"]);
        assert_eq!(places(&pod(&["1"]), &pod(&["1", "2"])), ["+/spec/containers/a"]);
    }

    #[test]
    fn compares_many_members_in_linear_time() {
        let labels: serde_json::Map<_, _> = (0..100_000).map(|i| (format!("label-{i}"), json!("x"))).collect();
        let reversed: serde_json::Map<_, _> = labels.clone().into_iter().rev().collect();
        let containers: Vec<_> = (0..20_000).map(|i| json!({"name": format!("c-{i}")})).collect();
        let pod = |labels: &serde_json::Map<_, _>, other: &str| json!({"metadata": {"labels": labels}, "spec": {"containers": containers, "nodeSelector": [labels], "x": other}});
        let start = Instant::now();
        assert_eq!(places(&pod(&labels, "1"), &pod(&reversed, "2")), ["~/spec/x"]);
        // Quadratic time would take minutes.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn change_touches_place_parents_and_children() {
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
    fn platform_elements_keep_their_order() {
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
