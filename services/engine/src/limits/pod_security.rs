//! The Pod Security Standards: their levels and controls, and the violations in a pod.
//!
//! The controls are those of Kubernetes 1.36, with two exceptions that follow older versions, because the enforced
//! version is unknown here: pods with their own user namespace (`hostUsers: false`) may not run as root and may not
//! unmask `/proc`. The namespace's `enforce-version` label is ignored. So the API server never rejects a changed pod
//! for a control that the pod satisfied before.
//!
//! A boolean field with a value of another type violates its control. The API server rejects the pod anyway.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use indexmap::IndexSet;
use serde::{Deserialize, Serialize};

use crate::json::{Kind, Value};

use super::{Excess, Limit};

/// The lists of a pod's containers.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Capabilities that containers may add at the baseline level.
const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that are namespaced and do not affect other pods.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The allowed `SELinux` types. The empty string stands for an absent type.
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Volume sources that the restricted level allows.
const RESTRICTED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// The prefix of the annotations that `appArmorProfile` replaced, one for each container.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The probes and hooks of a container: their paths, and the field names for violations.
const HANDLERS: [(&[&str], &str); 5] = [
    (&["livenessProbe"], "livenessProbe.host"),
    (&["readinessProbe"], "readinessProbe.host"),
    (&["startupProbe"], "startupProbe.host"),
    (&["lifecycle", "postStart"], "lifecycle.postStart.host"),
    (&["lifecycle", "preStop"], "lifecycle.preStop.host"),
];

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurityLevel {
    /// Prevents known escalations of privilege.
    #[default]
    Baseline,
    /// Follows current best practices for hardening pods.
    Restricted,
}

impl PodSecurityLevel {
    /// The label that sets the enforced level of a namespace.
    pub const LABEL: &str = "pod-security.kubernetes.io/enforce";

    /// Returns the level that tenants' additions must satisfy. Without a label, and for `privileged`, it is `baseline`:
    /// a tenant may be allowed to create privileged pods, but not to make other authors' pods privileged. Unknown
    /// values mean `restricted`, as in the API server.
    pub(crate) fn from_label(value: Option<&str>) -> Self {
        match value {
            None | Some("privileged" | "baseline") => Self::Baseline,
            Some(_) => Self::Restricted,
        }
    }

    /// Returns the level as it is written in labels and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

impl fmt::Display for PodSecurityLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

macro_rules! controls {
    ($($(#[doc = $doc:literal])+ $name:ident => $level:ident, $title:literal, $expected:literal;)+) => {
        /// A control of the Pod Security Standards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Control {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Control {
            /// All controls, in the order of the Kubernetes documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the lowest level that includes the control.
            #[must_use]
            pub const fn level(self) -> PodSecurityLevel {
                match self { $(Self::$name => PodSecurityLevel::$level,)+ }
            }

            /// Returns the name of the control in the Kubernetes documentation.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// Returns the allowed values, for messages.
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)+ }
            }
        }
    };
}

