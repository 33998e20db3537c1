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
    /// Follows current best practices for hardening pods.
    Restricted,
}

impl PodSecurityLevel {
    /// The label that sets the enforced level of a namespace.
    pub const LABEL: &str = "pod-security.kubernetes.io/enforce";

    /// Returns the level that tenants' additions must meet. Without a label, and for `privileged`, it is `baseline`: a
    /// tenant who may create privileged pods can do so directly, but must not do it through other authors' pods. An
    /// unknown value means `restricted`, as in the API server.
    #[must_use]
    pub fn from_label(value: Option<&str>) -> Self {
        match value {
            None | Some("privileged" | "baseline") => Self::Baseline,
            Some(_) => Self::Restricted,
        }
    }

    /// Returns the level as written in labels and messages.
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

            /// Returns the lowest level that includes the control.
            #[must_use]
            pub const fn level(self) -> PodSecurityLevel {
                match self { $(Self::$name => PodSecurityLevel::$level,)+ }
            }

            /// Returns Kubernetes' name of the control.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// Describes the allowed values, for messages.
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
    /// Capabilities beyond a container's default ones.
    Capabilities => Baseline, "Capabilities",
        "none beyond AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID and SYS_CHROOT";
    /// Volumes of host folders.
    HostPathVolumes => Baseline, "HostPath Volumes", "no hostPath";
    /// Ports on the host.
    HostPorts => Baseline, "Host Ports", "hostPort absent or 0";
    /// Probes and hooks that make the kubelet call another host.
    HostProbes => Baseline, "Host Probes / Lifecycle Hooks", "no host in probes and hooks";
    /// An `AppArmor` profile other than the runtime's default or one of the node's.
    AppArmor => Baseline, "AppArmor", "RuntimeDefault or Localhost, or nothing";
    /// An `SELinux` user, role or type other than those for containers.
    SeLinux => Baseline, "SELinux",
        "no user, no role, and the type absent, container_t, container_init_t, container_kvm_t or container_engine_t";
    /// An unmasked `/proc`.
    ProcMount => Baseline, "/proc Mount Type", "procMount absent or Default";
    /// An explicitly disabled seccomp profile.
    Seccomp => Baseline, "Seccomp", "RuntimeDefault or Localhost, or nothing";
    /// Sysctls that are not safe.
    Sysctls => Baseline, "Sysctls", "only sysctls that Kubernetes calls safe";
    /// Volume types outside of the allowed list.
    VolumeTypes => Restricted, "Volume Types",
        "configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected or secret";
    /// Processes that may gain more privileges than their parents.
    PrivilegeEscalation => Restricted, "Privilege Escalation", "allowPrivilegeEscalation: false";
    /// Containers that may run as root.
    RunningAsNonRoot => Restricted, "Running as Non-root", "runAsNonRoot: true on the container or the pod";
    /// Containers that are set to run as root.
    RunningAsNonRootUser => Restricted, "Running as Non-root user", "runAsUser absent or other than 0";
    /// A seccomp profile that is not set.
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
