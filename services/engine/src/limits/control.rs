//! The controls of the Pod Security Standards by name, and their levels.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurityLevel {
    /// Prevents known escalations of privilege.
    #[default]
    Baseline,
    /// What hardening of pods is thought to be today.
    Restricted,
}

impl PodSecurityLevel {
    /// The label by which a namespace says which level its pods are held to.
    pub const LABEL: &str = "pod-security.kubernetes.io/enforce";

    /// The level that a namespace's label asks of what a tenant adds. Without a label, and where everything is allowed,
    /// it is the lowest one: a tenant who may create privileged pods can do so in the open, and not by way of other
    /// people's pods. A value that nobody knows is taken as the highest, as the API server does.
    #[must_use]
    pub fn from_label(value: Option<&str>) -> Self {
        match value {
            None | Some("privileged" | "baseline") => Self::Baseline,
            Some(_) => Self::Restricted,
        }
    }

    /// The level as it stands in labels and messages.
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
            /// All controls, in the order of Kubernetes' own list.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The lowest level that has it.
            #[must_use]
            pub const fn level(self) -> PodSecurityLevel {
                match self { $(Self::$name => PodSecurityLevel::$level,)+ }
            }

            /// What Kubernetes calls it.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// What it allows, for messages.
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)+ }
            }
        }
    };
}

controls! {
    /// Windows containers that are processes of the host.
    HostProcess => Baseline, "HostProcess", "hostProcess absent or false";
    /// The host's network, processes and memory segments.
    HostNamespaces => Baseline, "Host Namespaces", "hostNetwork, hostPID and hostIPC absent or false";
    /// Containers that have what the host has.
    PrivilegedContainers => Baseline, "Privileged Containers", "privileged absent or false";
    /// Capabilities beyond those that a container has anyway.
    Capabilities => Baseline, "Capabilities",
        "none beyond AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID and SYS_CHROOT";
    /// Folders of the host.
    HostPathVolumes => Baseline, "HostPath Volumes", "no hostPath";
    /// Ports of the host.
    HostPorts => Baseline, "Host Ports", "hostPort absent or 0";
    /// Probes and hooks that make the kubelet call some other host.
    HostProbes => Baseline, "Host Probes / Lifecycle Hooks", "no host in probes and hooks";
    /// Another `AppArmor` profile than the runtime's own or one of the node's.
    AppArmor => Baseline, "AppArmor", "RuntimeDefault or Localhost, or nothing";
    /// Another `SELinux` user, role or type than a container's.
    SeLinux => Baseline, "SELinux",
        "no user, no role, and the type absent, container_t, container_init_t, container_kvm_t or container_engine_t";
    /// A `/proc` without its masks.
    ProcMount => Baseline, "/proc Mount Type", "procMount absent or Default";
    /// No seccomp at all, written down.
    Seccomp => Baseline, "Seccomp", "RuntimeDefault or Localhost, or nothing";
    /// Settings of the kernel that are not safe.
    Sysctls => Baseline, "Sysctls", "only sysctls that Kubernetes calls safe";
    /// Volumes of other kinds than those that are not the host's.
    VolumeTypes => Restricted, "Volume Types",
        "configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected or secret";
    /// Processes that get more rights than their parents.
    PrivilegeEscalation => Restricted, "Privilege Escalation", "allowPrivilegeEscalation: false";
    /// Containers that may run as root.
    RunningAsNonRoot => Restricted, "Running as Non-root", "runAsNonRoot: true on the container or the pod";
    /// Containers that are told to run as root.
    RunningAsNonRootUser => Restricted, "Running as Non-root user", "runAsUser absent or other than 0";
    /// No seccomp profile, by saying nothing.
    SeccompRestricted => Restricted, "Seccomp (restricted)",
        "seccompProfile.type RuntimeDefault or Localhost on the container or the pod";
    /// Capabilities that are not dropped, or are added.
    CapabilitiesRestricted => Restricted, "Capabilities (restricted)", "drop: [ALL], and nothing added but NET_BIND_SERVICE";
}

impl fmt::Display for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.title())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_a_level_that_is_known_has_the_lowest_or_the_highest() {
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
