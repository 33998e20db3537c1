//! Reviews profiles when they are stored, and returns the diagnostics as warnings.
//!
//! A profile that does not compile is stored anyway, and its last accepted revision remains active. Denying it would
//! prevent restoring a backup, or applying a child before its parent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pillion_api::kinds::plural;
use pillion_api::names::{GROUP, MAX_UID_BYTES, VERSION};
use pillion_api::profile::ProfileSpec;
use pillion_api::revision::MAX_TEXT_BYTES;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{Diagnostic, MAX_CHAIN, Parent, Parents, ProfileName, ProfileSource};
use crate::json::OwnedTape;
use crate::lookup::{Answer, ObjectSelection, Query};

/// The maximum number of reported errors. The API server limits all warnings together to 4,096 characters.
const MAX_WARNINGS: usize = 8;

/// The maximum length of a warning, in characters. Kubernetes recommends 120, and truncates warnings at 256.
const MAX_WARNING: usize = 240;
/// The maximum length of a warning with its help. If it would be longer, the help becomes a separate warning.
const LINE: usize = 120;

/// A review of one profile.
#[derive(Debug)]
pub struct ProfileReview {
    uid: String,
    api_version: String,
    name: ProfileName,
    /// Whether the profile is new, so that it has no accepted revision yet.
    is_new: bool,
    spec: Result<ProfileSpec, String>,
}

/// The parents of a profile that the caller has looked up so far.
#[derive(Debug, Default)]
pub struct KnownParents {
    texts: BTreeMap<String, Option<ProfileSpec>>,
    names: Vec<String>,
    /// Whether a lookup of a parent failed, or a parent could not be parsed.
    uncertain: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'b> {
    api_version: String,
    #[serde(borrow)]
    request: Request<'b>,
}

#[derive(Deserialize)]
struct Request<'b> {
    uid: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    operation: String,
    #[serde(borrow)]
    object: Option<Object<'b>>,
}

/// An unparsed object. Its size is checked before its spec is parsed, because the parsed spec may need forty times as
/// much memory as its JSON.
#[derive(Default, Deserialize)]
struct Object<'b> {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default, borrow)]
    spec: Option<&'b RawValue>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

