//! Finds the injection record of an object, and the original object without what the record lists.

use pillion_api::names::INJECTED_ANNOTATION;

use super::RecordTrust;
use crate::inject;
use crate::json::{Malformed, OwnedTape, Value};
use crate::record::{self, Record};
use crate::schema;

/// The record in the annotations of an object.
pub(super) enum FoundRecord {
    None,
    Genuine(Record),
    /// Not written by Pillion, or in a format that this build does not understand.
    Foreign,
}

impl FoundRecord {
    pub(super) fn find(object: Value<'_>, trust: RecordTrust) -> Self {
        let Some(annotation) = object.at(&["metadata", "annotations", INJECTED_ANNOTATION]) else { return Self::None };
        if trust == RecordTrust::ManagedFields && !record::is_genuine(object) {
            return Self::Foreign;
        }
        match annotation.as_str().and_then(|text| Record::read(&text)) {
            Some(record) => Self::Genuine(record),
            None => Self::Foreign,
        }
    }

    /// The original object without what the record lists; `None` if it equals the object.
    pub(super) fn original_object(
        &self,
        object: Value<'_>,
        type_: &'static schema::Type,
    ) -> Result<Option<OwnedTape>, Malformed> {
        match self {
            Self::Genuine(record) => inject::without_record(object, record, type_),
            Self::None | Self::Foreign => Ok(None),
        }
    }

    pub(super) const fn genuine(&self) -> Option<&Record> {
        match self {
            Self::Genuine(record) => Some(record),
            Self::None | Self::Foreign => None,
        }
    }
}
