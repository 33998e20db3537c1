//! Gathers facts from a cluster by `get` and `list` alone. If a permission is missing, the explanation says so and
//! covers the rest.

use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as Object, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, Selector};
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::opt_in_of;
use pillion_control::Lookups;
use pillion_control::Release;
use pillion_control::audit::NamespaceAge;
use pillion_control::informer::cluster_listing;
use pillion_control::informer::lookups::Metrics;
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position};
use pillion_engine::lookup::LookedUp;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::Snapshot;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::facts::{ExplainFacts, NamespaceFacts, Question, Silences};
use super::subject::{self, KINDS, Kind, Target};
use crate::config::WebhookPolicy;
use crate::finding::{Code, Finding, ObjectRef};
use crate::installation::{self, Part, Unread, kept};
use crate::workload::MOST_OWNERS;

/// The maximum number of pods of a workload or a namespace that are checked.
const MOST_PODS: u32 = 500;
/// The maximum number of jobs of a CronJob that are checked.
const MOST_JOBS: usize = 20;
/// The label with the Job's name on its pods.
const JOB_LABEL: &str = "job-name";
/// The API version of all supported kinds.
const VERSION: &str = "v1";

/// Reads facts from a cluster.
pub(crate) struct Cluster {
    client: Client,
    release: Release,
    /// The webhook's policy, if a file was given.
    policy: Option<WebhookPolicy>,
    lookups: Lookups,
}

/// Whether the object exists.
pub(crate) enum Asked {
    /// The questions, and a finding if not all pods were checked.
    Questions(Vec<Question>, Option<Finding>),
    NotThere(Finding),
}

/// Cached lookups for other pods of the same namespace.
#[derive(Debug, Default)]
pub(crate) struct Known {
    owners: Vec<Owners>,
    /// Service accounts, and whether each exists, if known.
    accounts: Vec<(String, Option<bool>)>,
}

/// The owner chain of a pod.
#[derive(Clone, Debug)]
struct Owners {
    /// The UID of the nearest owner; null if there is none.
    first: Value,
    /// The owners that are workloads, nearest first.
    all: Vec<Value>,
    /// Whether all owners could be read.
    is_whole: bool,
}

impl Cluster {
    pub(crate) fn new(client: Client, release: Release, policy: Option<WebhookPolicy>) -> Self {
        let lookups = Lookups::new(client.clone(), Metrics::register(&mut Registry::default()));
        Self { client, release, policy, lookups }
    }

    /// Gathers all facts that do not depend on one pod.
    pub(crate) async fn surroundings(&self, namespace: &str) -> ExplainFacts {
        let mut unread = Vec::new();
        let policy = match &self.policy {
            Some(policy) => Some(policy.clone()),
            None => installation::policy(&self.client, &self.release, &mut unread).await,
        };
        let configurations = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let configurations = configurations.list(&ListParams::default()).await;
        let configurations = kept(configurations, Part::Configurations, &mut unread).map(|list| list.items);
        let ours = configurations
            .iter()
            .flatten()
            .find(|one| one.metadata.name.as_deref() == Some(self.release.configuration()));
        let opt_in =
            ours.and_then(opt_in_of).unwrap_or_else(|| policy.as_ref().map(WebhookPolicy::opt_in).unwrap_or_default());
        let registered = ours
            .filter(|one| one.webhooks.as_ref().is_some_and(|entries| !entries.is_empty()))
            .and_then(|one| Some(one.metadata.creation_timestamp.as_ref()?.0.as_second()));
        let at_once = cluster_listing::read(&self.client, Some(namespace), &opt_in).await;
        unread.extend(at_once.unread.into_iter().map(|(part, why)| (part.into(), why)));
        let mut silences = Silences { registered, ..Silences::default() };
        self.endpoints(&mut silences, &mut unread).await;
        let switched_off = self.switch(&mut silences, &mut unread).await;
        let cluster = policy.as_ref().map(|policy| policy.cluster_facts().ok().flatten());
        let guardrails = policy.map(|policy| policy.guardrails).unwrap_or_default();
        let snapshot = Snapshot::clone(&at_once.snapshot).with_guardrails(guardrails);
        ExplainFacts {
            namespace: self.namespace(namespace, &opt_in, &snapshot).await,
            release: self.release.clone(),
            opt_in,
            snapshot: Arc::new(snapshot),
            configurations,
            stored: at_once.stored,
            broken: at_once.broken,
            switched_off,
            silences,
            unread,
            cluster: cluster.unwrap_or_else(LookedUp::unknown_cluster),
            is_live: true,
        }
    }

