//! Findings of `explain`, `doctor` and `status`, as data: a stable code, a message, and a remedy.
//!
//! The set of codes is stable: programs compare them, and `docs/explain.md` lists them. A code never changes its
//! meaning. Details of a specific cluster are in the message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use serde::{Serialize, Serializer};

/// The maximum number of printed findings about pods, for each code and profile.
const MAX_SIMILAR_FINDINGS: usize = 10;
/// The maximum number of further pods that are named in a shared finding, and of remedies that are printed for it.
const MAX_NAMED_PODS: usize = 5;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Something does not work.
    Error,
    /// Something may not work, or does not work for all objects.
    Warning,
    /// Information; nothing is wrong.
    Info,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal, $severity:ident, $remedy:literal;)+) => {
        /// The stable code of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Code {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Code {
            /// All codes, in the order of the documentation.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the code as a stable string.
            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Returns the default severity of findings with this code.
            const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)+ }
            }

            /// Returns the default remedy of findings with this code.
            const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)+ }
            }
        }
    };
}

codes! {
    // Reasons why the API server does not call the webhook.
    /// The namespace has no label that opts it in.
    NotOptedIn => "not_opted_in", Error, "label the namespace with pillion.dev/injection=enabled, then restart its workloads";
    /// The opt-in label has an unknown value.
    OptInValueUnknown => "opt_in_value_unknown", Error, "use one of the values enabled, required and held";
    /// A label resembles the opt-in label, but has another key.
    OptInLabelMisspelt => "opt_in_label_misspelt", Error, "use the label pillion.dev/injection";
    /// The namespace is a system namespace. Pillion never injects into these.
    SystemNamespace => "system_namespace", Error, "run the workload in another namespace";
    /// The namespace is opted in, but the webhook configuration excludes its name, or has no entry for its failure
    /// mode.
    ExcludedNamespace => "excluded_namespace", Error, "use another namespace, or remove this one from webhooks.excludedNamespaces";
    /// The pod opts out.
    OptedOut => "opted_out", Error, "remove the opt-out from the pod template if the pod should be injected";
    /// No webhook configuration makes the API server call Pillion.
    NotRegistered => "not_registered", Error, "check that the controller runs: it writes the configuration once a replica is ready";
    /// A condition in the webhook configuration excludes the pod.
    WebhookCondition => "webhook_condition", Error, "change the condition in the webhook configuration, or the pod";
    /// A condition in the webhook configuration cannot be evaluated for this pod.
    WebhookConditionFailed => "webhook_condition_failed", Error, "correct the condition in the webhook configuration";
    // Requests for profiles.
    /// A label or annotation that controls injection is on the workload, and not in its pod template.
    AnnotationOnWorkload => "annotation_on_workload", Error, "move it to spec.template.metadata of the workload";
    /// Neither the pod nor its namespace requests a profile.
    NotRequested => "not_requested", Error, "add an annotation to the pod (of a workload: to spec.template.metadata): pillion.dev/profiles: NAME";
    /// There is no profile for this namespace.
    NoProfile => "no_profile", Error, "create a ClusterInjectionProfile, or an InjectionProfile in the namespace";
    /// The requested profile does not exist.
    UnknownProfile => "unknown_profile", Error, "request one of the profiles that kubectl get ciprof,iprof -n NAMESPACE lists";
    /// The request could mean several profiles.
    AmbiguousRequest => "ambiguous_request", Error, "request one profile by its name";
    // Constraints of the profile.
    /// The namespace's labels do not match the profile's `namespaceSelector`.
    NamespaceSelector => "namespace_selector", Error, "label the namespace as the profile's namespaceSelector requires, or use another profile";
    /// The pod's labels do not match the profile's `objectSelector`.
    ObjectSelector => "object_selector", Error, "label the pod template as the profile's objectSelector requires, or use another profile";
    /// A match condition of the profile is false.
    MatchCondition => "match_condition", Error, "change the pod so that the condition holds, or the condition in the profile";
    /// A precondition of the profile is not met.
    Precondition => "precondition", Error, "change the pod so that the precondition is met, or the precondition in the profile";
    /// A condition of the profile excludes pods on the host's network.
    HostNetwork => "host_network", Error, "remove hostNetwork: true from the pod template, or opt the pod out";
    /// An expression of the profile could not be evaluated.
    ExpressionFailed => "expression_failed", Error, "correct the expression in the profile; try it offline with pillion explain -f and -p";
    /// A lookup of the profile failed.
    LookupFailed => "lookup_failed", Error, "check that the webhook may read the object, and that it exists";
    /// A parameter has a value that the profile does not allow.
    InvalidParameter => "invalid_parameter", Error, "set the annotation to a value that the profile allows";
    /// Another profile of the same exclusive group is applied.
    ExclusiveGroup => "exclusive_group", Info, "request only one profile of the group";
    /// The pod's author already uses a name that the profile adds.
    NameTaken => "name_taken", Error, "rename the container or volume in the pod template";
    /// The pod's operating system differs from that of the profile's containers.
    OperatingSystem => "operating_system", Error, "do not use the profile for pods of this operating system";
    /// The profile's template does not fit the object.
    TemplateConflict => "template_conflict", Error, "change the field in the pod template, or the profile";
    /// The result would exceed a limit of Kubernetes, of Pillion or of the platform's guardrails.
    LimitExceeded => "limit_exceeded", Error, "see the message; the platform's guardrails limit the profiles of tenants";
    /// The pod is rejected.
    Rejected => "rejected", Error, "correct the cause in the message; until then the pod is not created";
    /// The stored version of the profile is not active: it does not compile, or was not accepted.
    ProfileNotReady => "profile_not_ready", Error, "pillion lint shows the errors in its spec; kubectl describe shows what the controller reports";
    /// The controller has not reconciled this generation of the profile yet.
    ProfilePending => "profile_pending", Warning, "wait a moment; if this does not change, check that the controller runs";
    /// The profile is rolled back: replicas serve an earlier revision than the last accepted one.
    RolledBack => "rolled_back", Info, "correct the profile, or end the rollback: pillion profiles rollback NAME --undo";
    // The time of the pod's creation.
    /// The pod is older than the namespace's opt-in label, or was created so shortly after it that the label had no
    /// effect yet.
    CreatedBeforeOptIn => "created_before_opt_in", Error, "restart the workload: pods are injected when they are created";
    /// The pod is older than the profile, or was created so shortly after it that the profile had no effect yet.
    CreatedBeforeProfile => "created_before_profile", Error, "restart the workload: pods are injected when they are created";
    /// The webhook did not answer when the pod was created: it was not registered yet, unavailable, or too slow.
    WebhookUnavailable => "webhook_unavailable", Error, "check that replicas are ready (pillion doctor), then restart the workload";
    /// It is unknown why the pod was not injected: the webhook did not answer, or skipped the profile.
    Unexplained => "unexplained", Error, "check that replicas are ready (pillion doctor) and what the controller's audit reports, then restart the workload";
    /// Labels or annotations of the namespace have changed since the pod was created.
    NamespaceChanged => "namespace_changed", Error, "restart the workload: pods are injected when they are created";
    /// The profile has changed since the pod was created, and only now matches the pod.
    ProfileChanged => "profile_changed", Error, "restart the workload: pods are injected when they are created";
    /// New pods get a different revision of the profile than this pod has.
    OutdatedRevision => "outdated_revision", Warning, "restart the workload: new pods get the active revision";
    /// The pod has a profile that was deleted, or that no longer matches the pod.
    OrphanedProfile => "orphaned_profile", Warning, "restart the workload to remove it";
    /// An injected part is missing from the pod: another webhook or policy removed it.
    RemovedAfterInjection => "removed_after_injection", Error, "find out which of the listed webhooks removes it, and configure that webhook to keep the field";
    /// The injection record in the pod was not written by Pillion.
    ForeignRecord => "foreign_record", Warning, "remove the annotation pillion.dev/injected from the pod template: it was copied from another pod";
    /// The webhook reviewed the pod, and skipped the profile.
    ProfileSkipped => "profile_skipped", Error, "restart the workload and read the warnings of the API server";
    /// A container that Pillion added does not start, crashes, runs out of memory or is not ready. Or it is an init
    /// container that does not complete.
    SidecarNotRunning => "sidecar_not_running", Error, "correct the container in the profile, then restart the workload";
    /// The scheduler found no node for the pod, which includes requests that a profile adds.
    NotScheduled => "not_scheduled", Error, "add nodes, or lower the requests in the profile or the pod";
    /// A scheduling gate holds the pod until it can be injected.
    Held => "held", Warning, "check that replicas are ready (pillion doctor): the controller then recreates the pod";
    /// The workload has fewer pods than it should have, because the API server rejects new ones.
    PodsMissing => "pods_missing", Error, "remove the cause in the message; the controller manager then creates the pods, after a pause";
    // The object itself.
    /// The pod is the mirror pod of a static pod, and cannot be changed.
    MirrorPod => "mirror_pod", Error, "use a DaemonSet, or add the sidecar to the static pod's manifest on the node";
    /// The request was a dry run: nothing was stored.
    DryRun => "dry_run", Info, "send it without --dry-run";
    /// The object does not exist.
    NotFound => "not_found", Error, "check the name and the namespace, and that the object was not created by a dry run";
    /// The object is being deleted, or the pod has terminated.
    BeingDeleted => "being_deleted", Info, "no action is needed: Pillion does not inject into terminated pods and objects that are being deleted";
    /// The object is not injected because of its resource or operation, or because the pod has no containers.
    NothingToInject => "nothing_to_inject", Info, "pods are injected when they are created";
    /// The pod's service account does not exist.
    ServiceAccountMissing => "service_account_missing", Error, "create the service account, or correct spec.serviceAccountName";
    // The installation.
    /// Injection is disabled for the whole cluster.
    SwitchedOff => "switched_off", Error, "set injection: enabled in the release's ConfigMap";
    /// An administrator removed the webhook configurations.
    WebhooksDisabled => "webhooks_disabled", Error, "set webhooks: enabled in the release's ConfigMap";
    /// The value of a switch in the release's ConfigMap is unknown, so the switch keeps its previous state.
    SwitchUnreadable => "switch_unreadable", Error, "set it to enabled or disabled";
    /// The API servers do not trust the replicas' serving certificate.
    CaBundleMismatch => "ca_bundle_mismatch", Error, "check that the controller runs: it corrects the bundle within a second";
    /// The serving certificate is missing or invalid.
    CertificateInvalid => "certificate_invalid", Error, "check that the controller runs: it creates a new one";
    /// The serving certificate expires soon and was not renewed.
    CertificateExpiring => "certificate_expiring", Warning, "check that the controller runs and leads: it renews the certificate";
    /// No replica is ready.
    NoReadyReplica => "no_ready_replica", Error, "see kubectl get pods and the events in the release's namespace";
    /// Only one replica is ready.
    FewReadyReplicas => "few_ready_replicas", Warning, "run at least two replicas";
    /// A replica is listed as ready but is unreachable.
    ReplicaUnreachable => "replica_unreachable", Error, "look for a NetworkPolicy, a firewall or a failed node between API server and replica";
    /// A dry run returned a pod without all parts of its profile, or the API server could not call the webhook.
    DryRunFailed => "dry_run_failed", Error, "see the other findings: the API server gets no usable response";
    /// No dry run was possible, so the path through the API server is untested.
    DryRunNotTried => "dry_run_not_tried", Info, "opt a namespace in, and run the command as a user who may create pods there";
    /// A service account lacks an RBAC permission that its component needs.
    PermissionMissing => "permission_missing", Error, "apply the roles of the chart (or of deploy/rbac) again";
    /// No controller holds the Lease, or its holder has stopped renewing it.
    NoLeader => "no_leader", Error, "check that the controller runs and reaches the API server";
    /// The CRDs are missing.
    CrdMissing => "crd_missing", Error, "pillion crds | kubectl apply -f -";
    /// An added container lacks a request or a limit that a quota or an autoscaler of the namespace needs.
    RequestsMissing => "requests_missing", Warning, "set the request or the limit in the profile, then restart the workloads";
    /// Another webhook also changes pods.
    OtherInjector => "other_injector", Info, "check that both do not change the same fields of the same pods";
    /// The versions of replicas, controllers and this program differ.
    VersionSkew => "version_skew", Warning, "finish the upgrade";
    /// The command did not check everything, usually because it could not read an object.
    Unreadable => "unreadable", Warning, "ask for the permission, or ask a user who has it to run the command";
}