controls! {
    /// Windows containers that run as host processes.
    HostProcess => Baseline, "HostProcess", "hostProcess absent or false";
    /// The host's network, process and IPC namespaces.
    HostNamespaces => Baseline, "Host Namespaces", "hostNetwork, hostPID and hostIPC absent or false";
    /// Containers with all privileges of the host.
    PrivilegedContainers => Baseline, "Privileged Containers", "privileged absent or false";
    /// Added capabilities other than those that the baseline level allows.
    Capabilities => Baseline, "Capabilities",
        "none beyond AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID and SYS_CHROOT";
    /// Volumes that mount host folders.
    HostPathVolumes => Baseline, "HostPath Volumes", "no hostPath";
    /// Ports on the host.
    HostPorts => Baseline, "Host Ports", "hostPort absent or 0";
    /// Probes and hooks that make the kubelet connect to another host.
    HostProbes => Baseline, "Host Probes / Lifecycle Hooks", "no host in probes and hooks";
    /// An `AppArmor` profile other than the runtime's default or a profile on the node.
    AppArmor => Baseline, "AppArmor", "RuntimeDefault or Localhost, or nothing";
    /// An `SELinux` user, role or type other than those for containers.
    SeLinux => Baseline, "SELinux",
        "no user, no role, and the type absent, container_t, container_init_t, container_kvm_t or container_engine_t";
    /// An unmasked `/proc`.
    ProcMount => Baseline, "/proc Mount Type", "procMount absent or Default";
    /// An explicitly disabled seccomp profile.
    Seccomp => Baseline, "Seccomp", "RuntimeDefault or Localhost, or nothing";
    /// Sysctls that are not safe.
    Sysctls => Baseline, "Sysctls", "only sysctls that Kubernetes considers safe";
    /// Volume types outside of the allowed list.
    VolumeTypes => Restricted, "Volume Types",
        "configMap, csi, downwardAPI, emptyDir, ephemeral, image, persistentVolumeClaim, projected or secret";
    /// Processes that may gain more privileges than their parents.
    PrivilegeEscalation => Restricted, "Privilege Escalation", "allowPrivilegeEscalation: false";
    /// Containers that may run as root.
    RunningAsNonRoot => Restricted, "Running as Non-root", "runAsNonRoot: true on the container or the pod";
    /// A `runAsUser` of 0 on the pod or a container.
    RunningAsNonRootUser => Restricted, "Running as Non-root user", "runAsUser absent or other than 0";
    /// A missing seccomp profile.
    SeccompRestricted => Restricted, "Seccomp (restricted)",
        "seccompProfile.type RuntimeDefault or Localhost on the container or the pod";
    /// Added capabilities other than `NET_BIND_SERVICE`, or capabilities that are not dropped.
    CapabilitiesRestricted => Restricted, "Capabilities (restricted)", "drop: [ALL], and nothing added but NET_BIND_SERVICE";
}

impl fmt::Display for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.title())
    }
}

/// The part of a pod that violates a control.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject<'v> {
    Pod,
    Container(Cow<'v, str>),
    Volume(Cow<'v, str>),
}

impl<'v> Subject<'v> {
    /// Returns the element with this name in a list of the pod's spec.
    fn of(list: &str, name: Cow<'v, str>) -> Self {
        if list == "volumes" { Self::Volume(name) } else { Self::Container(name) }
    }
}

/// A violation of a control. Violations in two pods are the same if all fields are equal. A second capability on the
/// same container is a separate violation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Violation<'v> {
    control: Control,
    subject: Subject<'v>,
    /// The path of the field below the subject.
    field: &'static str,
    /// The value that violates the control. Empty if a required field is absent.
    found: Cow<'v, str>,
}

/// Checks that a profile adds no violation; violations that the pod already had are ignored. A new violation of a
/// control of `level` or a lower level is always an error. A new violation of a control of a higher level is an error
/// if the element existed before and satisfied the control.
pub(super) fn check(before: Value<'_>, after: Value<'_>, level: PodSecurityLevel) -> Result<(), Excess> {
    let before_all = violations(before);
    let existing: HashSet<_> = elements(before).map(|(list, name)| Subject::of(list, name)).collect();
    let weak: HashSet<_> = before_all.iter().map(|violation| (violation.control, &violation.subject)).collect();
    let counts = |violation: &&Violation<'_>| {
        let was_there = violation.subject == Subject::Pod || existing.contains(&violation.subject);
        let was_fulfilled = was_there && !weak.contains(&(violation.control, &violation.subject));
        violation.control.level() <= level || was_fulfilled
    };
    let after_all = violations(after);
    match after_all.iter().filter(|violation| !before_all.contains(*violation)).find(counts) {
        Some(violation) => Err(excess(violation, after, level)),
        None => Ok(()),
    }
}