    async fn namespace(&self, name: &str, opt_in: &OptIn, snapshot: &Snapshot) -> NamespaceFacts {
        let object = Api::<Object>::all(self.client.clone()).get_opt(name).await.ok().flatten();
        let age = object.as_ref().map(|object| NamespaceAge::of(&object.metadata, opt_in)).unwrap_or_default();
        let metadata = object.map(|object| object.metadata).unwrap_or_default();
        NamespaceFacts {
            name: name.to_owned(),
            found: snapshot.namespace(name),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            age,
        }
    }

    async fn endpoints(&self, silences: &mut Silences, unread: &mut Unread) {
        let Some(slices) = installation::slices(&self.client, &self.release, unread).await else { return };
        silences.ready = Some(installation::endpoints(&slices).iter().filter(|(_, ready)| *ready).count());
        let times = slices.iter().flat_map(|slice| slice.metadata.managed_fields.iter().flatten());
        silences.endpoints_changed = times.filter_map(|entry| Some(entry.time.as_ref()?.0.as_second())).max();
    }

    /// Returns the field manager that switched injection off, if it is off.
    async fn switch(&self, silences: &mut Silences, unread: &mut Unread) -> Option<String> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), self.release.namespace());
        let map = kept(maps.get_opt(self.release.switch()).await, Part::Switch, unread)?;
        if switch::injection(map.as_ref()) != Position::Off {
            return None;
        }
        let managed = map.as_ref().and_then(|map| map.metadata.managed_fields.as_ref());
        let sets = managed.into_iter().flatten().filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.and_then(|fields| fields.get("f:data")?.get(format!("f:{INJECTION_KEY}"))).is_some()
        });
        silences.off_since = sets.filter_map(|entry| Some(entry.time.as_ref()?.0.as_second())).max();
        let who = switch::author(map.as_ref(), INJECTION_KEY).map(|who| format!(", by {who}"));
        Some(who.unwrap_or_default())
    }

    /// Returns the questions about an object and its pods, in this order, and a finding if not all were checked.
    pub(crate) async fn questions(&self, target: &Target, facts: &ExplainFacts) -> anyhow::Result<Asked> {
        let namespace = &facts.namespace.name;
        let mut questions = Vec::new();
        let mut more = None;
        // Pods of one owner need the same lookups, and there may be hundreds.
        let mut known = Known::default();
        if target.kind.kind == "Namespace" {
            questions.push(subject::of_namespace(namespace));
            let (pods, is_cut) = self.pods(namespace, &ListParams::default()).await?;
            more = is_cut;
            questions.extend(pods.iter().map(|pod| subject::of_pod(pod, namespace)));
        } else {
            let found = self.api(target.kind, namespace).get_opt(&target.name).await;
            let found =
                found.with_context(|| format!("{} {namespace}/{} cannot be read", target.kind.kind, target.name))?;
            let Some(found) = found.as_ref().and_then(value) else {
                let object = ObjectRef::new(target.kind.kind, Some(namespace), &target.name);
                return Ok(Asked::NotThere(Finding::new(Code::NotFound, object, "there is no such object")));
            };
            if target.kind.kind == "Pod" {
                questions.push(subject::of_pod(&found, namespace));
            } else {
                questions.extend(subject::of_template(&found, target.kind, namespace));
                let uid = subject::metadata(&found, "uid").unwrap_or_default();
                let (which, left_out) = self.which(&found, target.kind, namespace).await?;
                more = left_out;
                if let Some(which) = which {
                    let (pods, is_cut) = self.pods(namespace, &which).await?;
                    more = more.or(is_cut);
                    for pod in &pods {
                        if self.owners(pod, namespace, &mut known).await.may_be(uid) {
                            questions.push(subject::of_pod(pod, namespace));
                        }
                    }
                }
            }
        }
        for question in &mut questions {
            self.complete(question, facts, &mut known).await;
        }
        Ok(Asked::Questions(questions, more))
    }

    /// Returns the first pods of a list, and a finding if there are more.
    async fn pods(&self, namespace: &str, which: &ListParams) -> anyhow::Result<(Vec<Value>, Option<Finding>)> {
        let list = self.api(kind("Pod"), namespace).list(&which.clone().limit(MOST_PODS)).await;
        let list = list.with_context(|| format!("the pods of namespace {namespace} cannot be listed"))?;
        let is_cut = list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty());
        let message = format!("there are more pods than the first {MOST_PODS}, which were looked at");
        Ok((list.items.iter().filter_map(value).collect(), is_cut.then(|| not_all(namespace, message))))
    }

    /// Returns the list parameters for a workload's pods: by its selector, or by the jobs that it created. Also a
    /// finding if there are more jobs.
    async fn which(
        &self,
        found: &Value,
        kind_of: Kind,
        namespace: &str,
    ) -> anyhow::Result<(Option<ListParams>, Option<Finding>)> {
        if kind_of.kind != "CronJob" {
            return Ok((found.pointer("/spec/selector").map(selecting).transpose()?, None));
        }
        let list = self.api(kind("Job"), namespace).list(&ListParams::default().limit(MOST_PODS)).await;
        let list = list.with_context(|| format!("the jobs of namespace {namespace} cannot be listed"))?;
        let is_cut = list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty());
        let mut names = jobs_of(subject::metadata(found, "uid").unwrap_or_default(), &list.items);
        let is_cut = is_cut || names.len() > MOST_JOBS;
        names.truncate(MOST_JOBS);
        let which = || ListParams::default().labels(&format!("{JOB_LABEL} in ({})", names.join(",")));
        let message = || format!("there are more jobs than the {} that were looked at", names.len());
        Ok(((!names.is_empty()).then(which), is_cut.then(|| not_all(namespace, message()))))
    }

    /// Does the lookups for a question.
    pub(crate) async fn complete(&self, question: &mut Question, facts: &ExplainFacts, known: &mut Known) {
        let namespace = &facts.namespace.name;
        if question.workload.is_none() {
            question.workload = self.owners(question.pod(), namespace, known).await.all.last().cloned();
        }
        let account = subject::account_of(question.pod()).to_owned();
        let is_there = if let Some((_, is_there)) = known.accounts.iter().find(|(name, _)| *name == account) {
            *is_there
        } else {
            let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
            let is_there = accounts.get_metadata_opt(&account).await.ok().map(|found| found.is_some());
            known.accounts.push((account.clone(), is_there));
            is_there
        };
        // The controller manager creates the default account of each namespace, shortly after the namespace.
        question.account =
            is_there.filter(|is_there| *is_there || account != "default").map(|is_there| (account, is_there));
        question.looked_up = self.look_up(question, facts).await;
    }

    async fn look_up(&self, question: &Question, facts: &ExplainFacts) -> LookedUp {
        let asked = Facts { namespace: facts.namespace.found.clone(), ..Facts::default() };
        let wanted = serde_json::to_vec(&question.review).ok().and_then(|body| {
            let review = Review::parse(&body).ok()?;
            Some(review.needs(Endpoint::Any, &facts.snapshot, &asked))
        });
        let mut looked_up = match wanted {
            Some(wanted) if !wanted.is_empty() => self.lookups.get(wanted).await,
            _ => LookedUp::default(),
        };
        looked_up.cluster.clone_from(&facts.cluster);
        looked_up
    }

    /// Returns the owner chain of a pod.
    async fn owners(&self, pod: &Value, namespace: &str, known: &mut Known) -> Owners {
        let Some(uid) = subject::controlling(pod).map(|owner| owner.get("uid").cloned().unwrap_or_default()) else {
            return Owners { all: Vec::new(), first: Value::Null, is_whole: true };
        };
        if let Some(owners) = known.owners.iter().find(|owners| owners.first == uid && !uid.is_null()) {
            return owners.clone();
        }
        let mut owners = Owners { all: Vec::new(), first: uid, is_whole: true };
        let mut at = pod.clone();
        for _ in 0..MOST_OWNERS {
            let Some((kind, name)) = controller(&at) else { break };
            let found = self.api(kind, namespace).get_opt(&name).await;
            owners.is_whole = found.is_ok();
            let Some(mut found) = found.ok().flatten().as_ref().and_then(value) else { break };
            if let Some(fields) = found.as_object_mut() {
                fields.insert("kind".to_owned(), kind.kind.into());
            }
            at = found.clone();
            owners.all.push(found);
        }
        known.owners.push(owners.clone());
        owners
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let kind_ = GroupVersionKind::gvk(kind.group, VERSION, kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind_, kind.plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }
}

