//! What the audit found of each profile, as the condition `Injected` of its status: for whoever looks at the profile.
//!
//! It has a field manager of its own, so that whoever writes the rest of the status never takes it away, and the other way
//! round. What has not changed is not written; the first report of a term is held against what stands there.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use pillion_api::kinds::ProfileStatus;
use pillion_api::names::API_VERSION;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;

use super::report::ProfileAudit;
use super::task::Audited;
use crate::leading::Leading;
use crate::watch::chain;

/// The condition's type: `True` while every pod that a profile is for has it as it is at work.
pub const INJECTED: &str = "Injected";

/// Who manages the condition.
const MANAGER: &str = "pillion-controller-audit";
/// At most so often: pods come and go, and each write is one that every watcher of profiles gets.
const AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// Writes conditions while it leads.
pub async fn run(leading: Leading, mut audited: watch::Receiver<Audited>) {
    let writing = async {
        let mut told: BTreeMap<Box<str>, Said> = BTreeMap::new();
        while audited.changed().await.is_ok() {
            let found = audited.borrow_and_update().clone();
            for (profile, said) in due(&mut told, found.profiles()) {
                if let Err(error) = write(&leading.client, &profile, &said).await {
                    debug!(%profile, error = chain(&error), "what the audit found of a profile was not written; trying again");
                    told.remove(&profile);
                }
            }
            sleep(AT_MOST_EVERY).await;
        }
    };
    leading.stop.run_until_cancelled(writing).await;
}

/// What is new, and notes it as told.
fn due(told: &mut BTreeMap<Box<str>, Said>, found: &BTreeMap<Box<str>, ProfileAudit>) -> Vec<(Box<str>, Said)> {
    let mut now: BTreeMap<Box<str>, Said> = found.iter().map(|(name, audit)| (name.clone(), said(audit))).collect();
    // The last pod of a profile is gone, or the profile itself, which is found when it is written.
    for name in told.keys() {
        now.entry(name.clone()).or_insert_with(|| said(&ProfileAudit::default()));
    }
    let new = now.iter().filter(|(name, said)| told.get(*name) != Some(said));
    let new = new.map(|(name, said)| (name.clone(), said.clone())).collect();
    *told = now;
    new
}