impl ProfileReview {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The body is not a review of version v1 or v1beta1 with a valid uid. The error message may be as long as the
    /// body.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let Envelope { api_version, request } = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if !["admission.k8s.io/v1", "admission.k8s.io/v1beta1"].contains(&api_version.as_str()) {
            return Err(format!("apiVersion is {api_version:?}; expected admission.k8s.io/v1"));
        }
        let Request { uid, name, namespace, operation, object } = request;
        let object = object.unwrap_or_default();
        if uid.is_empty() || uid.len() > MAX_UID_BYTES {
            return Err(format!("request.uid has {} bytes; expected 1 to {MAX_UID_BYTES}", uid.len()));
        }
        let spec = match object.spec.map_or("null", RawValue::get) {
            spec if spec.len() > MAX_TEXT_BYTES => {
                Err(format!("the profile is {} bytes; {MAX_TEXT_BYTES} are allowed", spec.len()))
            }
            spec => serde_json::from_str(spec).map_err(|error| error.to_string()),
        };
        let name = if name.is_empty() { object.metadata.name } else { name };
        let name = match namespace.as_str() {
            "" => ProfileName::cluster(name),
            namespace => ProfileName::namespaced(namespace, name),
        };
        Ok(Self { uid, api_version, name, is_new: operation == "CREATE", spec })
    }

    /// Returns the name of the reviewed profile.
    #[must_use]
    pub const fn name(&self) -> &ProfileName {
        &self.name
    }

    /// Returns the lookup of the next parent that is missing in `known`, if there is one.
    #[must_use]
    pub fn wanted(&self, known: &KnownParents) -> Option<Query> {
        let mut next = self.spec.as_ref().ok()?.extends.as_ref();
        for _ in 0..MAX_CHAIN {
            let name = &next?.name;
            let Some(text) = known.texts.get(name) else {
                return Some(Query {
                    group: GROUP.into(),
                    version: VERSION.into(),
                    resource: plural::CLUSTER.into(),
                    namespace: "".into(),
                    which: ObjectSelection::Named(name.as_str().into()),
                });
            };
            next = text.as_ref()?.extends.as_ref();
        }
        None
    }

    /// Returns the warnings for the author. There are none if the profile is valid, or if a parent could not be looked
    /// up or parsed.
    #[must_use]
    pub fn warnings(&self, known: &KnownParents) -> Vec<String> {
        let diagnostics = match &self.spec {
            Err(error) => vec![Diagnostic::new("spec", error.clone())],
            Ok(_) if known.uncertain => return Vec::new(),
            Ok(spec) => match ProfileSource::Author(spec, known).compile(&self.name) {
                Ok(_) => return Vec::new(),
                Err(diagnostics) => diagnostics,
            },
        };
        let without = "the profile does not take effect";
        let mut warnings = vec![if self.is_new {
            format!("{without} until it is corrected")
        } else {
            format!("{without}: pods still get its last accepted revision")
        }];
        for diagnostic in diagnostics.iter().take(MAX_WARNINGS) {
            let line = format!("{}: {}", diagnostic.path, diagnostic.message);
            match &diagnostic.help {
                Some(help) if line.chars().count() + help.chars().count() + 3 <= LINE => {
                    warnings.push(cut(&format!("{line} ({help})")));
                }
                Some(help) => warnings.extend([cut(&line), cut(&format!("  {help}"))]),
                None => warnings.push(cut(&line)),
            }
        }
        if let Some(more) = diagnostics.len().checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
            warnings.push(format!("and {more} more; pillion lint shows all"));
        }
        warnings
    }

    /// Returns the response body. The response always allows the request.
    #[must_use]
    pub fn respond(&self, warnings: &[String]) -> Vec<u8> {
        let mut response = json!({"uid": self.uid, "allowed": true});
        if let Some(fields) = response.as_object_mut().filter(|_| !warnings.is_empty()) {
            fields.insert("warnings".to_owned(), json!(warnings));
        }
        json!({"apiVersion": self.api_version, "kind": "AdmissionReview", "response": response})
            .to_string()
            .into_bytes()
    }
}

impl KnownParents {
    /// Creates a set without parents, with the names of all cluster profiles for suggestions.
    #[must_use]
    pub fn with_names(names: impl IntoIterator<Item = String>) -> Self {
        Self { names: names.into_iter().collect(), ..Self::default() }
    }

    /// Adds the result of the lookup of a parent.
    pub fn found(&mut self, query: &Query, answer: &Answer<std::sync::Arc<OwnedTape>>) {
        #[derive(Deserialize)]
        struct Object {
            spec: ProfileSpec,
        }
        let ObjectSelection::Named(name) = &query.which else { return };
        let text = match answer {
            // A parent that this version cannot parse may be valid for another version.
            Answer::Found(object) => serde_json::from_str(object.root().raw()).ok().map(|Object { spec }| spec),
            Answer::Missing => None,
            Answer::NotRequested | Answer::Failed(_) => {
                self.uncertain = true;
                None
            }
        };
        self.uncertain |= text.is_none() && matches!(answer, Answer::Found(_));
        self.texts.insert(name.to_string(), text);
    }
}

impl Parents for KnownParents {
    fn parent(&self, name: &str) -> Parent<'_> {
        match self.texts.get(name) {
            Some(Some(spec)) => Parent::Accepted(Cow::Borrowed(spec)),
            Some(None) | None => Parent::Unknown,
        }
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

/// Shortens a string to one line of at most [`MAX_WARNING`] characters.
fn cut(text: &str) -> String {
    let line = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    if text.chars().count() <= MAX_WARNING {
        return line.collect();
    }
    line.take(MAX_WARNING - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value as Json;

    use super::*;

    fn review(spec: &Json, namespace: &str) -> ProfileReview {
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u-1", "name": "p", "namespace": namespace, "operation": "CREATE", "object": {"spec": spec}},
        });
        ProfileReview::parse(body.to_string().as_bytes()).unwrap()
    }

    fn found(text: &Json) -> Answer<Arc<OwnedTape>> {
        Answer::Found(Arc::new(OwnedTape::parse(json!({"spec": text}).to_string()).unwrap()))
    }

