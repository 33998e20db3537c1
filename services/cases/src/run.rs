//! Runs a test case: passes the object through the steps of an API server.

use std::sync::Arc;

use pillion_api::names::{FailureMode, INJECT_LABEL, INJECTED_ANNOTATION, INJECTION_LABEL, NAMESPACE_NAME_LABEL};
use serde_json::{Map, Value as Json, json};

use super::compare::unequal;
use super::{Aspect, Case, Denied, Difference, Metadata, Profiles, Unusable, Verdict, expect, managed};
use pillion_engine::creation::{self, Creation};
use pillion_engine::decision::{Decision, Outcome, ProfileOutcome, Reason};
use pillion_engine::inject::undo;
use pillion_engine::lookup::{KnownObjects, group_of, plural};
use pillion_engine::review::{Decided, Endpoint, Facts, RecordTrust, Review};
use pillion_engine::schema;
use pillion_engine::snapshot::{Namespace, Snapshot};
use pillion_json::OwnedTape;

/// The UID of every request, so that derived values are reproducible.
const UID: &str = "11111111-2222-3333-4444-555555555555";

/// Runs a case, and compares the result with the case's expectations.
///
/// # Errors
/// Fails if the case cannot run. [`Unusable`] lists the reasons.
pub fn run(case: &Case, profiles: &Profiles) -> Result<Verdict, Unusable> {
    if !case.expects_something() {
        return Err(Unusable::NothingExpected);
    }
    let runner = CaseRunner::new(case, profiles)?;
    let object = runner.with_managed_fields();
    let first = runner.mutate(&object, RecordTrust::ManagedFields)?;
    let mut differences = Vec::new();
    let mut validated = None;
    if first.denied.is_none() {
        if runner.is_creation {
            differences.extend(runner.second_pass(&first, RecordTrust::ManagedFields)?);
            differences.extend(runner.without_managed_fields(&first)?);
            differences.extend(runner.undone(&first)?);
        }
        validated = Some(runner.validate(&first.object)?);
    }
    let passes = || std::iter::once(&first).chain(&validated);
    let mut verdict = Verdict {
        decision: first.decision.clone(),
        validation: validated.as_ref().map(|pass| pass.decision.clone()),
        object: runner.plain(first.object.clone()),
        denied: passes().find_map(|pass| pass.denied.clone()),
        messages: passes().flat_map(|pass| pass.messages.iter().cloned()).collect(),
        differences: Vec::new(),
    };
    verdict.differences = expect::differences(case, &runner.plain(runner.object.clone()), &verdict);
    verdict.differences.extend(differences);
    Ok(verdict)
}

/// Runs the steps of a case with its cluster state.
struct CaseRunner<'c> {
    case: &'c Case,
    /// The object, with the defaults that the API server sets before it calls the webhook.
    object: Json,
    namespace_name: String,
    namespace: Arc<Namespace>,
    snapshot: Snapshot,
    objects: KnownObjects,
    cluster: Arc<OwnedTape>,
    is_creation: bool,
}

/// The result of one webhook call.
struct Pass {
    decision: Decision,
    is_changed: bool,
    /// The object with the patch applied.
    object: Json,
    denied: Option<Denied>,
    messages: Vec<String>,
}

