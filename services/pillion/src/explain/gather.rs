//! Gathers facts from a cluster, with only `get` and `list` requests, or from files. If a permission is missing for
//! facts about the installation or the namespace, the explanation reports it and covers the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace as Object, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, Selector};
use pillion_api::names::{FailureMode, INJECTION_LABEL, NAMESPACE_NAME_LABEL};
use pillion_api::opt_in::OptIn;
use pillion_api::webhook_configuration::{Settings, mutating};
use pillion_control::audit::NamespaceAge;
use pillion_control::informer::lookups::Metrics;
use pillion_control::informer::namespaces;
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position};
use pillion_control::{Lookups, Release};
use pillion_engine::lookup::{KnownObjects, LookedUp};
use pillion_engine::profile::CompiledProfile;
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{ProfileSet, Snapshot};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::facts::{self, ExplainFacts, ExplainedObject, KINDS, Kind, NamespaceFacts, Target, WebhookOutages};
use crate::availability::{self, WebhookDeployment};
use crate::config::WebhookPolicy;
use crate::finding::{Code, Finding, ObjectRef};
use crate::installation::{Installation, endpoints, own_configuration};
use crate::load::{self, LoadError, Problem, Source, yaml};
use crate::workload::MAX_OWNERS;

/// The maximum number of pods of a workload or a namespace that are checked. Also the maximum number of jobs of a
/// namespace among which those of a CronJob are searched.
const MAX_PODS_OF_WORKLOAD: u32 = 500;
/// The maximum number of jobs of a CronJob that are checked.
const MAX_JOBS: usize = 20;
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

/// The objects to explain for a target, if the target exists.
pub(crate) enum Asked {
    /// The objects to explain, and a finding if not all pods were checked.
    Questions(Vec<ExplainedObject>, Option<Finding>),
    NotThere(Finding),
}

/// The owners and service accounts of earlier pods, cached for further pods in the same namespace.
#[derive(Debug, Default)]
pub(crate) struct PodLookupCache {
    owners: Vec<Owners>,
    /// Service accounts, and whether each exists, if known.
    accounts: Vec<(String, Option<bool>)>,
}

/// The owner chain of a pod.
#[derive(Clone, Debug)]
struct Owners {
    /// The UID of the nearest owner; null for a pod without an owner.
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

