//! Plans the upgrade of a running pod: simulates its creation with the revisions that it has, and with the wanted ones,
//! and compares both results.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::api::{DynamicObject, TypeMeta};
use pillion_api::names::{INJECTED_ANNOTATION, PROFILES_ANNOTATION, UPGRADED_ANNOTATION};
use pillion_engine::audit::{self, Injected};
use pillion_engine::in_place::{ContainerChange, PodPlan, Upgraded, UpgradedProfile, plan};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_json::OwnedTape;
use serde_json::Value;

use crate::informer::fetch;
use crate::informer::lookups::Lookups;
use crate::informer::published::{Fetched, RevisionKey};
use crate::simulation::{SimulationError, as_written, created};

/// Maximum number of cached revisions. Beyond it, the cache is cleared.
const MAX_REVISIONS: usize = 64;

/// The revisions that a pod gets.
#[derive(Clone, Copy, Debug)]
pub enum Target<'t> {
    /// The revisions that a new pod would get.
    Active,
    /// These revisions, by display name of the profile. All other profiles keep theirs.
    Revisions(&'t BTreeMap<String, String>),
}

/// What to do with a running pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodUpgrade {
    /// The pod has the wanted revisions.
    Current,
    /// The pod can be upgraded in place.
    Possible(Box<Upgrade>),
    /// The pod has to be recreated, for these reasons. A new pod would get the wanted revisions.
    Recreate(Vec<String>),
    /// The pod cannot get the wanted revisions, for these reasons.
    Impossible(Vec<String>),
}

/// An upgrade of a running pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The changes of its containers. Empty if the revisions add the same to the pod.
    pub changes: Vec<ContainerChange>,
    /// The revisions of the changed profiles before the upgrade, by display name.
    pub previous: BTreeMap<String, String>,
    /// The annotation of the pod after the upgrade.
    pub upgraded: Upgraded,
}

