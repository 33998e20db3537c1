//! Undoes an injection: returns an object as its author wrote it, by its injection record.

use std::sync::Arc;

use pillion_api::names::INJECTED_ANNOTATION;
use thiserror::Error;

use super::locate;
use crate::json::OwnedTape;
use crate::record::Record;
use crate::schema;

/// The result of undoing an injection.
#[derive(Clone, Debug)]
pub struct Undone {
    /// The original object.
    pub object: Arc<OwnedTape>,
    /// The display names of the undone profiles, each with its revision.
    pub profiles: Vec<(Box<str>, Box<str>)>,
    /// Places of the record that no longer exist, so that nothing could be removed or restored. Values that were
    /// changed later are not among them: the record does not hold what injection wrote, so they are removed or replaced
    /// by the original.
    pub gone: Vec<Box<str>>,
}

/// Why an injection cannot be undone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UndoError {
    /// There is no record.
    #[error("it has no record of an injection: the annotation {INJECTED_ANNOTATION} is not there")]
    NoRecord,
    /// The record is not in a format that this build understands.
    #[error("its record {INJECTED_ANNOTATION} is not in a form that this build understands")]
    UnknownRecord,
    /// The object cannot be parsed.
    #[error("it cannot be read: {0}")]
    Malformed(Box<str>),
}

/// Undoes everything in the record of a pod or of a pod template. The record is trusted as it is: for manifests it does
/// not matter who wrote it.
///
/// The result is the original except for empty lists and maps. Those that injection created are removed, and the record
/// does not tell about those that were empty before.
///
/// # Errors
/// There is no record, or the record or the object cannot be parsed.
pub fn undo(pod: &str) -> Result<Undone, UndoError> {
    let malformed = |error: &dyn std::fmt::Display| UndoError::Malformed(error.to_string().into());
    let tape = OwnedTape::parse(pod).map_err(|error| malformed(&error))?;
    let object = tape.root();
    let annotation = object.at(&["metadata", "annotations", INJECTED_ANNOTATION]).ok_or(UndoError::NoRecord)?;
    let record = annotation.as_str().and_then(|text| Record::read(&text)).ok_or(UndoError::UnknownRecord)?;
    let mut gone = Vec::new();
    let undone = locate::without_record_telling(object, &record, schema::of("", "pods"), &mut |place| {
        gone.push(Box::from(place));
    });
    let object = undone.map_err(|error| malformed(&format!("the key {:?} stands twice", error.key)))?;
    let object = object.ok_or_else(|| malformed(&"what is left is no JSON"))?;
    // Parts of an addition, such as those of a moved container, are removed with it.
    let added: Vec<_> = record.all_added().collect();
    let goes_with = |place: &str| {
        let mut around = place.rmatch_indices('/').filter_map(|(at, _)| place.get(..at));
        around.any(|around| added.iter().any(|added| **added == *around))
    };
    gone.retain(|place| !goes_with(place));
    gone.sort_unstable();
    gone.dedup();
    Ok(Undone {
        object: Arc::new(object),
        profiles: record.revisions().map(|(profile, revision)| (profile.into(), revision.into())).collect(),
        gone,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn pod(record: &Json) -> Json {
        json!({
            "metadata": {"annotations": {INJECTED_ANNOTATION: record.to_string(), "kept": "x"}},
            "spec": {"containers": [{"name": "app", "image": "new"}, {"name": "proxy"}], "volumes": [{"name": "v"}]},
        })
    }

    fn record(added: &Json, replaced: &Json) -> Json {
        json!({"version": 1, "profiles": [{"profile": "p", "revision": "r1", "added": added, "replaced": replaced}]})
    }

    fn read(undone: &Undone) -> Json {
        serde_json::from_str(undone.object.root().raw()).unwrap()
    }

    #[test]
    fn what_was_added_goes_and_what_was_replaced_comes_back() {
        let record = record(
            &json!(["/spec/containers/proxy", "/spec/volumes/v"]),
            &json!([["/spec/containers/app/image", "old"], ["/spec/hostNetwork", true]]),
        );
        let undone = undo(&pod(&record).to_string()).unwrap();
        let expected = json!({
            "metadata": {"annotations": {"kept": "x"}},
            "spec": {"containers": [{"name": "app", "image": "old"}], "hostNetwork": true},
        });
        assert_eq!(read(&undone), expected);
        assert_eq!(undone.profiles, [("p".into(), "r1".into())]);
        assert_eq!(undone.gone, Vec::<Box<str>>::new());
    }

    #[test]
    fn a_value_that_somebody_changed_since_is_undone_as_any_other() {
        let record = record(&json!(["/spec/containers/proxy"]), &json!([["/spec/containers/app/image", "old"]]));
        let mut pod = pod(&record);
        pod["spec"]["containers"][0]["image"] = json!("somebody's");
        pod["spec"]["containers"][1]["image"] = json!("somebody's");
        let undone = undo(&pod.to_string()).unwrap();
        assert_eq!(read(&undone)["spec"]["containers"], json!([{"name": "app", "image": "old"}]));
        assert_eq!(undone.gone, Vec::<Box<str>>::new());
    }

    #[test]
    fn places_that_somebody_else_took_away_are_named() {
        let record = record(
            &json!(["/spec/containers/other", "/spec/containers/proxy"]),
            &json!([["/spec/containers/gone/image", "old"]]),
        );
        let undone = undo(&pod(&record).to_string()).unwrap();
        assert_eq!(undone.gone, ["/spec/containers/gone/image".into(), "/spec/containers/other".into()]);
        assert_eq!(read(&undone)["spec"]["containers"], json!([{"name": "app", "image": "new"}]));
    }

    #[test]
    fn without_a_record_nothing_is_undone() {
        assert_eq!(undo("{}").unwrap_err(), UndoError::NoRecord);
        let unknown = pod(&json!({"version": 2, "profiles": []}));
        assert_eq!(undo(&unknown.to_string()).unwrap_err(), UndoError::UnknownRecord);
        assert!(matches!(undo("{"), Err(UndoError::Malformed(_))));
    }
}