    /// Gathers all facts that are the same for all pods of the namespace.
    pub(crate) async fn facts(&self, namespace: &str) -> ExplainFacts {
        let Installation { configurations, opt_in, policy, listing, snapshot, slices, switch, mut unread } =
            Installation::read(&self.client, &self.release, Some(namespace), self.policy.as_ref()).await;
        let registered = own_configuration(configurations.as_deref(), &self.release)
            .filter(|one| one.webhooks.as_ref().is_some_and(|entries| !entries.is_empty()))
            .and_then(|one| Some(one.metadata.creation_timestamp.as_ref()?.0.as_second()));
        unread.extend(listing.unread.into_iter().map(|(part, why)| (part.into(), why)));
        let (switched_off, off_since) = switched_off(switch.ok().flatten().as_ref());
        let (ready, endpoints_changed) = endpoint_changes(slices.as_deref());
        let no_replica = match slices.as_deref().map(endpoints).filter(|_| ready == Some(0)) {
            Some(endpoints) => {
                let deployment = WebhookDeployment::read(&self.client, &self.release).await;
                availability::no_ready_replica(&self.release, &endpoints, deployment)
            }
            None => None,
        };
        let outages = WebhookOutages { registered, ready, endpoints_changed, off_since };
        let cluster = policy.map(|policy| policy.cluster_facts().ok().flatten());
        ExplainFacts {
            namespace: self.namespace(namespace, &opt_in, &snapshot).await,
            release: self.release.clone(),
            opt_in,
            snapshot: Arc::new(snapshot),
            configurations,
            stored: listing.stored,
            broken: listing.broken,
            switched_off,
            no_replica,
            outages,
            unread,
            cluster: cluster.unwrap_or_else(LookedUp::unknown_cluster),
            is_live: true,
            now: Timestamp::now().as_second(),
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

    /// Returns the target and its pods as objects to explain, in this order, and a finding if not all pods were
    /// checked.
    pub(crate) async fn questions(&self, target: &Target, facts: &ExplainFacts) -> anyhow::Result<Asked> {
        let namespace = &facts.namespace.name;
        let mut questions = Vec::new();
        let mut more = None;
        // Pods with the same owner need the same lookups, and there may be hundreds of pods.
        let mut known = PodLookupCache::default();
        if target.kind.kind == "Namespace" {
            questions.push(facts::of_namespace(namespace));
            let (pods, is_cut) = self.pods(namespace, &ListParams::default()).await?;
            more = is_cut;
            questions.extend(pods.iter().map(|pod| facts::of_pod(pod, namespace)));
        } else {
            let found = self.api(target.kind, namespace).get_opt(&target.name).await;
            let found =
                found.with_context(|| format!("{} {namespace}/{} cannot be read", target.kind.kind, target.name))?;
            let Some(found) = found.as_ref().and_then(value) else {
                let object = ObjectRef::new(target.kind.kind, Some(namespace), &target.name);
                let finding = Finding::new(Code::NotFound, object, "the object does not exist");
                let others = if target.kind.kind == "Pod" {
                    self.workloads_named(&target.name, namespace).await
                } else {
                    Vec::new()
                };
                return Ok(Asked::NotThere(match others.first() {
                    Some(kind) => finding.remedy(format!("pillion explain {kind}/{} -n {namespace}", target.name)),
                    None => finding,
                }));
            };
            if target.kind.kind == "Pod" {
                questions.push(facts::of_pod(&found, namespace));
            } else {
                questions.extend(facts::of_template(&found, target.kind, namespace));
                let uid = facts::metadata(&found, "uid").unwrap_or_default();
                if let Some(question) = questions.first_mut() {
                    question.rejection = self.rejection(question.workload.as_ref(), uid, namespace).await;
                }
                let (which, left_out) = self.which(&found, target.kind, namespace).await?;
                more = left_out;
                if let Some(which) = which {
                    let (pods, is_cut) = self.pods(namespace, &which).await?;
                    more = more.or(is_cut);
                    for pod in &pods {
                        if self.owners(pod, namespace, &mut known).await.may_be_owned_by(uid) {
                            questions.push(facts::of_pod(pod, namespace));
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

    /// Returns the kinds of the workloads with this name, in lower case.
    async fn workloads_named(&self, name: &str, namespace: &str) -> Vec<String> {
        let mut found = Vec::new();
        for kind in KINDS.into_iter().filter(|kind| !kind.template.is_empty()) {
            if matches!(self.api(kind, namespace).get_metadata_opt(name).await, Ok(Some(_))) {
                found.push(kind.kind.to_lowercase());
            }
        }
        found
    }

    /// Returns the API server's reason for rejecting a pod of a workload that lacks pods, according to the last event.
    /// `None` if no pod is missing, if there is no such event, or if events cannot be read.
    async fn rejection(&self, workload: Option<&Value>, uid: &str, namespace: &str) -> Option<String> {
        let (wanted, found) = facts::pod_counts(workload?)?;
        if found >= wanted {
            return None;
        }
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        let of_workload = ListParams::default().fields(&format!("involvedObject.uid={uid},reason=FailedCreate"));
        let events = events.list(&of_workload).await.ok()?.items;
        let time = |event: &Event| event.last_timestamp.as_ref().map(|time| time.0);
        events.into_iter().max_by_key(time)?.message
    }

    /// Returns the first pods of a list, and a finding if there are more.
    async fn pods(&self, namespace: &str, which: &ListParams) -> anyhow::Result<(Vec<Value>, Option<Finding>)> {
        let list = self.api(kind("Pod"), namespace).list(&which.clone().limit(MAX_PODS_OF_WORKLOAD)).await;
        let list = list.with_context(|| format!("the pods of namespace {namespace} cannot be listed"))?;
        let is_cut = list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty());
        let message = format!("only the first {MAX_PODS_OF_WORKLOAD} pods were checked");
        Ok((list.items.iter().filter_map(value).collect(), is_cut.then(|| not_all(namespace, message))))
    }

    /// Returns the list parameters for a workload's pods: by its selector or, for a CronJob, by the jobs that it
    /// created. Also returns a finding if not all jobs are covered.
    async fn which(
        &self,
        found: &Value,
        kind_of: Kind,
        namespace: &str,
    ) -> anyhow::Result<(Option<ListParams>, Option<Finding>)> {
        if kind_of.kind != "CronJob" {
            return Ok((found.pointer("/spec/selector").map(selecting).transpose()?, None));
        }
        let list = self.api(kind("Job"), namespace).list(&ListParams::default().limit(MAX_PODS_OF_WORKLOAD)).await;
        let list = list.with_context(|| format!("the jobs of namespace {namespace} cannot be listed"))?;
        let is_cut = list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty());
        let mut names = jobs_of(facts::metadata(found, "uid").unwrap_or_default(), &list.items);
        let is_cut = is_cut || names.len() > MAX_JOBS;
        names.truncate(MAX_JOBS);
        let which = || ListParams::default().labels(&format!("{JOB_LABEL} in ({})", names.join(",")));
        let message = || format!("only the latest {} jobs were checked", names.len());
        Ok(((!names.is_empty()).then(which), is_cut.then(|| not_all(namespace, message()))))
    }

    /// Adds the workload, the service account, and the results of the profiles' lookups to an object to explain.
    pub(crate) async fn complete(
        &self,
        question: &mut ExplainedObject,
        facts: &ExplainFacts,
        known: &mut PodLookupCache,
    ) {
        let namespace = &facts.namespace.name;
        if question.workload.is_none() {
            question.workload = self.owners(question.pod(), namespace, known).await.all.last().cloned();
        }
        let account = facts::account_of(question.pod()).to_owned();
        let is_there = if let Some((_, is_there)) = known.accounts.iter().find(|(name, _)| *name == account) {
            *is_there
        } else {
            let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
            let is_there = accounts.get_metadata_opt(&account).await.ok().map(|found| found.is_some());
            known.accounts.push((account.clone(), is_there));
            is_there
        };
        // The controller manager creates the default account shortly after each namespace, so a missing one is not
        // reported.
        question.account =
            is_there.filter(|is_there| *is_there || account != "default").map(|is_there| (account, is_there));
        question.looked_up = self.look_up(question, facts).await;
    }

    async fn look_up(&self, question: &ExplainedObject, facts: &ExplainFacts) -> LookedUp {
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
    async fn owners(&self, pod: &Value, namespace: &str, known: &mut PodLookupCache) -> Owners {
        let Some(uid) = facts::controlling(pod).map(|owner| owner.get("uid").cloned().unwrap_or_default()) else {
            return Owners { all: Vec::new(), first: Value::Null, is_whole: true };
        };
        if let Some(owners) = known.owners.iter().find(|owners| owners.first == uid && !uid.is_null()) {
            return owners.clone();
        }
        let mut owners = Owners { all: Vec::new(), first: uid, is_whole: true };
        let mut at = pod.clone();
        for _ in 0..MAX_OWNERS {
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

/// Returns the number of ready endpoints, and when the slices last changed, in seconds since 1970.
fn endpoint_changes(slices: Option<&[EndpointSlice]>) -> (Option<usize>, Option<i64>) {
    let Some(slices) = slices else { return (None, None) };
    let ready = endpoints(slices).iter().filter(|(_, ready)| *ready).count();
    let times = slices.iter().flat_map(|slice| slice.metadata.managed_fields.iter().flatten());
    (Some(ready), times.filter_map(|entry| Some(entry.time.as_ref()?.0.as_second())).max())
}

/// Returns the field manager that disabled injection (empty if unknown), and the time of that change. Both are `None`
/// unless injection is disabled.
fn switched_off(map: Option<&ConfigMap>) -> (Option<String>, Option<i64>) {
    if switch::injection(map) != Position::Off {
        return (None, None);
    }
    let managed = map.and_then(|map| map.metadata.managed_fields.as_ref());
    let sets = managed.into_iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.and_then(|fields| fields.get("f:data")?.get(format!("f:{INJECTION_KEY}"))).is_some()
    });
    let since = sets.filter_map(|entry| Some(entry.time.as_ref()?.0.as_second())).max();
    (Some(switch::author(map, INJECTION_KEY).unwrap_or_default()), since)
}

fn kind(name: &str) -> Kind {
    KINDS.into_iter().find(|kind| kind.kind == name).unwrap_or(KINDS[0])
}

fn value(object: &DynamicObject) -> Option<Value> {
    serde_json::to_value(object).ok()
}

/// Returns the finding that not all objects were checked.
fn not_all(namespace: &str, message: String) -> Finding {
    Finding::new(Code::Unreadable, ObjectRef::new("Namespace", None, namespace), message)
        .remedy("explain one workload or pod at a time; pillion status checks all pods")
}

/// Returns the controlling owner of an object, if it is a workload.
fn controller(object: &Value) -> Option<(Kind, String)> {
    let owner = facts::controlling(object)?;
    let kind = facts::kind_of(owner).filter(|kind| !kind.template.is_empty())?;
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

/// Returns the names of the jobs that a CronJob created, newest first, since each name ends with the time.
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
    /// Whether the owner chain contains this UID, or may contain it because an owner could not be read.
    fn may_be_owned_by(&self, uid: &str) -> bool {
        let is_it = |owner: &Value| facts::metadata(owner, "uid") == Some(uid);
        self.first.as_str() == Some(uid) || self.all.iter().any(is_it) || (!self.is_whole && !self.first.is_null())
    }
}

/// The arguments of an offline explanation.
pub(crate) struct OfflineInputs<'a> {
    pub(crate) profiles: &'a [PathBuf],
    pub(crate) namespace_file: Option<&'a Path>,
    pub(crate) webhooks_file: Option<&'a Path>,
    pub(crate) policy: &'a WebhookPolicy,
    pub(crate) release: &'a Release,
    pub(crate) namespace: &'a str,
}

/// Returns all objects of a file, with lists expanded. "-" is standard input.
pub(crate) fn objects(file: &Path) -> anyhow::Result<Vec<Value>> {
    let (name, text) = if file.as_os_str() == "-" {
        ("<stdin>".to_owned(), std::io::read_to_string(std::io::stdin()))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let text = text.with_context(|| format!("{name} cannot be read"))?;
    let source = Arc::new(Source::new(name.as_str(), text));
    let documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(&source, fault));
    let documents = documents.map_err(|problem| anyhow::anyhow!("{problem}"))?;
    Ok(expand_lists(documents.iter().map(yaml::Node::to_value)))
}

/// Expands lists into their items.
pub(crate) fn expand_lists(documents: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut objects = Vec::new();
    for document in documents {
        match document.get("items").and_then(Value::as_array) {
            Some(items) if document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List")) => {
                objects.extend(items.iter().cloned());
            }
            _ => objects.push(document),
        }
    }
    objects
}

/// Gathers the facts from files.
///
/// # Errors
/// A file cannot be read or does not contain the namespace, a profile has problems, or the policy has too many or too
/// deeply nested cluster facts.
pub(crate) fn offline_facts(inputs: &OfflineInputs<'_>) -> Result<ExplainFacts, LoadError> {
    let loaded = load::profiles_in(inputs.profiles, inputs.namespace);
    if !loaded.problems.is_empty() {
        return Err(LoadError::Problems(loaded.problems));
    }
    let configurations = inputs.webhooks_file.map(|file| {
        let is_one =
            |object: &Value| object.get("kind").and_then(Value::as_str) == Some("MutatingWebhookConfiguration");
        let found: Result<Vec<MutatingWebhookConfiguration>, _> =
            objects(file)?.into_iter().filter(is_one).map(serde_json::from_value).collect();
        found.with_context(|| format!("cannot read the MutatingWebhookConfigurations in {}", file.display()))
    });
    let configurations = configurations.transpose()?;
    Ok(around(loaded.profiles, namespace(inputs)?, configurations, inputs.policy, inputs.release)?)
}

/// Returns the facts for these profiles in a namespace. `configurations` are the webhook configurations; `None`: the
/// configuration of a release with default settings.
///
/// # Errors
/// The policy has too many cluster facts, or they nest too deeply.
pub(crate) fn around(
    profiles: impl IntoIterator<Item = Arc<CompiledProfile>>,
    mut metadata: ObjectMeta,
    configurations: Option<Vec<MutatingWebhookConfiguration>>,
    policy: &WebhookPolicy,
    release: &Release,
) -> anyhow::Result<ExplainFacts> {
    let opt_in = policy.opt_in();
    let name = metadata.name.clone().unwrap_or_default();
    // The API server sets this label on every namespace.
    metadata.labels.get_or_insert_default().insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
    let age = NamespaceAge::of(&metadata, &opt_in);
    let (labels, annotations) =
        (metadata.labels.clone().unwrap_or_default(), metadata.annotations.clone().unwrap_or_default());
    let snapshot = Snapshot::new(ProfileSet::new(profiles)).with_guardrails(policy.guardrails.clone());
    let snapshot = snapshot.with_namespaces([namespaces::read(metadata, &opt_in)]);
    let configurations = configurations.unwrap_or_else(|| {
        vec![mutating(&Settings {
            name: release.configuration().to_owned(),
            service_name: release.service().to_owned(),
            failure_modes: FailureMode::ALL.to_vec(),
            opt_in: opt_in.clone(),
            ..Settings::new(release.namespace(), "files")
        })]
    });
    Ok(ExplainFacts {
        namespace: NamespaceFacts { found: snapshot.namespace(&name), name, labels, annotations, age },
        release: release.clone(),
        opt_in,
        snapshot: Arc::new(snapshot),
        configurations: Some(configurations),
        stored: Vec::new(),
        broken: Vec::new(),
        switched_off: None,
        no_replica: None,
        outages: WebhookOutages::default(),
        unread: Vec::new(),
        cluster: policy.cluster_facts()?,
        is_live: false,
        now: Timestamp::now().as_second(),
    })
}

/// Returns the metadata of an opted-in namespace without a name.
pub(crate) fn opted_in() -> ObjectMeta {
    let labels = [(INJECTION_LABEL.to_owned(), FailureMode::Enabled.label_value().to_owned())];
    ObjectMeta { labels: Some(labels.into()), ..ObjectMeta::default() }
}

/// Returns the metadata of the namespace from the file; without a file, of an opted-in namespace.
fn namespace(inputs: &OfflineInputs<'_>) -> anyhow::Result<ObjectMeta> {
    let name = inputs.namespace;
    let mut metadata = match inputs.namespace_file {
        None => opted_in(),
        Some(file) => {
            let all = objects(file)?;
            let is_it = |object: &&Value| {
                object.get("kind").and_then(Value::as_str).is_none_or(|kind| kind == "Namespace")
                    && facts::metadata(object, "name") == Some(name)
            };
            let Some(found) = all.iter().find(is_it) else {
                bail!("there is no Namespace {name} in {}", file.display());
            };
            let metadata = found.get("metadata").cloned().unwrap_or_default();
            serde_json::from_value(metadata)
                .with_context(|| format!("cannot read the Namespace in {}", file.display()))?
        }
    };
    metadata.name = Some(name.to_owned());
    Ok(metadata)
}

/// Returns the namespace of a file's pods and workloads: `asked`, or else the one that they have, or else `default`.
///
/// # Errors
/// The objects have different namespaces, or one has a namespace other than `asked`.
pub(crate) fn namespace_of(objects: &[Value], asked: Option<&str>) -> anyhow::Result<String> {
    let mut found = asked.map(|asked| (asked, "-n".to_owned()));
    for object in objects {
        let Some(kind) = facts::kind_of(object).filter(|kind| kind.kind != "Namespace") else { continue };
        let Some(namespace) = facts::metadata(object, "namespace") else { continue };
        let who = format!("{} {}", kind.kind, facts::metadata(object, "name").unwrap_or_default());
        match &found {
            Some((other, by)) if *other != namespace => {
                bail!(
                    "{by} has namespace {other}, and {who} is in namespace {namespace}: explain one namespace at a time"
                )
            }
            Some(_) => {}
            None => found = Some((namespace, who)),
        }
    }
    Ok(found.map_or("default", |(namespace, _)| namespace).to_owned())
}

/// Returns the pods and workloads of a file as objects to explain.
pub(crate) fn questions(objects: &[Value], namespace: &str) -> Vec<ExplainedObject> {
    let question = |object: &Value| {
        let kind = facts::kind_of(object)?;
        match kind.kind {
            "Pod" => Some(facts::of_pod(object, namespace)),
            "Namespace" => None,
            _ => facts::of_template(object, kind, namespace),
        }
    };
    objects.iter().filter_map(question).collect()
}

/// Resolves the lookups for an object to explain, using only the given objects.
pub(crate) fn complete(question: &mut ExplainedObject, facts: &ExplainFacts, objects: &[Value]) {
    let known = KnownObjects::new(objects, &facts.namespace.name);
    let asked = Facts { namespace: facts.namespace.found.clone(), ..Facts::default() };
    let wanted = serde_json::to_vec(&question.review).ok().and_then(|body| {
        let review = Review::parse(&body).ok()?;
        Some(review.needs(Endpoint::Any, &facts.snapshot, &asked))
    });
    question.looked_up = wanted.map_or_else(LookedUp::default, |wanted| known.answer(wanted));
    question.looked_up.cluster.clone_from(&facts.cluster);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selector_query_keeps_expressions() {
        let asked = |selector: Value| selecting(&selector).unwrap().label_selector.unwrap_or_default();
        let both = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]});
        let text = asked(both);
        assert!(text.contains("app=web") && text.contains("tier in (a,b)"), "{text}");
        let only = json!({"matchExpressions": [{"key": "track", "operator": "DoesNotExist"}]});
        assert_eq!(asked(only), "!track");
        assert_eq!(asked(json!({"app": "web"})), "app=web");
    }

    #[test]
    fn cron_job_lists_own_jobs_newest_first() {
        let job = |name: &str, uid: &str| -> DynamicObject {
            let owner =
                json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "backup", "uid": uid, "controller": true});
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [owner]}})).unwrap()
        };
        let jobs = [job("backup-29000001", "cron"), job("other-29000009", "else"), job("backup-29000002", "cron")];
        assert_eq!(jobs_of("cron", &jobs), ["backup-29000002", "backup-29000001"]);
    }

    #[test]
    fn selected_pod_belongs_only_by_owner() {
        let owned =
            |by: Value, is_whole| Owners { first: json!("set"), all: vec![json!({"metadata": {"uid": by}})], is_whole };
        assert!(owned(json!("web"), true).may_be_owned_by("web") && owned(json!("web"), true).may_be_owned_by("set"));
        assert!(!owned(json!("other"), true).may_be_owned_by("web"));
        // An unreadable owner chain may contain any owner.
        assert!(owned(json!("other"), false).may_be_owned_by("web"));
        assert!(!Owners { first: Value::Null, all: Vec::new(), is_whole: true }.may_be_owned_by("web"));
    }

    #[test]
    fn objects_of_file_must_share_requested_namespace() {
        let pod = |name: &str, namespace: Option<&str>| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}});
        let of = |objects: &[Value], asked| namespace_of(objects, asked).map_err(|error| error.to_string());
        assert_eq!(of(&[pod("a", None)], None).unwrap(), "default");
        assert_eq!(of(&[pod("a", None), pod("b", Some("shop"))], None).unwrap(), "shop");
        assert_eq!(of(&[pod("a", Some("shop"))], Some("shop")).unwrap(), "shop");
        let two = of(&[pod("a", Some("shop")), pod("b", Some("till"))], None).unwrap_err();
        assert!(two.contains("Pod a has namespace shop, and Pod b is in namespace till"), "{two}");
        assert!(of(&[pod("a", Some("shop"))], Some("till")).unwrap_err().contains("-n has namespace till"));
    }
}