/// Why the upgrade of a pod could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A revision could not be read. A later attempt may succeed.
    #[error("a revision cannot be read")]
    Revision(#[source] Box<kube::Error>),
    /// The pod cannot be serialized as JSON.
    #[error("it cannot be serialized as JSON")]
    Json(#[from] serde_json::Error),
    /// The pod cannot be parsed.
    #[error("it cannot be parsed")]
    Parse(#[from] pillion_json::SyntaxError),
    /// The creation of the pod could not be simulated.
    #[error("its creation cannot be simulated")]
    Simulation(#[from] SimulationError),
}

/// Why a pod cannot be created with other revisions.
enum RevisionError {
    /// A revision is not available, for this reason. Another attempt would fail too.
    Unavailable(String),
    /// The error of this attempt.
    Failed(PlanError),
}

/// Plans upgrades.
pub struct Planner {
    client: Client,
    lookups: Lookups,
    /// The platform's facts about the cluster, for profiles that read them.
    cluster: Option<Arc<OwnedTape>>,
    /// Fetched revisions, which never change. `None` if a revision does not exist, or is unusable for this build.
    revisions: Mutex<HashMap<RevisionKey, Option<Arc<CompiledProfile>>>>,
}

impl fmt::Debug for Planner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Planner").field("revisions", &self.revisions).finish_non_exhaustive()
    }
}

impl Planner {
    /// Creates a planner. `cluster` has the platform's facts about the cluster, for profiles that read them.
    #[must_use]
    pub fn new(client: Client, lookups: Lookups, cluster: Option<Arc<OwnedTape>>) -> Self {
        Self { client, lookups, cluster, revisions: Mutex::default() }
    }

    /// Plans the upgrade of a pod. `active` has the active profiles and the namespaces.
    ///
    /// # Errors
    /// A revision cannot be read, the pod cannot be serialized or parsed, or its creation cannot be simulated.
    pub async fn plan(
        &self,
        active: &Snapshot,
        pod: &DynamicObject,
        target: Target<'_>,
    ) -> Result<PodUpgrade, PlanError> {
        let impossible = |why: &str| Ok(PodUpgrade::Impossible(vec![why.to_owned()]));
        let mut pod = pod.clone();
        // The API server does not repeat the kind in lists, but the engine needs it.
        pod.types = Some(TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() });
        if pod.data.pointer("/spec/nodeName").is_none() {
            return impossible("it is not scheduled yet");
        }
        let running = serde_json::to_value(&pod)?;
        let (injected, added) = {
            let tape = OwnedTape::parse(running.to_string())?;
            (audit::read(tape.root()).injected, audit::added(tape.root()))
        };
        let Injected::Profiles(injected) = injected else { return impossible("it has no injection record") };
        let has: BTreeMap<String, String> =
            injected.iter().map(|(profile, revision)| (profile.to_string(), revision.to_string())).collect();
        let name = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(namespace) = active.namespace(name) else { return impossible("its namespace is not opted in") };
        let original = as_written(&running);
        let (after, wanted) = match target {
            Target::Active => {
                let after = self.create(&original, (name, &namespace), active).await?;
                let wanted = revisions(&after);
                (after, wanted)
            }
            Target::Revisions(targets) => {
                let mut wanted = has.clone();
                for (profile, revision) in targets {
                    if let Some(found) = wanted.get_mut(profile) {
                        found.clone_from(revision);
                    }
                }
                if wanted == has {
                    return Ok(PodUpgrade::Current);
                }
                let pins = annotation(&running, PROFILES_ANNOTATION).unwrap_or_default();
                if targets.keys().any(|profile| pins.split(',').any(|word| is_pin(word, profile))) {
                    return impossible("its author has pinned a revision");
                }
                let after = match self.with_revisions(active, &wanted).await {
                    Ok(after) => self.create(&original, (name, &namespace), &after).await?,
                    Err(RevisionError::Unavailable(why)) => return impossible(&why),
                    Err(RevisionError::Failed(error)) => return Err(error),
                };
                (after, wanted)
            }
        };
        if !has.keys().eq(wanted.keys()) || revisions(&after) != wanted {
            return impossible("other profiles apply to it now");
        }
        if has == wanted {
            return Ok(PodUpgrade::Current);
        }
        let before = match self.with_revisions(active, &has).await {
            Ok(before) => self.create(&original, (name, &namespace), &before).await?,
            // The changes in place are unknown, but a new pod would get the revisions.
            Err(RevisionError::Unavailable(why)) => return Ok(PodUpgrade::Recreate(vec![why])),
            Err(RevisionError::Failed(error)) => return Err(error),
        };
        let changes = match plan(&running, &before, &after, &added) {
            PodPlan::Same => Vec::new(),
            PodPlan::InPlace(changes) => changes,
            PodPlan::Recreate(obstacles) => {
                return Ok(PodUpgrade::Recreate(obstacles.iter().map(ToString::to_string).collect()));
            }
        };
        let previous = has.into_iter().filter(|(profile, revision)| wanted.get(profile) != Some(revision)).collect();
        let upgraded = upgraded(&running, &wanted);
        Ok(PodUpgrade::Possible(Box::new(Upgrade { changes, previous, upgraded })))
    }

    /// Returns a pod as it would be created with the profiles of `snapshot`.
    async fn create(
        &self,
        original: &Value,
        namespace: (&str, &Arc<Namespace>),
        snapshot: &Snapshot,
    ) -> Result<Value, SimulationError> {
        let created = created(original, namespace, snapshot, &self.lookups, self.cluster.as_ref()).await?;
        Ok(created.1)
    }

    /// Returns the active profiles, with these revisions instead of the active ones.
    async fn with_revisions(
        &self,
        active: &Snapshot,
        revisions: &BTreeMap<String, String>,
    ) -> Result<Snapshot, RevisionError> {
        let mut profiles: Vec<Arc<CompiledProfile>> = active.profiles().iter().map(Arc::clone).collect();
        for (name, revision) in revisions {
            let Some(profile) = profiles.iter_mut().find(|profile| profile.display_name() == &**name) else {
                return Err(RevisionError::Unavailable(format!("profile {name} is no longer active")));
            };
            if profile.revision() == &**revision {
                continue;
            }
            let key = RevisionKey { profile: profile.name().clone(), revision: revision.as_str().into() };
            *profile = self.revision(key).await.map_err(RevisionError::Failed)?.ok_or_else(|| {
                RevisionError::Unavailable(format!("revision {revision} of profile {name} is no longer stored"))
            })?;
        }
        Ok(active.with_profiles(ProfileSet::new(profiles)))
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<CompiledProfile>>, PlanError> {
        let known = self.revisions.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let fetched = fetch::get(self.client.clone(), &key).await;
        let found = match fetched.map_err(|error| PlanError::Revision(Box::new(error)))? {
            Fetched::Compiled(compiled) => Some(compiled),
            Fetched::Missing(_) | Fetched::Unusable(_) => None,
        };
        let mut revisions = self.revisions.lock().unwrap_or_else(PoisonError::into_inner);
        if revisions.len() >= MAX_REVISIONS {
            revisions.clear();
        }
        revisions.insert(key, found.clone());
        Ok(found)
    }
}

/// Returns the annotation of a pod about its upgrades. `None` if there is none, or if it is of another pod.
pub(super) fn read_annotation(pod: &Value) -> Option<Upgraded> {
    Upgraded::read(annotation(pod, UPGRADED_ANNOTATION)?, pod.pointer("/metadata/uid")?.as_str()?)
}

/// Returns the annotation for a pod that gets these revisions.
fn upgraded(running: &Value, wanted: &BTreeMap<String, String>) -> Upgraded {
    let before = read_annotation(running).unwrap_or_default();
    let recorded = revisions(running).into_iter();
    let profiles = recorded.filter_map(|(profile, from)| {
        let to = wanted.get(&profile).filter(|to| **to != from)?.clone();
        Some((profile, UpgradedProfile { from, to }))
    });
    Upgraded {
        uid: running.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned(),
        profiles: profiles.collect(),
        failed: before.failed,
        changed: before.changed,
        running: None,
    }
}

fn annotation<'p>(pod: &'p Value, key: &str) -> Option<&'p str> {
    pod.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// Whether a word of the annotation [`PROFILES_ANNOTATION`] pins a revision of a profile.