/// Returns the containers and volumes of a pod as pairs of list and name.
fn elements(pod: Value<'_>) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    CONTAINER_LISTS.into_iter().chain(["volumes"]).flat_map(move |list| {
        let items = pod.at(&["spec", list]).into_iter().flat_map(Value::items);
        items.map(move |item| (list, name_of(item)))
    })
}

fn excess(violation: &Violation<'_>, pod: Value<'_>, level: PodSecurityLevel) -> Excess {
    let Violation { control, subject, field, found } = violation;
    let path = field.replace('.', "/");
    let place = match subject {
        Subject::Pod if field.starts_with("metadata") => format!("/{path}"),
        Subject::Pod => format!("/spec/{path}"),
        Subject::Container(name) => {
            let list = elements(pod).find(|(list, other)| *list != "volumes" && other == name);
            format!("/spec/{}/{name}/{path}", list.map_or("containers", |(list, _)| list))
        }
        Subject::Volume(name) => format!("/spec/volumes/{name}/{path}"),
    };
    let violation = if found.is_empty() { "the missing field".to_owned() } else { format!("{found:?}") };
    let scope = if control.level() <= level { "of the namespace's pods" } else { "that the pod satisfied before" };
    let message = format!(
        "{violation} violates the Pod Security control {control} ({}) {scope}; expected {}; change it in the profile, or let a \
         cluster profile do it",
        control.level(),
        control.expected(),
    );
    Excess::new(Limit::PodSecurity(*control), place, message)
}

