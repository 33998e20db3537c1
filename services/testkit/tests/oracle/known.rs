//! Compares the engine's schema of a pod with the API server's. Both must merge the same lists by the same keys, except
//! those in [`DIFFERENT`]. Every one-of that strategic merge declares must also be a one-of in the engine's schema.
//! [`ATOMIC`] must list exactly the objects that server-side apply treats as atomic.

use std::collections::{BTreeMap, BTreeSet};

use pillion_engine::schema::{self, Field, OneOf, Type};

use crate::oracle::openapi::{List, OpenApi, Shape};
use crate::oracle::pins::ATOMIC;

/// Lists that the engine and the API server merge differently, each with the reason.
const DIFFERENT: [(&str, &str); 7] = [
    ("ObjectMeta.finalizers", SET),
    ("VolumeMount.bindMountOptions", "a set, but the engine treats a mount's options as one value"),
    ("PodSpec.ephemeralContainers", EPHEMERAL),
    ("EphemeralContainer.env", EPHEMERAL),
    ("EphemeralContainer.ports", EPHEMERAL),
    ("EphemeralContainer.volumeDevices", EPHEMERAL),
    ("EphemeralContainer.volumeMounts", EPHEMERAL),
];

const EPHEMERAL: &str = "pods are created without ephemeral containers, and a request that adds them is only validated";
const SET: &str = "a set that pod templates cannot contain";

/// The merge keys of each list. A list is identified by its field, such as `PodSpec.containers`.
type Lists = BTreeMap<String, Vec<String>>;

/// The state of a parallel traversal of the API server's schema and the engine's schema.
struct Walk<'a> {
    openapi: &'a OpenApi,
    theirs: Lists,
    ours: Lists,
    /// Objects that server-side apply treats as atomic.
    atomic: BTreeSet<String>,
    /// Lists whose elements contain a one-of that the engine's schema lacks.
    unknown_one_ofs: Vec<String>,
    /// Visited types of the API server's schema, each with the address of the engine's type for it (0: none).
    seen: Vec<(String, usize)>,
}

/// Returns a description of each disagreement between the two schemas.
pub(crate) fn disagreements(openapi: &OpenApi) -> Vec<String> {
    let mut walk = Walk {
        openapi,
        theirs: Lists::new(),
        ours: Lists::new(),
        atomic: BTreeSet::new(),
        unknown_one_ofs: Vec::new(),
        seen: Vec::new(),
    };
    walk.object("ObjectMeta", Some(&schema::OBJECT_META));
    walk.object("PodSpec", Some(&schema::POD_SPEC));
    let Walk { theirs, ours, atomic, unknown_one_ofs, .. } = walk;
    let mut places: Vec<_> = theirs.keys().chain(ours.keys()).collect();
    places.sort();
    places.dedup();
    let is_pinned = |place: &str| DIFFERENT.iter().any(|(known, _)| *known == place);
    let mut found: Vec<_> = places
        .into_iter()
        .filter(|place| theirs.get(*place) != ours.get(*place) && !is_pinned(place))
        .map(|place| format!("{place}: the API server {:?}, the engine {:?}", theirs.get(place), ours.get(place)))
        .collect();
    let same = DIFFERENT.iter().filter(|(place, _)| theirs.get(*place) == ours.get(*place));
    found.extend(same.map(|(place, reason)| format!("{place} is no longer different: {reason}")));
    found.extend(unknown_one_ofs.into_iter().map(|place| format!("{place}: a one-of that the engine does not know")));
    let written: BTreeSet<_> = ATOMIC.into_iter().map(str::to_owned).collect();
    let odd = atomic.symmetric_difference(&written);
    found.extend(odd.map(|place| format!("{place} is atomic only for the API server, or only in ATOMIC")));
    if theirs.len() < 12 {
        found.push(format!(
            "the walk is incomplete: found only {} keyed lists in the API server's schema",
            theirs.len()
        ));
    }
    found
}

impl Walk<'_> {
    fn object(&mut self, type_: &str, known: Option<&'static Type>) {
        // The engine's schema may describe a type at one field and not at another, so both combinations are visited.
        let visit = (type_.to_owned(), known.map_or(0, |known| std::ptr::from_ref(known).addr()));
        if self.seen.contains(&visit) {
            return;
        }
        self.seen.push(visit);
        for (name, _) in known.into_iter().flat_map(|known| known.fields) {
            if self.openapi.field(type_, name).is_none() {
                self.ours.insert(format!("{type_}.{name}, which is not a field"), Vec::new());
            }
        }
        for (name, shape) in self.openapi.fields(type_) {
            let place = format!("{type_}.{name}");
            let below = match known.and_then(|known| known.field(name)) {
                Some(Field::Object(below)) => Some(*below),
                Some(Field::Keyed(keyed)) => {
                    self.ours.insert(place.clone(), keyed.keys.iter().map(|key| (*key).to_owned()).collect());
                    Some(keyed.element)
                }
                None => None,
            };
            if self.openapi.is_atomic(type_, name) {
                self.atomic.insert(place.clone());
            }
            match shape {
                Shape::Struct(inner) => self.object(inner, below),
                Shape::List(list) => self.list(list, place, below),
                Shape::Scalar | Shape::Map => {}
            }
        }
    }

    fn list(&mut self, list: List<'_>, place: String, below: Option<&'static Type>) {
        if list.retains_keys() && !below.is_some_and(|below| matches!(below.one_of, OneOf::AllBut(["name"]))) {
            self.unknown_one_ofs.push(place.clone());
        }
        match list.kind {
            "set" => {
                self.theirs.insert(place, vec!["the whole element".to_owned()]);
            }
            "map" => {
                self.theirs.insert(place, list.keys().into_iter().map(str::to_owned).collect());
                if let Some(element) = list.element {
                    self.object(element, below);
                }
            }
            // The elements of an atomic list are never merged.
            _ => {}
        }
    }
}