fn is_pin(word: &str, profile: &str) -> bool {
    let own_name = profile.rsplit('/').next().unwrap_or_default();
    word.trim().split_once('@').is_some_and(|(name, _)| name == profile || name == own_name)
}

/// Returns the revisions in the injection record of a pod, by profile. Empty without a record.
fn revisions(pod: &Value) -> BTreeMap<String, String> {
    let record: Value =
        annotation(pod, INJECTED_ANNOTATION).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let entries = record.get("profiles").and_then(Value::as_array).into_iter().flatten();
    let text = |entry: &Value, field: &str| Some(entry.get(field)?.as_str()?.to_owned());
    entries.filter_map(|entry| Some((text(entry, "profile")?, text(entry, "revision")?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(profile, revision)| ((*profile).to_owned(), (*revision).to_owned())).collect()
    }

    #[test]
    fn annotation_lists_what_differs_from_record() {
        let record = json!({"profiles": [{"profile": "log", "revision": "r1"}, {"profile": "mesh", "revision": "m1"}]});
        let pod = json!({"metadata": {"uid": "u", "annotations": {
            INJECTED_ANNOTATION: record.to_string(),
            UPGRADED_ANNOTATION: json!({"uid": "u", "failed": {"log": {"revision": "r2", "why": "x"}}}).to_string(),
        }}});
        let next = upgraded(&pod, &map(&[("log", "r3"), ("mesh", "m1")]));
        assert_eq!(next.profiles.keys().collect::<Vec<_>>(), ["log"]);
        assert_eq!((next.revision("log", "r1"), next.revision("mesh", "m1")), ("r3", "m1"));
        assert_eq!(next.failed["log"].revision, "r2");
        assert!(upgraded(&pod, &map(&[("log", "r1"), ("mesh", "m1")])).profiles.is_empty());
    }

    #[test]
    fn pin_names_profile() {
        assert!(is_pin(" log@ab ", "log") && is_pin("log@ab", "shop/log") && is_pin("shop/log@ab", "shop/log"));
        assert!(!is_pin("log", "log") && !is_pin("-log", "log") && !is_pin("logs@ab", "log"));
    }
}