/// Returns all violations of both levels in a pod: first those of the pod itself, then those of its containers and its
/// volumes.
fn violations(pod: Value<'_>) -> IndexSet<Violation<'_>> {
    let spec = pod.get("spec");
    let mut evaluation = Evaluation {
        found: IndexSet::new(),
        is_windows: spec.and_then(|spec| spec.at(&["os", "name"])).is_some_and(|name| name.is("windows")),
        seccomp_from_pod: false,
        non_root_from_pod: false,
    };
    evaluation.annotations(pod);
    if let Some(spec) = spec {
        evaluation.pod(spec);
        for list in CONTAINER_LISTS {
            spec.get(list).into_iter().flat_map(Value::items).for_each(|container| evaluation.container(container));
        }
        spec.get("volumes").into_iter().flat_map(Value::items).for_each(|volume| evaluation.volume(volume));
    }
    evaluation.found
}

/// Returns the name of a list element. Empty if it has none.
pub(super) fn name_of(element: Value<'_>) -> Cow<'_, str> {
    element.get("name").and_then(Value::as_str).unwrap_or_default()
}

struct Evaluation<'v> {
    found: IndexSet<Violation<'v>>,
    /// Whether the pod is for Windows, where Linux-only controls do not apply.
    is_windows: bool,
    /// Whether the pod sets an allowed seccomp profile. Containers without their own profile inherit it.
    seccomp_from_pod: bool,
    /// Whether the pod sets `runAsNonRoot` to true. Containers without their own value inherit it.
    non_root_from_pod: bool,
}

impl<'v> Evaluation<'v> {
    fn add(&mut self, control: Control, subject: &Subject<'v>, field: &'static str, found: impl Into<Cow<'v, str>>) {
        self.found.insert(Violation { control, subject: subject.clone(), field, found: found.into() });
    }

    fn annotations(&mut self, pod: Value<'v>) {
        let annotations = pod.at(&["metadata", "annotations"]).into_iter().flat_map(Value::members);
        for (key, value) in annotations.filter(|(key, _)| key.text().starts_with(APPARMOR_ANNOTATION)) {
            let profile = shown(value);
            if !(profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")) {
                let found = format!("{}={profile}", key.text());
                self.add(Control::AppArmor, &Subject::Pod, "metadata.annotations", found);
            }
        }
    }

    fn pod(&mut self, spec: Value<'v>) {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            if is_on(spec.get(field)) {
                self.add(Control::HostNamespaces, &Subject::Pod, field, "true");
            }
        }
        let Some(context) = spec.get("securityContext") else { return };
        self.context(context, &Subject::Pod);
        for name in context.get("sysctls").into_iter().flat_map(Value::items).map(name_of) {
            if !SAFE_SYSCTLS.contains(&&*name) {
                self.add(Control::Sysctls, &Subject::Pod, "securityContext.sysctls", name);
            }
        }
        self.seccomp_from_pod = present(context.get("seccompProfile")).is_some_and(is_confined);
        self.non_root_from_pod = context.get("runAsNonRoot").and_then(Value::as_bool) == Some(true);
        if is_off(context.get("runAsNonRoot")) {
            self.add(Control::RunningAsNonRoot, &Subject::Pod, "securityContext.runAsNonRoot", "false");
        }
    }

    /// Checks the fields that the security contexts of pods and containers share.
    fn context(&mut self, context: Value<'v>, subject: &Subject<'v>) {
        if is_on(context.at(&["windowsOptions", "hostProcess"])) {
            self.add(Control::HostProcess, subject, "securityContext.windowsOptions.hostProcess", "true");
        }
        if let Some(profile) = present(context.get("appArmorProfile"))
            && !is_confined(profile)
        {
            let found = profile.get("type").map(shown).unwrap_or_default();
            self.add(Control::AppArmor, subject, "securityContext.appArmorProfile.type", found);
        }
        if let Some(profile) = present(context.get("seccompProfile"))
            && !is_confined(profile)
        {
            let found = profile.get("type").map(shown).unwrap_or_default();
            self.add(Control::Seccomp, subject, "securityContext.seccompProfile.type", found);
        }
        if let Some(options) = context.get("seLinuxOptions") {
            for (field, place, allowed) in [
                ("user", "securityContext.seLinuxOptions.user", &[""][..]),
                ("role", "securityContext.seLinuxOptions.role", &[""]),
                ("type", "securityContext.seLinuxOptions.type", &SELINUX_TYPES),
            ] {
                let found = present(options.get(field)).map(shown).unwrap_or_default();
                if !allowed.contains(&&*found) {
                    self.add(Control::SeLinux, subject, place, found);
                }
            }
        }
        if present(context.get("runAsUser")).is_some_and(is_zero) {
            self.add(Control::RunningAsNonRootUser, subject, "securityContext.runAsUser", "0");
        }
    }

    fn container(&mut self, container: Value<'v>) {
        let subject = Subject::Container(name_of(container));
        for port in container.get("ports").into_iter().flat_map(Value::items) {
            if let Some(port) = present(port.get("hostPort")).filter(|port| !is_zero(*port)) {
                self.add(Control::HostPorts, &subject, "ports.hostPort", shown(port));
            }
        }
        for (path, field) in HANDLERS {
            let handler = container.at(path);
            let hosts = ["httpGet", "tcpSocket"].map(|kind| handler.and_then(|handler| handler.at(&[kind, "host"])));
            for host in hosts.into_iter().filter_map(present).map(shown).filter(|host| !host.is_empty()) {
                self.add(Control::HostProbes, &subject, field, host);
            }
        }
        let context = present(container.get("securityContext"));
        if let Some(context) = context {
            self.context(context, &subject);
            if is_on(context.get("privileged")) {
                self.add(Control::PrivilegedContainers, &subject, "securityContext.privileged", "true");
            }
            if let Some(mount) = present(context.get("procMount")).filter(|mount| !mount.is("Default")) {
                self.add(Control::ProcMount, &subject, "securityContext.procMount", shown(mount));
            }
        }
        self.capabilities(context, &subject);
        self.hardening(context, &subject);
    }

    fn capabilities(&mut self, context: Option<Value<'v>>, subject: &Subject<'v>) {
        let list = |field| {
            let list = context.and_then(|context| context.at(&["capabilities", field]));
            list.into_iter().flat_map(Value::items).map(shown)
        };
        for added in list("add") {
            if !BASELINE_CAPABILITIES.contains(&&*added) {
                self.add(Control::Capabilities, subject, "securityContext.capabilities.add", added.clone());
            }
            if !self.is_windows && added != "NET_BIND_SERVICE" {
                self.add(Control::CapabilitiesRestricted, subject, "securityContext.capabilities.add", added);
            }
        }
        if !self.is_windows && !list("drop").any(|dropped| dropped == "ALL") {
            self.add(Control::CapabilitiesRestricted, subject, "securityContext.capabilities.drop", "");
        }
    }

    /// Checks fields that a container must either set or inherit from the pod.
    fn hardening(&mut self, context: Option<Value<'v>>, subject: &Subject<'v>) {
        let field = |name| context.and_then(|context| present(context.get(name)));
        let escalation = field("allowPrivilegeEscalation");
        if !self.is_windows && escalation.and_then(Value::as_bool) != Some(false) {
            let found = escalation.map(shown).unwrap_or_default();
            self.add(Control::PrivilegeEscalation, subject, "securityContext.allowPrivilegeEscalation", found);
        }
        let is_fulfilled = match field("runAsNonRoot") {
            Some(written) => written.as_bool() == Some(true),
            None => self.non_root_from_pod,
        };
        if !is_fulfilled {
            let found = field("runAsNonRoot").map(shown).unwrap_or_default();
            self.add(Control::RunningAsNonRoot, subject, "securityContext.runAsNonRoot", found);
        }
        // If the profile is set but invalid, it already violates the baseline control.
        if !self.is_windows && field("seccompProfile").is_none() && !self.seccomp_from_pod {
            self.add(Control::SeccompRestricted, subject, "securityContext.seccompProfile.type", "");
        }
    }

    fn volume(&mut self, volume: Value<'v>) {
        let subject = Subject::Volume(name_of(volume));
        for (source, value) in volume.members().filter(|(key, value)| !key.is("name") && !value.is_null()) {
            let source = source.text();
            if source == "hostPath" {
                let path = value.get("path").map(shown).unwrap_or_default();
                self.add(Control::HostPathVolumes, &subject, "hostPath.path", path);
            }
            if !RESTRICTED_VOLUMES.contains(&&*source) {
                self.add(Control::VolumeTypes, &subject, "source", source);
            }
        }
    }
}

