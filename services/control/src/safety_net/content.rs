//! The content of the policy: reads the published revisions of the profiles that opt in, and converts them. Collects
//! the profiles that the policy does not cover, with the reasons.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use pillion_api::ClusterProfileRevision;
use pillion_api::ProfileSpec;
use pillion_api::opt_in::OptIn;
use pillion_api::revision::object_name;
use pillion_engine::native::safety_net::{Candidate, Covered, safety_net};
use pillion_engine::profile::{CompiledProfile, ProfileName, ProfileSource};
use pillion_engine::snapshot::ProfileSet;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use crate::guard::guarded;
use crate::revisions::{Coverage, OptedIn};

/// The name of the object in a dry run.
const SAMPLE: &str = "pillion-safety-net";
/// The time after which a rejected revision is tried again. By then, the API server, or the policies that deny the
/// revision, may have changed.
const RETRY_AFTER: Duration = Duration::from_mins(10);

/// The published revision of a profile.
struct Published {
    revision: String,
    spec: ProfileSpec,
    compiled: Arc<CompiledProfile>,
}

/// A revision that the API server rejected, with the reason and the time.
struct Rejection {
    revision: String,
    why: String,
    since: Instant,
}

/// The published revisions of the profiles that opt in, and the reasons why the policy does not cover some of them.
#[derive(Default)]
pub(super) struct Content {
    published: BTreeMap<Box<str>, Published>,
    /// The profiles whose current revision the API server rejects.
    rejected: HashMap<Box<str>, Rejection>,
    /// The revisions whose additions the API server accepts.
    checked: HashMap<Box<str>, Box<str>>,
    /// The reason for each profile whose published revision is missing, cannot be read, or does not apply to all pods.
    unpublished: BTreeMap<Box<str>, String>,
}

impl Content {
    /// Reads the revisions that were published since the last call.
    ///
    /// # Errors
    /// The API server is unavailable or rejects a request. The revisions that could not be read are left out, and read
    /// again at the next call.
    pub(super) async fn update(&mut self, client: &Client, opted_in: &[OptedIn]) -> kube::Result<()> {
        self.published.retain(|name, known| {
            let is_current = |profile: &OptedIn| profile.revision.as_deref() == Ok(&*known.revision);
            opted_in.iter().any(|profile| *profile.name == **name && is_current(profile))
        });
        self.rejected.retain(|name, Rejection { revision, since, .. }| {
            let is_current = |profile: &OptedIn| *profile.name == **name && profile.revision.as_ref() == Ok(revision);
            since.elapsed() < RETRY_AFTER && opted_in.iter().any(is_current)
        });
        self.checked.retain(|name, _| opted_in.iter().any(|profile| profile.name == *name));
        self.unpublished.clear();
        let api: Api<ClusterProfileRevision> = Api::all(client.clone());
        let mut result = Ok(());
        for OptedIn { name, revision } in opted_in {
            let revision = match revision {
                Ok(revision) => revision,
                Err(why) => {
                    self.unpublished.insert(name.clone(), why.clone());
                    continue;
                }
            };
            if self.published.contains_key(name) {
                continue;
            }
            let stored = match api.get_opt(&object_name(name, revision)).await {
                Ok(Some(stored)) => stored,
                Ok(None) => {
                    self.unpublished.insert(name.clone(), format!("the revision {revision} does not exist"));
                    continue;
                }
                Err(error) => {
                    self.unpublished.insert(name.clone(), format!("the revision {revision} could not be read"));
                    result = Err(error);
                    continue;
                }
            };
            let of = ProfileName::cluster(name.clone());
            let read = guarded(&of, || {
                let flattened = ProfileSource::Revision(&stored.spec).flatten(&of)?;
                let compiled = flattened.compile(&of)?;
                Ok::<_, Vec<_>>((flattened.spec, compiled))
            });
            if let Ok(Ok((spec, compiled))) = read {
                let published = Published { revision: revision.clone(), spec, compiled: Arc::new(compiled) };
                self.published.insert(name.clone(), published);
            } else {
                let why = format!("this controller cannot read the revision {revision}");
                self.unpublished.insert(name.clone(), why);
            }
        }
        result
    }