fn kind(name: &str) -> Kind {
    KINDS.into_iter().find(|kind| kind.kind == name).unwrap_or(KINDS[0])
}

fn value(object: &DynamicObject) -> Option<Value> {
    serde_json::to_value(object).ok()
}

/// Returns a finding that not everything was checked.
fn not_all(namespace: &str, message: String) -> Finding {
    Finding::new(Code::Unreadable, ObjectRef::new("Namespace", None, namespace), message)
        .remedy("ask about one workload or pod at a time; pillion status looks at all pods")
}

/// Returns the controlling owner of an object, if it is a workload.
fn controller(object: &Value) -> Option<(Kind, String)> {
    let owner = subject::controlling(object)?;
    let kind = subject::kind_of(owner).filter(|kind| !kind.template.is_empty())?;
    Some((kind, owner.get("name")?.as_str()?.to_owned()))
}

/// Returns list parameters for a selector: a label selector, or the plain map of a `ReplicationController`.
fn selecting(selector: &Value) -> anyhow::Result<ListParams> {
    let is_plain = selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none();
    let labels = if is_plain { &json!({"matchLabels": selector}) } else { selector };
    let labels: LabelSelector = serde_json::from_value(labels.clone()).context("its selector cannot be read")?;
    let selector: Selector = labels.try_into().ok().context("its selector cannot be read")?;
    Ok(ListParams::default().labels_from(&selector))
}