fn said(audit: &ProfileAudit) -> Said {
    let ProfileAudit { injected, missing, outdated, surplus, undecided } = *audit;
    let (status, reason) = match (missing, outdated, surplus, undecided, injected) {
        (1.., ..) => ("False", "PodsWithout"),
        (0, 1.., ..) => ("False", "PodsOutdated"),
        (0, 0, 1.., ..) => ("False", "PodsWithNeedless"),
        (0, 0, 0, 1.., _) => ("Unknown", "PodsUndecided"),
        (0, 0, 0, 0, 1..) => ("True", "AllInjected"),
        (0, 0, 0, 0, 0) => ("True", "NoPods"),
    };
    let counts = [
        (injected, "as it is at work"),
        (missing, "lack it"),
        (outdated, "have an older revision"),
        (surplus, "have it and should not"),
        (undecided, "are not decided about"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let message = if counts.is_empty() { "it is for no pod at present".to_owned() } else { format!("pods: {counts}") };
    Said { status, reason, message }
}

async fn write(client: &Client, profile: &str, said: &Said) -> kube::Result<()> {
    let (namespace, name) =
        profile.split_once('/').map_or((None, profile), |(namespace, name)| (Some(namespace), name));
    let (api, kind) = if let Some(namespace) = namespace {
        let resource = ApiResource::erase::<InjectionProfile>(&());
        (Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource), InjectionProfile::KIND)
    } else {
        let resource = ApiResource::erase::<ClusterInjectionProfile>(&());
        (Api::all_with(client.clone(), &resource), ClusterInjectionProfile::KIND)
    };
    let Some(stored) = api.get_opt(name).await? else { return Ok(()) };
    let status = stored.data.get("status").cloned().unwrap_or(Value::Null);
    let status: ProfileStatus = serde_json::from_value(status).unwrap_or_default();
    let before = status.conditions.iter().find(|condition| condition.type_ == INJECTED);
    let Some(condition) = condition(before, said, stored.metadata.generation, Timestamp::now()) else { return Ok(()) };
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "uid": stored.metadata.uid},
        "status": {"conditions": [condition]},
    });
    let parameters = PatchParams::apply(MANAGER).force();
    match api.patch_status(name, &parameters, &Patch::Apply(&body)).await {
        Ok(_) => Ok(()),
        // Deleted, or deleted and made anew, since it was read.
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The condition to be written; `None` if it stands there.
fn condition(before: Option<&Condition>, said: &Said, generation: Option<i64>, now: Timestamp) -> Option<Condition> {
    let is_there = |before: &&Condition| {
        before.status == said.status && before.reason == said.reason && before.message == said.message
    };
    if before.as_ref().is_some_and(is_there) {
        return None;
    }
    let since = before.filter(|before| before.status == said.status).map(|before| before.last_transition_time.clone());
    Some(Condition {
        last_transition_time: since.unwrap_or(Time(now)),
        message: said.message.clone(),
        observed_generation: generation,
        reason: said.reason.to_owned(),
        status: said.status.to_owned(),
        type_: INJECTED.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(injected: u64, missing: u64, outdated: u64) -> ProfileAudit {
        ProfileAudit { injected, missing, outdated, ..ProfileAudit::default() }
    }

    #[test]
    fn the_worst_decides_and_all_is_said() {
        for (found, status, reason, message) in [
            (audit(0, 0, 0), "True", "NoPods", "it is for no pod at present"),
            (audit(3, 0, 0), "True", "AllInjected", "pods: 3 as it is at work"),
            (audit(3, 1, 2), "False", "PodsWithout", "pods: 3 as it is at work, 1 lack it, 2 have an older revision"),
            (audit(0, 0, 2), "False", "PodsOutdated", "pods: 2 have an older revision"),
            (
                ProfileAudit { surplus: 1, ..audit(1, 0, 0) },
                "False",
                "PodsWithNeedless",
                "pods: 1 as it is at work, 1 have it and should not",
            ),
            (
                ProfileAudit { undecided: 4, ..audit(1, 0, 0) },
                "Unknown",
                "PodsUndecided",
                "pods: 1 as it is at work, 4 are not decided about",
            ),
        ] {
            assert_eq!(said(&found), Said { status, reason, message: message.to_owned() });
        }
    }

    #[test]
    fn only_what_is_new_is_told() {
        let (mut told, mut found) = (BTreeMap::new(), BTreeMap::new());
        found.insert("a".into(), audit(1, 0, 0));
        found.insert("b".into(), audit(1, 1, 0));
        assert_eq!(due(&mut told, &found).len(), 2);
        assert_eq!(due(&mut told, &found).len(), 0);
        found.insert("b".into(), audit(2, 0, 0));
        assert_eq!(due(&mut told, &found).iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["b"]);
        found.remove("a");
        let gone = due(&mut told, &found);
        assert_eq!(gone.iter().map(|(name, said)| (&**name, said.reason)).collect::<Vec<_>>(), [("a", "NoPods")]);
    }

    #[test]
    fn the_time_is_that_of_the_status_and_what_stands_there_is_not_written() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let first = condition(None, &said(&audit(1, 1, 0)), Some(2), early).unwrap();
        assert_eq!((first.status.as_str(), first.observed_generation), ("False", Some(2)));
        assert_eq!(condition(Some(&first), &said(&audit(1, 1, 0)), Some(2), late), None);
        let second = condition(Some(&first), &said(&audit(1, 2, 0)), Some(2), late).unwrap();
        assert_eq!(second.last_transition_time.0, early, "it was false before");
        let third = condition(Some(&second), &said(&audit(3, 0, 0)), Some(2), late).unwrap();
        assert_eq!(third.last_transition_time.0, late);
    }
}