impl<'c> CaseRunner<'c> {
    fn new(case: &'c Case, profiles: &Profiles) -> Result<Self, Unusable> {
        let namespace_name = case.namespace.name.clone().or_else(|| text(&case.object, &["metadata", "namespace"]));
        let namespace_name = namespace_name.unwrap_or_else(|| "default".to_owned());
        let Metadata { labels, annotations, .. } = &case.namespace;
        let mut labels = labels.clone();
        labels.entry(INJECTION_LABEL.to_owned()).or_insert_with(|| FailureMode::Enabled.label_value().to_owned());
        labels.entry(NAMESPACE_NAME_LABEL.to_owned()).or_insert_with(|| namespace_name.clone());
        let namespace = Namespace::new(labels, annotations.clone());
        let snapshot = Snapshot::new(profiles.of_case(case)?).with_namespace(&namespace_name, Some(namespace.clone()));
        let account = case.service_account.as_ref().map(|account| {
            let name = account.name.clone().or_else(|| text(&case.object, &["spec", "serviceAccountName"]));
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {
                    "name": name.unwrap_or_else(|| "default".to_owned()), "namespace": namespace_name,
                    "labels": account.labels, "annotations": account.annotations,
                },
            })
        });
        let objects = KnownObjects::new(account.iter().chain(&case.objects), &namespace_name);
        let cluster = OwnedTape::parse(Json::Object(case.cluster.clone()).to_string())
            .map_err(|error| Unusable::Field { field: "cluster", message: error.to_string() })?;
        Ok(Self {
            object: object(case, &namespace_name)?,
            namespace: Arc::new(namespace),
            cluster: Arc::new(cluster),
            is_creation: case.request.get("operation").is_none_or(|operation| operation == "CREATE"),
            case,
            namespace_name,
            snapshot,
            objects,
        })
    }

    fn text(&self, field: &str) -> &str {
        self.object.get(field).and_then(Json::as_str).unwrap_or_default()
    }

    /// Returns the body of the review of an object.
    fn review(&self, object: &Json) -> Vec<u8> {
        let user = json!({"username": "author", "groups": ["system:authenticated"]});
        let creation = Creation { object, namespace: &self.namespace_name, uid: UID, user: &user, dry_run: false };
        let mut request = creation.request();
        // A merge patch cannot set a field to null, because null removes the field. No case needs a null.
        json_patch::merge(&mut request, &Json::Object(self.case.request.clone()));
        if request.get("operation").is_some_and(|operation| operation == "DELETE")
            && let Some(request) = request.as_object_mut()
            && request.get("oldObject").is_none_or(Json::is_null)
        {
            request.insert("oldObject".to_owned(), object.clone());
            request.insert("object".to_owned(), Json::Null);
        }
        creation::review(&request).to_string().into_bytes()
    }

    /// Runs the engine as a call of this endpoint would, and applies the patch of the response.
    fn send(&self, object: &Json, endpoint: Endpoint, trust: RecordTrust) -> Result<Pass, Unusable> {
        let body = self.review(object);
        let review =
            Review::parse(&body).map_err(|error| Unusable::Field { field: "request", message: error.to_string() })?;
        let mut facts = Facts { namespace: Some(Arc::clone(&self.namespace)), record_trust: trust, ..Facts::default() };
        facts.looked_up = self.objects.answer(review.needs(endpoint, &self.snapshot, &facts));
        facts.looked_up.cluster = Some(Arc::clone(&self.cluster));
        let decided = if self.is_excluded(object) {
            Decided { decision: Decision::skipped(Reason::OptedOut), patch: None }
        } else {
            review.decide(endpoint, &self.snapshot, &facts).map_err(|error| Unusable::Engine(error.to_string()))?
        };
        let response: Json =
            serde_json::from_slice(&review.respond(&decided)).map_err(|error| Unusable::Engine(error.to_string()))?;
        let mut patched = object.clone();
        if let Some(patch) = &decided.patch {
            let patch: json_patch::Patch =
                serde_json::from_slice(patch).map_err(|error| Unusable::Engine(error.to_string()))?;
            json_patch::patch(&mut patched, &patch).map_err(|error| Unusable::Engine(error.to_string()))?;
        }
        let denied = (decided.decision.outcome == Outcome::Denied).then(|| denied(&response));
        Ok(Pass {
            messages: messages(&response, denied.as_ref(), &decided.decision),
            is_changed: decided.patch.is_some(),
            decision: decided.decision,
            object: patched,
            denied,
        })
    }

    fn mutate(&self, object: &Json, trust: RecordTrust) -> Result<Pass, Unusable> {
        self.send(object, self.namespace.failure_mode().map_or(Endpoint::Any, Endpoint::FailureMode), trust)
    }

    fn validate(&self, object: &Json) -> Result<Pass, Unusable> {
        let endpoint = self.namespace.failure_mode().map_or(Endpoint::Validate, Endpoint::ValidateFailureMode);
        self.send(object, endpoint, RecordTrust::ManagedFields)
    }

    /// Whether the object opts out by its label in an `enabled` namespace. The API server does not call the mutating
    /// webhook for such an object.
    fn is_excluded(&self, object: &Json) -> bool {
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(INJECT_LABEL));
        self.namespace.failure_mode() == Some(FailureMode::Enabled) && label.is_some_and(|label| label == "false")
    }

    /// Mutates the result of the first pass again, and returns the changes. A second pass must change nothing.
    fn second_pass(&self, first: &Pass, trust: RecordTrust) -> Result<Vec<Difference>, Unusable> {
        let second = self.mutate(&first.object, trust)?;
        if !second.is_changed && second.denied.is_none() {
            return Ok(Vec::new());
        }
        if let Some(denied) = second.denied {
            let found = Some(denied.message.into());
            return Ok(vec![Difference { aspect: Aspect::SecondPass, path: String::new(), found, expected: None }]);
        }
        let mut differences = unequal(Aspect::SecondPass, &second.object, &first.object);
        if differences.is_empty() {
            let found = Some("a patch that only changes what is empty".into());
            differences.push(Difference { aspect: Aspect::SecondPass, path: String::new(), found, expected: None });
        }
        Ok(differences)
    }

    /// Returns the differences between results with and without managedFields, and the changes of a second pass without
    /// them. Commands such as `pillion inject` get objects without managedFields. If the case's object has
    /// managedFields or a record, nothing is compared.
    fn without_managed_fields(&self, first: &Pass) -> Result<Vec<Difference>, Unusable> {
        if has_record(&self.object) || self.object.pointer("/metadata/managedFields").is_some() {
            return Ok(Vec::new());
        }
        let pass = self.mutate(&self.object, RecordTrust::AsFound)?;
        let expected = self.plain(first.object.clone());
        let mut differences = unequal(Aspect::CommandLine, &self.plain(pass.object.clone()), &expected);
        differences.extend(self.second_pass(&pass, RecordTrust::AsFound)?);
        Ok(differences)
    }

    /// Returns the differences from the original object after the injection is undone with its record. Nothing is
    /// compared for objects other than pods, for pods that had a record before, and for pods that were not injected.
    fn undone(&self, first: &Pass) -> Result<Vec<Difference>, Unusable> {
        if self.text("kind") != "Pod" || has_record(&self.object) || !has_record(&first.object) {
            return Ok(Vec::new());
        }
        let undone = undo(&first.object.to_string()).map_err(|error| Unusable::Engine(error.to_string()))?;
        let object: Json =
            serde_json::from_str(undone.object.root().raw()).map_err(|error| Unusable::Engine(error.to_string()))?;
        let mut differences = unequal(Aspect::Undone, &self.plain(object), &self.plain(self.object.clone()));
        differences.extend(undone.gone.into_iter().map(|place| Difference {
            aspect: Aspect::Undone,
            path: place.into(),
            found: None,
            expected: Some("what was injected".into()),
        }));
        Ok(differences)
    }

    fn with_managed_fields(&self) -> Json {
        let mut object = self.object.clone();
        let group = group_of(self.text("apiVersion"));
        let type_ = schema::of(group, &plural(self.text("kind")));
        let entry = self.object.as_object().map(|object| managed::entry(object, type_));
        if let (Some(entry), Some(metadata)) = (entry, metadata_of(&mut object)) {
            metadata.entry("managedFields").or_insert(entry);
        }
        object
    }

    /// Returns the object without the record, and without the API server's defaults that the case does not set.
    fn plain(&self, mut object: Json) -> Json {
        let is_set = |path: &[&str]| at(&self.case.object, path).is_some();
        if let Some(metadata) = metadata_of(&mut object) {
            for field in ["managedFields", "namespace"] {
                if !is_set(&["metadata", field]) {
                    metadata.remove(field);
                }
            }
            if let Some(Json::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.remove(INJECTED_ANNOTATION);
                if annotations.is_empty() && !is_set(&["metadata", "annotations"]) {
                    metadata.remove("annotations");
                }
            }
        }
        if let Some(members) = object.as_object_mut() {
            for field in ["apiVersion", "kind"] {
                if !is_set(&[field]) {
                    members.remove(field);
                }
            }
        }
        object
    }
}