    /// Checks with a dry run that the API server accepts the additions of each profile. Records those that it rejects.
    /// Returns whether it accepts all of them.
    ///
    /// # Errors
    /// The API server is unavailable or overloaded.
    pub(super) async fn check(&mut self, client: &Client, home: &str, covered: &[Covered]) -> kube::Result<bool> {
        let mut accepts_all = true;
        for profile in covered {
            let name = &profile.name.name;
            if self.checked.get(name) == Some(&profile.revision) {
                continue;
            }
            match dry_run(client, home, &profile.sample).await {
                Ok(()) => {
                    self.checked.insert(name.clone(), profile.revision.clone());
                }
                // Another admission policy may deny the sample, too. With 429, the API server is overloaded.
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                    accepts_all = false;
                    let message = one_line(&status.message);
                    warn!(profile = %profile.name, error = message, "the API server rejects the profile's additions");
                    self.reject(profile, message);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(accepts_all)
    }

    /// Records that the API server rejects the additions or the mutation of a profile.
    pub(super) fn reject(&mut self, covered: &Covered, why: String) {
        let rejection = Rejection { revision: covered.revision.to_string(), why, since: Instant::now() };
        self.rejected.insert(covered.name.name.clone(), rejection);
    }

    /// Converts the profiles. Returns those that the policy covers, and the coverage of all profiles that opt in.
    pub(super) fn convert(&self, all: &ProfileSet, opt_in: &OptIn) -> (Vec<Covered>, Coverage) {
        let mut coverage = Coverage::default();
        for (name, why) in &self.unpublished {
            coverage.insert(name.clone(), Err(why.clone()));
        }
        for (name, Rejection { why, .. }) in &self.rejected {
            coverage.insert(name.clone(), Err(format!("the API server rejects it: {why}")));
        }
        let candidates = self.published.iter().filter(|(name, _)| !self.rejected.contains_key(*name));
        let candidates =
            candidates.map(|(_, known)| Candidate { compiled: &known.compiled, spec: &known.spec }).collect::<Vec<_>>();
        let converted = guarded(&"the safety net", || safety_net(candidates.iter().copied(), all, opt_in));
        let net = match converted {
            Ok(net) => net,
            Err(panicked) => {
                for candidate in candidates {
                    coverage.insert(candidate.compiled.name().name.clone(), Err(panicked.to_string()));
                }
                return (Vec::new(), coverage);
            }
        };
        for covered in &net.covered {
            coverage.insert(covered.name.name.clone(), Ok(()));
        }
        for (name, reason) in net.uncovered {
            coverage.insert(name.name, Err(format!("{}: {}", reason.path, reason.why)));
        }
        (net.covered, coverage)
    }
}

/// Returns the profiles whose expressions the API server rejects, with the first message for each. `error` is the
/// response to a policy with these profiles.
pub(super) fn rejected<'c>(covered: &'c [Covered], error: &kube::core::Status) -> Vec<(&'c Covered, String)> {
    let variables: Vec<_> = covered.iter().flat_map(|profile| profile.variables.iter().map(move |_| profile)).collect();
    let mut found: Vec<(&Covered, String)> = Vec::new();
    let causes = error.details.iter().flat_map(|details| &details.causes);
    for cause in causes {
        let place = |list: &str| {
            let (_, rest) = cause.field.split_once(list)?;
            rest.split(']').next()?.parse::<usize>().ok()
        };
        let profile = match (place("spec.mutations["), place("spec.variables[")) {
            (Some(index), _) => covered.get(index),
            (None, Some(index)) => variables.get(index).copied(),
            (None, None) => None,
        };
        if let Some(profile) = profile
            && !found.iter().any(|(other, _)| other.name == profile.name)
        {
            found.push((profile, one_line(&cause.message)));
        }
    }
    found
}

/// Validates a pod as a `PodTemplate`, like the dry run of a revision, but rejects unknown fields.
async fn dry_run(client: &Client, home: &str, pod: &Value) -> kube::Result<()> {
    let template = json!({"metadata": pod.get("metadata"), "spec": pod.get("spec")});
    let object = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": SAMPLE}, "template": template});
    let path = format!("/api/v1/namespaces/{home}/podtemplates?dryRun=All&fieldValidation=Strict");
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(drop)
}

/// Returns the start of a message of the API server, in one line.
fn one_line(message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = message.floor_char_boundary(300);
    message.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(name: &str, variables: usize) -> Covered {
        let variables = (0..variables).map(|number| (format!("v{number}"), "1".to_owned())).collect();
        let name = ProfileName::cluster(name);
        Covered { name, revision: "r".into(), variables, mutation: "[]".to_owned(), sample: Value::Null }
    }

    #[test]
    fn causes_name_rejected_profiles() {
        let all = [covered("a", 2), covered("b", 1), covered("c", 3)];
        let cause = |field: &str| json!({"field": field, "message": "Invalid value:\n  no such key", "reason": "FieldValueInvalid"});
        let status = json!({"code": 422, "details": {"causes": [
            cause("spec.variables[2].expression"), cause("spec.mutations[1].jsonPatch.expression"),
            cause("spec.mutations[0].jsonPatch.expression"), cause("spec.matchConstraints"), cause("spec.mutations[9]"),
        ]}});
        let status = serde_json::from_value(status).unwrap();
        let found = rejected(&all, &status);
        let names: Vec<_> = found.iter().map(|(profile, why)| (&*profile.name.name, why.as_str())).collect();
        assert_eq!(names, [("b", "Invalid value: no such key"), ("a", "Invalid value: no such key")]);
    }
}