/// The object that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ObjectRef {
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// A finding about an object, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) code: Code,
    pub(crate) severity: Severity,
    /// A description of the problem.
    pub(crate) message: String,
    /// What the user can do to solve the problem.
    pub(crate) remedy: String,
    pub(crate) object: ObjectRef,
    /// The profile that the finding is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<String>,
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl ObjectRef {
    pub(crate) fn new(kind: &str, namespace: Option<&str>, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(formatter, "{} {namespace}/{}", self.kind, self.name),
            None => write!(formatter, "{} {}", self.kind, self.name),
        }
    }
}

impl Finding {
    pub(crate) fn new(code: Code, object: ObjectRef, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            message: message.into(),
            remedy: code.remedy().to_owned(),
            object,
            profile: None,
        }
    }

    /// Replaces the remedy with a specific one.
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// Sets the profile that the finding is about.
    pub(crate) fn of_profile(self, profile: &str) -> Self {
        Self { profile: Some(profile.to_owned()), ..self }
    }

    pub(crate) fn graded(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

/// Sorts findings by severity, most severe first, and removes duplicates.
pub(crate) fn sorted(findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut findings: Vec<_> = findings
        .into_iter()
        .filter(|finding| {
            seen.insert((finding.code, finding.object.clone(), finding.profile.clone(), finding.message.clone()))
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Whether all findings are informational, so that no action is needed.
pub(crate) fn needs_no_action(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.severity == Severity::Info)
}

/// A finding, together with the same findings about other pods. They are printed as one finding.
struct FoldedFinding<'f> {
    first: &'f Finding,
    others: Vec<&'f Finding>,
}

impl FoldedFinding<'_> {
    /// Returns the names of the other pods; empty if there are none.
    fn others(&self) -> String {
        let count = self.others.len();
        if count == 0 {
            return String::new();
        }
        let some: Vec<_> = self.others.iter().map(|other| other.object.name.as_str()).take(MAX_NAMED_PODS).collect();
        let rest = if count > MAX_NAMED_PODS { ", …" } else { "" };
        format!(" and {count} more: {}{rest}", some.join(", "))
    }

    /// Returns the distinct remedies, since each pod may need another command.
    fn remedies(&self) -> Vec<&str> {
        let mut remedies: Vec<&str> = Vec::new();
        for finding in std::iter::once(self.first).chain(self.others.iter().copied()) {
            if !remedies.contains(&finding.remedy.as_str()) {
                remedies.push(&finding.remedy);
            }
        }
        remedies
    }
}

/// Groups findings that differ only in the pod's name or the remedy. Findings about other kinds are not grouped.
fn folded(findings: &[Finding]) -> Vec<FoldedFinding<'_>> {
    let mut folded: Vec<FoldedFinding<'_>> = Vec::new();
    for finding in findings {
        let is_same = |first: &Finding| {
            finding.object.kind == "Pod"
                && (first.code, first.severity, &first.profile, &first.message)
                    == (finding.code, finding.severity, &finding.profile, &finding.message)
                && (&first.object.kind, &first.object.namespace) == (&finding.object.kind, &finding.object.namespace)
        };
        match folded.iter_mut().find(|group| is_same(group.first)) {
            Some(group) => group.others.push(finding),
            None => folded.push(FoldedFinding { first: finding, others: Vec::new() }),
        }
    }
    folded
}