    #[test]
    fn valid_profile_has_no_warnings() {
        let review = review(&json!({"template": {"metadata": {"labels": {"a": "b"}}}}), "");
        let warnings = review.warnings(&KnownParents::default());
        assert_eq!(warnings, Vec::<String>::new());
        let answer: Json = serde_json::from_slice(&review.respond(&warnings)).unwrap();
        assert_eq!(answer["response"], json!({"uid": "u-1", "allowed": true}));
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    }

    #[test]
    fn invalid_profile_is_allowed_with_warnings() {
        let containers: Vec<_> = (0..20).map(|number| json!({"name": format!("c{number}")})).collect();
        let review = review(&json!({"template": {"spec": {"containers": containers}}}), "shop");
        let warnings = review.warnings(&KnownParents::default());
        assert!(warnings[1].starts_with("spec.template.spec.containers[0]: "), "{warnings:?}");
        assert_eq!(warnings[0], "the profile does not take effect until it is corrected");
        let edited = ProfileReview { is_new: false, ..review };
        assert!(edited.warnings(&KnownParents::default())[0].ends_with("pods still get its last accepted revision"));
        let review = edited;
        assert!(warnings.last().unwrap().starts_with("and 12 more"), "{warnings:?}");
        assert!(warnings.iter().map(|warning| warning.chars().count()).sum::<usize>() < 4096);
        let answer: Json = serde_json::from_slice(&review.respond(&warnings)).unwrap();
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["warnings"].as_array().unwrap().len(), warnings.len());
        assert_eq!(cut(&"é".repeat(1_000)).chars().count(), MAX_WARNING);
        assert_eq!(cut("a\nb"), "a b");
    }

    #[test]
    fn looks_up_parents_in_order() {
        let child = review(&json!({"extends": {"name": "middle"}, "parameters": [{"name": "x", "default": 1}]}), "");
        let mut known = KnownParents::with_names(["middel".to_owned()]);
        let middle = child.wanted(&known).unwrap();
        assert_eq!(middle.which, ObjectSelection::Named("middle".into()));
        known.found(&middle, &found(&json!({"extends": {"name": "top"}})));
        let top = child.wanted(&known).unwrap();
        assert_eq!(top.which, ObjectSelection::Named("top".into()));
        let text = json!({
            "activation": "Never", "parameters": [{"name": "x", "type": "string", "default": "a"}],
            "template": {"metadata": {"labels": {"a": "${params.x}"}}},
        });
        known.found(&top, &found(&text));
        assert_eq!(child.wanted(&known), None);
        assert!(child.warnings(&known)[1].starts_with("spec.parameters[0]"), "{:?}", child.warnings(&known));

        let mut missing = KnownParents::with_names(["middel".to_owned()]);
        missing.found(&middle, &Answer::Missing);
        assert_eq!(child.wanted(&missing), None);
        assert!(child.warnings(&missing).iter().any(|warning| warning.contains("did you mean \"middel\"")));

        let mut unavailable = KnownParents::default();
        unavailable.found(&middle, &Answer::Failed("no answer".into()));
        assert_eq!(child.warnings(&unavailable), Vec::<String>::new(), "a failed lookup causes no warning");
        let circle = review(&json!({"extends": {"name": "p"}}), "");
        assert!(circle.warnings(&KnownParents::default())[1].contains("cannot extend itself"));
    }

    #[test]
    fn rejects_invalid_reviews() {
        assert!(ProfileReview::parse(b"{}").is_err());
        assert!(ProfileReview::parse(br#"{"apiVersion":"v2","request":{"uid":"1"}}"#).is_err());
        let long = json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u".repeat(MAX_UID_BYTES + 1)}});
        assert!(ProfileReview::parse(long.to_string().as_bytes()).unwrap_err().contains("request.uid has 257 bytes"));
        let unreadable = review(&json!({"order": "first"}), "");
        assert!(unreadable.warnings(&KnownParents::default())[1].starts_with("spec: "));
    }

    #[test]
    fn rejects_profile_above_revision_size() {
        let large = review(&json!({"template": vec![0; MAX_TEXT_BYTES / 2]}), "");
        let warnings = large.warnings(&KnownParents::default());
        assert!(warnings[1].contains("262144 are allowed"), "{warnings:?}");
    }
}