/// Returns the object as the API server sends it to a webhook.
fn object(case: &Case, namespace: &str) -> Result<Json, Unusable> {
    let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}});
    if let Some(members) = object.as_object_mut() {
        members.extend(case.object.clone());
    }
    let is_namespaced = case.request.get("namespace").is_none_or(|namespace| namespace != "");
    let Some(metadata) = metadata_of(&mut object) else {
        return Err(Unusable::Field { field: "object.metadata", message: "expected a mapping".to_owned() });
    };
    if is_namespaced {
        metadata.entry("namespace").or_insert_with(|| namespace.into());
    }
    Ok(object)
}

fn has_record(object: &Json) -> bool {
    object.pointer("/metadata/annotations").is_some_and(|all| all.get(INJECTED_ANNOTATION).is_some())
}

fn metadata_of(object: &mut Json) -> Option<&mut Map<String, Json>> {
    object.get_mut("metadata").and_then(Json::as_object_mut)
}

fn at<'j>(object: &'j Map<String, Json>, path: &[&str]) -> Option<&'j Json> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(*first)?, |value, key| value.get(*key))
}

fn text(object: &Map<String, Json>, path: &[&str]) -> Option<String> {
    at(object, path).and_then(Json::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn denied(response: &Json) -> Denied {
    let status = response.pointer("/response/status");
    let field = |name: &str| status.and_then(|status| status.get(name));
    Denied {
        message: field("message").and_then(Json::as_str).unwrap_or_default().to_owned(),
        code: field("code").and_then(Json::as_u64).and_then(|code| u16::try_from(code).ok()).unwrap_or_default(),
    }
}

/// Returns the messages for the author: the denial, the warnings, and why profiles were left out.
fn messages(response: &Json, denied: Option<&Denied>, decision: &Decision) -> Vec<String> {
    let mut messages: Vec<String> = denied.iter().map(|denied| denied.message.clone()).collect();
    let warnings = response.pointer("/response/warnings").and_then(Json::as_array);
    messages.extend(warnings.into_iter().flatten().filter_map(Json::as_str).map(str::to_owned));
    let left_out = [ProfileOutcome::NotMatched, ProfileOutcome::Skipped, ProfileOutcome::Denied];
    for profile in decision.profiles.iter().filter(|profile| left_out.contains(&profile.outcome)) {
        let detail = profile.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
        let why = format!("{}{detail}", profile.reason.sentence());
        // A skipped profile already has a warning.
        if !messages.iter().any(|message| message.contains(&why)) {
            messages.push(format!("{}: {why}", profile.profile.display_name()));
        }
    }
    messages
}