fn present(value: Option<Value<'_>>) -> Option<Value<'_>> {
    value.filter(|value| !value.is_null())
}

/// Whether a boolean field has a value other than `false`.
fn is_on(value: Option<Value<'_>>) -> bool {
    present(value).is_some_and(|value| value.kind() != Kind::False)
}

/// Whether a boolean field has a value other than `true`.
fn is_off(value: Option<Value<'_>>) -> bool {
    present(value).is_some_and(|value| value.kind() != Kind::True)
}

/// Whether a value is a number equal to zero, in any notation.
fn is_zero(value: Value<'_>) -> bool {
    value.raw().parse::<f64>().is_ok_and(|number| number == 0.0)
}

/// Whether a seccomp or `AppArmor` profile confines the container.
fn is_confined(profile: Value<'_>) -> bool {
    profile.get("type").is_some_and(|kind| kind.is("RuntimeDefault") || kind.is("Localhost"))
}

/// Formats a value for messages: the content of a string, or any other value as JSON.
fn shown(value: Value<'_>) -> Cow<'_, str> {
    value.as_str().unwrap_or_else(|| Cow::Borrowed(value.raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_level_is_restricted_missing_level_baseline() {
        for (label, expected) in [
            (None, PodSecurityLevel::Baseline),
            (Some("privileged"), PodSecurityLevel::Baseline),
            (Some("baseline"), PodSecurityLevel::Baseline),
            (Some("restricted"), PodSecurityLevel::Restricted),
            (Some("restrictedd"), PodSecurityLevel::Restricted),
            (Some(""), PodSecurityLevel::Restricted),
        ] {
            assert_eq!(PodSecurityLevel::from_label(label), expected, "{label:?}");
        }
    }
}