/// Returns the names of the jobs that a CronJob created, newest first: their names end with the time.
fn jobs_of(uid: &str, jobs: &[DynamicObject]) -> Vec<String> {
    let is_made = |job: &&DynamicObject| {
        let mut owners = job.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.controller == Some(true) && owner.uid == uid)
    };
    let mut names: Vec<_> = jobs.iter().filter(is_made).filter_map(|job| job.metadata.name.clone()).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    names
}

impl Owners {
    /// Whether the owner chain has this UID, or may have it because an owner could not be read.
    fn may_be(&self, uid: &str) -> bool {
        let is_it = |owner: &Value| subject::metadata(owner, "uid") == Some(uid);
        self.first.as_str() == Some(uid) || self.all.iter().any(is_it) || (!self.is_whole && !self.first.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_asked_by_as_it_stands_with_its_expressions() {
        let asked = |selector: Value| selecting(&selector).unwrap().label_selector.unwrap_or_default();
        let both = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]});
        let text = asked(both);
        assert!(text.contains("app=web") && text.contains("tier in (a,b)"), "{text}");
        let only = json!({"matchExpressions": [{"key": "track", "operator": "DoesNotExist"}]});
        assert_eq!(asked(only), "!track");
        assert_eq!(asked(json!({"app": "web"})), "app=web");
    }

    #[test]
    fn the_jobs_of_a_cron_job_are_those_that_it_made_and_the_newest_come_first() {
        let job = |name: &str, uid: &str| -> DynamicObject {
            let owner =
                json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": uid, "controller": true});
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [owner]}})).unwrap()
        };
        let jobs = [job("backup-29000001", "cron"), job("other-29000009", "else"), job("backup-29000002", "cron")];
        assert_eq!(jobs_of("cron", &jobs), ["backup-29000002", "backup-29000001"]);
    }

    #[test]
    fn a_pod_that_a_selector_finds_belongs_to_a_workload_only_by_its_owners() {
        let owned =
            |by: Value, is_whole| Owners { first: json!("set"), all: vec![json!({"metadata": {"uid": by}})], is_whole };
        assert!(owned(json!("web"), true).may_be("web") && owned(json!("web"), true).may_be("set"));
        assert!(!owned(json!("other"), true).may_be("web"));
        // An unreadable owner chain may contain any owner.
        assert!(owned(json!("other"), false).may_be("web"));
        assert!(!Owners { first: Value::Null, all: Vec::new(), is_whole: true }.may_be("web"));
    }
}