/// Formats findings for a terminal, each with its remedy. Shows at most [`MAX_SIMILAR_FINDINGS`] findings about pods
/// for each code and profile.
pub(crate) fn lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut alike: BTreeMap<(Code, Option<&str>), usize> = BTreeMap::new();
    for group in folded(findings) {
        let Finding { code, severity, message, object, profile, .. } = group.first;
        if object.kind == "Pod" {
            let count = alike.entry((*code, profile.as_deref())).or_default();
            *count += 1;
            if *count > MAX_SIMILAR_FINDINGS {
                continue;
            }
        }
        let (colour, word) = match severity {
            Severity::Error => ("\u{1b}[31m", "error"),
            Severity::Warning => ("\u{1b}[33m", "warning"),
            Severity::Info => ("\u{1b}[36m", "info"),
        };
        let of = profile.as_ref().map(|profile| format!(", profile {profile}")).unwrap_or_default();
        let more = group.others();
        // Indents further lines, so that text from the cluster cannot imitate a finding.
        let message = message.replace('\n', "\n  ");
        // Writing to a string never fails.
        let code = code.as_str();
        let _ = writeln!(text, "{colour}{word}\u{1b}[0m \u{1b}[1m{code}\u{1b}[0m: {object}{more}{of}\n  {message}");
        let remedies = group.remedies();
        for remedy in remedies.iter().take(MAX_NAMED_PODS) {
            let _ = writeln!(text, "  \u{1b}[32mdo\u{1b}[0m: {remedy}");
        }
        if remedies.len() > MAX_NAMED_PODS {
            let _ = writeln!(
                text,
                "  and {} more commands like these; -o json lists them",
                remedies.len() - MAX_NAMED_PODS
            );
        }
    }
    for ((code, _), count) in alike.into_iter().filter(|(_, count)| *count > MAX_SIMILAR_FINDINGS) {
        let _ = writeln!(text, "and {} more of {}; -o json lists all", count - MAX_SIMILAR_FINDINGS, code.as_str());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: Code, name: &str) -> Finding {
        Finding::new(code, ObjectRef::new("Pod", Some("shop"), name), "what")
    }

    #[test]
    fn codes_are_unique_snake_case_with_remedies() {
        let mut seen = BTreeSet::new();
        for code in Code::ALL {
            let text = code.as_str();
            assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{text}");
            assert!(seen.insert(text), "{text} twice");
            assert!(code.remedy().len() > 10, "{text}");
        }
        assert_eq!(serde_json::to_value(Code::NameTaken).unwrap(), "name_taken");
    }

    #[test]
    fn page_lists_codes_with_severity_and_remedy() {
        let page = include_str!("../../../docs/explain.md");
        let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        let listed: Vec<_> = rows
            .iter()
            .filter_map(|row| {
                let (code, rest) = row.strip_suffix(" |")?.split_once("` | ")?;
                let mut cells = rest.split(" | ");
                Some((code, cells.next()?, cells.last()?.replace("\\|", "|")))
            })
            .collect();
        let severity = |code: &Code| match code.severity() {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let of = |code: &Code| (code.as_str(), severity(code), code.remedy().to_owned());
        let expected: Vec<_> = Code::ALL.iter().map(of).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn most_severe_finding_comes_first_once() {
        let found = vec![
            finding(Code::DryRun, "a"),
            finding(Code::NotOptedIn, "a"),
            finding(Code::NotOptedIn, "b"),
            finding(Code::NotOptedIn, "a"),
        ];
        let found = sorted(found);
        let actual: Vec<_> = found.iter().map(|finding| (finding.code, &*finding.object.name)).collect();
        assert_eq!(actual, [(Code::NotOptedIn, "a"), (Code::NotOptedIn, "b"), (Code::DryRun, "a")]);
        assert!(!needs_no_action(&found) && needs_no_action(&[finding(Code::DryRun, "a")]));
    }

    #[test]
    fn identical_pod_findings_are_folded_and_limited() {
        let same: Vec<_> = (0..124).map(|place| finding(Code::WebhookUnavailable, &format!("web-{place}"))).collect();
        let text = lines(&same);
        assert!(text.contains("Pod shop/web-0 and 123 more: web-1, web-2, web-3, web-4, web-5, …\n  what"), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        // Each pod has its own remedy.
        let own: Vec<_> = (0..7)
            .map(|place| {
                finding(Code::WebhookUnavailable, &format!("bare-{place}")).remedy(format!("recreate bare-{place}"))
            })
            .collect();
        let text = lines(&own);
        assert!(text.contains("do\u{1b}[0m: recreate bare-0\n") && text.contains(": recreate bare-4\n"), "{text}");
        assert!(text.ends_with("  and 2 more commands like these; -o json lists them\n"), "{text}");
        let each =
            |place| Finding { message: format!("at {place}\nforged"), ..finding(Code::WebhookUnavailable, "web") };
        let text = lines(&(0..40).map(each).collect::<Vec<_>>());
        assert_eq!(text.matches("webhook_unavailable\u{1b}").count(), MAX_SIMILAR_FINDINGS, "{text}");
        assert!(text.ends_with("and 30 more of webhook_unavailable; -o json lists all\n"), "{text}");
        assert!(!text.contains("\nforged"), "{text}");
    }
}
