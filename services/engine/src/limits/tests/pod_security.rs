//! Tests each control of the Pod Security Standards with at least one table row. Only the baseline control of
//! capabilities has a separate test.

use std::collections::HashSet;

use super::*;

const SIDE: &str = "/spec/containers/1";
const APP: &str = "/spec/containers/0";

/// A control, a path in the pod, an allowed value, and a violating value.
type Row = (Control, &'static str, Json, Json);

/// Returns rows that apply to any container. Their paths are relative to the container.
fn container_rows() -> Vec<Row> {
    let null = || Json::Null;
    vec![
        (Control::HostProcess, "securityContext/windowsOptions/hostProcess", json!(false), json!(true)),
        (Control::HostProcess, "securityContext/windowsOptions/hostProcess", null(), json!("true")),
        (Control::PrivilegedContainers, "securityContext/privileged", json!(false), json!(true)),
        (Control::PrivilegedContainers, "securityContext/privileged", null(), json!(1)),
        (
            Control::CapabilitiesRestricted,
            "securityContext/capabilities/add",
            json!(["NET_BIND_SERVICE"]),
            json!(["CHOWN"]),
        ),
        (Control::CapabilitiesRestricted, "securityContext/capabilities/drop", json!(["CHOWN", "ALL"]), json!(["all"])),
        (Control::CapabilitiesRestricted, "securityContext/capabilities", json!({"drop": ["ALL"], "add": []}), null()),
        (
            Control::HostPorts,
            "ports",
            json!([{"containerPort": 80, "hostPort": 0}]),
            json!([{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]),
        ),
        (
            Control::HostProbes,
            "livenessProbe",
            json!({"httpGet": {"port": 1, "host": ""}}),
            json!({"httpGet": {"port": 1, "host": "127.0.0.1"}}),
        ),
        (
            Control::HostProbes,
            "readinessProbe",
            json!({"tcpSocket": {"port": 1}}),
            json!({"tcpSocket": {"port": 1, "host": "db"}}),
        ),
        (
            Control::HostProbes,
            "startupProbe",
            json!({"grpc": {"port": 1}}),
            json!({"httpGet": {"port": 1, "host": "10.0.0.1"}}),
        ),
        (
            Control::HostProbes,
            "lifecycle/postStart",
            json!({"exec": {"command": ["a"]}}),
            json!({"httpGet": {"port": 1, "host": "a"}}),
        ),
        (
            Control::HostProbes,
            "lifecycle/preStop",
            json!({"httpGet": {"port": 1, "host": null}}),
            json!({"tcpSocket": {"port": 1, "host": "a"}}),
        ),
        (
            Control::AppArmor,
            "securityContext/appArmorProfile",
            json!({"type": "RuntimeDefault"}),
            json!({"type": "Unconfined"}),
        ),
        (
            Control::AppArmor,
            "securityContext/appArmorProfile",
            json!({"type": "Localhost", "localhostProfile": "x"}),
            json!({}),
        ),
        (
            Control::SeLinux,
            "securityContext/seLinuxOptions",
            json!({"type": "container_engine_t", "level": "s0"}),
            json!({"type": "spc_t"}),
        ),
        (Control::SeLinux, "securityContext/seLinuxOptions", json!({"user": ""}), json!({"user": "system_u"})),
        (Control::SeLinux, "securityContext/seLinuxOptions", json!({"role": null}), json!({"role": "sysadm_r"})),
        (Control::ProcMount, "securityContext/procMount", json!("Default"), json!("Unmasked")),
        (
            Control::Seccomp,
            "securityContext/seccompProfile",
            json!({"type": "Localhost", "localhostProfile": "x"}),
            json!({"type": "Unconfined"}),
        ),
        (Control::SeccompRestricted, "securityContext/seccompProfile", json!({"type": "RuntimeDefault"}), null()),
        (Control::PrivilegeEscalation, "securityContext/allowPrivilegeEscalation", json!(false), json!(true)),
        (Control::PrivilegeEscalation, "securityContext/allowPrivilegeEscalation", json!(false), null()),
        (Control::RunningAsNonRoot, "securityContext/runAsNonRoot", json!(true), json!(false)),
        (Control::RunningAsNonRoot, "securityContext/runAsNonRoot", json!(true), null()),
        (Control::RunningAsNonRootUser, "securityContext/runAsUser", json!(1000), json!(0)),
        (Control::RunningAsNonRootUser, "securityContext/runAsUser", null(), json!(-0.0)),
    ]
}

/// Returns rows for the pod as a whole.
fn pod_rows() -> Vec<Row> {
    let volume = |source: Json| json!([{"name": "data", "emptyDir": {}}, with(json!({"name": "v"}), &[("", source)])]);
    let apparmor = "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1app";
    vec![
        (Control::HostProcess, "/spec/securityContext/windowsOptions/hostProcess", json!(false), json!(true)),
        (Control::HostNamespaces, "/spec/hostNetwork", json!(false), json!(true)),
        (Control::HostNamespaces, "/spec/hostPID", Json::Null, json!(true)),
        (Control::HostNamespaces, "/spec/hostIPC", json!(false), json!(true)),
        (
            Control::HostPathVolumes,
            "/spec/volumes",
            volume(json!({"name": "v", "csi": {}})),
            volume(json!({"name": "v", "hostPath": {"path": "/"}})),
        ),
        (
            Control::VolumeTypes,
            "/spec/volumes",
            volume(json!({"name": "v", "projected": {}})),
            volume(json!({"name": "v", "nfs": {}})),
        ),
        (
            Control::VolumeTypes,
            "/spec/volumes",
            volume(json!({"name": "v", "image": {}})),
            volume(json!({"name": "v", "iscsi": {}})),
        ),
        (
            Control::VolumeTypes,
            "/spec/volumes",
            volume(json!({"name": "v", "secret": {}, "nfs": null})),
            volume(json!({"name": "v", "flexVolume": {}})),
        ),
        (
            Control::AppArmor,
            "/spec/securityContext/appArmorProfile",
            json!({"type": "RuntimeDefault"}),
            json!({"type": "Unconfined"}),
        ),
        (Control::AppArmor, apparmor, json!("localhost/x"), json!("unconfined")),
        (Control::AppArmor, apparmor, json!("runtime/default"), json!("localhost")),
        (
            Control::SeLinux,
            "/spec/securityContext/seLinuxOptions",
            json!({"type": "container_t"}),
            json!({"type": "init_t"}),
        ),
        (
            Control::Seccomp,
            "/spec/securityContext/seccompProfile",
            json!({"type": "RuntimeDefault"}),
            json!({"type": "Unconfined"}),
        ),
        (
            Control::Sysctls,
            "/spec/securityContext/sysctls",
            json!([{"name": "net.ipv4.tcp_rmem", "value": "1"}]),
            json!([{"name": "kernel.msgmax", "value": "1"}]),
        ),
        (Control::RunningAsNonRoot, "/spec/securityContext/runAsNonRoot", json!(true), json!(false)),
        (Control::RunningAsNonRootUser, "/spec/securityContext/runAsUser", json!(1), json!(0)),
    ]
}

/// Returns the violated control. Does not check the other limits, which reject many of the fields in the rows anyway.
fn violated(before: &Json, after: &Json, level: PodSecurityLevel) -> Option<Control> {
    let tape = |pod: &Json| OwnedTape::parse(pod.to_string()).unwrap();
    let (before, after) = (tape(before), tape(after));
    match super::super::pod_security::check(before.root(), after.root(), level).err()?.limit {
        Limit::PodSecurity(control) => Some(control),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_control_accepts_and_rejects() {
    let mut seen = HashSet::new();
    for (control, field, good, bad) in container_rows() {
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            let added = |value: &Json| {
                let place = format!("/spec/{list}");
                let container = with(hardened("side"), &[(&format!("/{field}"), value.clone())]);
                if list == "containers" {
                    with(pod(), &[(SIDE, container)])
                } else {
                    with(pod(), &[(&place, json!([container]))])
                }
            };
            let level = control.level();
            assert_eq!(violated(&pod(), &added(&good), PodSecurityLevel::Restricted), None, "{control} {field} {good}");
            assert_eq!(violated(&pod(), &added(&bad), level), Some(control), "{control} {field} {bad} in {list}");
            let restricted_only = level == PodSecurityLevel::Restricted;
            if restricted_only {
                assert_eq!(violated(&pod(), &added(&bad), PodSecurityLevel::Baseline), None, "{control} {field} {bad}");
            }
        }
        seen.insert(control);
    }
    for (control, field, good, bad) in pod_rows() {
        let [good, bad] = [good, bad].map(|value| with(pod(), &[(field, value)]));
        assert_eq!(violated(&pod(), &good, PodSecurityLevel::Restricted), None, "{control} {field} {good}");
        assert_eq!(violated(&pod(), &bad, control.level()), Some(control), "{control} {field} {bad}");
        seen.insert(control);
    }
    seen.insert(baseline_capabilities_control());
    assert_eq!(
        seen.len(),
        Control::ALL.len(),
        "{:?}",
        Control::ALL.iter().filter(|c| !seen.contains(c)).collect::<Vec<_>>()
    );
}

/// Tests the baseline's list of capabilities separately, because the restricted level permits fewer.
fn baseline_capabilities_control() -> Control {
    let place = format!("{SIDE}/securityContext/capabilities/add");
    let side = with(pod(), &[(SIDE, hardened("side"))]);
    let all = json!([
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
        "SYS_CHROOT"
    ]);
    let good = with(side.clone(), &[(&place, all)]);
    assert_eq!(violated(&pod(), &good, PodSecurityLevel::Baseline), None);
    for capability in ["NET_ADMIN", "SYS_ADMIN", "NET_RAW", "ALL", "CAP_CHOWN", "chown"] {
        let bad = with(side.clone(), &[(&place, json!(["CHOWN", capability]))]);
        assert_eq!(violated(&pod(), &bad, PodSecurityLevel::Baseline), Some(Control::Capabilities), "{capability}");
    }
    Control::Capabilities
}

#[test]
fn only_new_violations_count() {
    for (control, field, _, bad) in container_rows() {
        let place = format!("{APP}/{field}");
        let bad = with(pod(), &[(&place, bad)]);
        let side = with(bad.clone(), &[(SIDE, hardened("side"))]);
        assert_eq!(violated(&bad, &side, PodSecurityLevel::Restricted), None, "{control} {field}");
    }
    let capabilities =
        |names: &[&str]| with(pod(), &[(&format!("{APP}/securityContext/capabilities/add"), json!(names))]);
    let ports = |ports: &[u16]| {
        let ports: Vec<_> = ports.iter().map(|port| json!({"containerPort": port, "hostPort": port})).collect();
        with(pod(), &[(&format!("{APP}/ports"), json!(ports))])
    };
    let host_path = |path: &str| with(pod(), &[("/spec/volumes/1", json!({"name": "h", "hostPath": {"path": path}}))]);
    for (before, after, control) in [
        (capabilities(&["NET_ADMIN"]), capabilities(&["NET_ADMIN", "SYS_ADMIN"]), Control::Capabilities),
        (capabilities(&["NET_ADMIN"]), capabilities(&["SYS_ADMIN"]), Control::Capabilities),
        (ports(&[80]), ports(&[80, 81]), Control::HostPorts),
        (host_path("/var/log"), host_path("/"), Control::HostPathVolumes),
    ] {
        assert_eq!(violated(&before, &after, PodSecurityLevel::Baseline), Some(control), "{after}");
        assert_eq!(violated(&after, &after, PodSecurityLevel::Restricted), None, "{after}");
    }
}

#[test]
fn containers_inherit_pod_security_context() {
    let bare = json!({"name": "side", "image": "a", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    }});
    let inherited = with(
        pod(),
        &[("/spec/securityContext", json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}))],
    );
    let restricted = PodSecurityLevel::Restricted;
    assert_eq!(violated(&inherited, &with(inherited.clone(), &[(SIDE, bare.clone())]), restricted), None);
    assert_eq!(violated(&pod(), &with(pod(), &[(SIDE, bare.clone())]), restricted), Some(Control::RunningAsNonRoot));
    for (changes, control) in [
        (("/securityContext/runAsNonRoot", json!(false)), Control::RunningAsNonRoot),
        (("/securityContext/seccompProfile", json!({"type": "Unconfined"})), Control::Seccomp),
    ] {
        let against = with(bare.clone(), &[changes]);
        let after = with(inherited.clone(), &[(SIDE, against)]);
        assert_eq!(violated(&inherited, &after, restricted), Some(control));
    }
    let only_seccomp = with(pod(), &[("/spec/securityContext/runAsNonRoot", json!(true))]);
    let after = with(only_seccomp.clone(), &[(SIDE, bare)]);
    assert_eq!(violated(&only_seccomp, &after, restricted), Some(Control::SeccompRestricted));
}

#[test]
fn windows_pods_skip_linux_controls() {
    let windows = with(pod(), &[("/spec/os/name", json!("windows"))]);
    let side = |context: Json| with(windows.clone(), &[(SIDE, json!({"name": "side", "securityContext": context}))]);
    let restricted = PodSecurityLevel::Restricted;
    assert_eq!(violated(&windows, &side(json!({"runAsNonRoot": true})), restricted), None);
    assert_eq!(violated(&windows, &side(json!({})), restricted), Some(Control::RunningAsNonRoot));
    let host = json!({"runAsNonRoot": true, "windowsOptions": {"hostProcess": true}});
    assert_eq!(violated(&windows, &side(host), restricted), Some(Control::HostProcess));
}

#[test]
fn level_is_maximum_of_namespace_and_platform() {
    let plain = with(pod(), &[(SIDE, json!({"name": "side", "image": "a"}))]);
    let privileged = with(pod(), &[(SIDE, json!({"name": "side", "securityContext": {"privileged": true}}))]);
    let floor = Case::guarded(json!({"minimumPodSecurity": "restricted"}));
    for (case, plain_is_allowed) in [
        (Case::default(), true),
        (Case::at("privileged"), true),
        (Case::at("baseline"), true),
        (Case::at("restricted"), false),
        (Case::at("typo"), false),
        (floor, false),
    ] {
        assert_eq!(case.check(&pod(), &plain).is_ok(), plain_is_allowed, "{:?}", case.namespace);
        assert!(case.check(&pod(), &privileged).is_err(), "{:?}", case.namespace);
    }
}

#[test]
fn existing_container_keeps_fulfilled_controls() {
    for (field, value) in [
        ("runAsNonRoot", json!(false)),
        ("runAsUser", json!(0)),
        ("allowPrivilegeEscalation", Json::Null),
        ("capabilities", json!({"drop": []})),
        ("seccompProfile", Json::Null),
    ] {
        let weaker = with(pod(), &[(&format!("{APP}/securityContext/{field}"), value)]);
        for case in [Case::default(), Case::at("privileged"), Case::at("restricted")] {
            assert!(matches!(case.exceeded(&pod(), &weaker), Some((Limit::PodSecurity(_), _))), "{field}");
            assert_eq!(case.exceeded(&weaker, &weaker), None, "{field}");
        }
    }
}

#[test]
fn existing_violation_of_higher_level_stays_allowed() {
    let weak = with(pod(), &[(&format!("{APP}/securityContext/capabilities"), Json::Null)]);
    let weaker = with(weak.clone(), &[(&format!("{APP}/securityContext/capabilities/add"), json!(["CHOWN"]))]);
    assert_eq!(Case::default().exceeded(&weak, &weaker), None);
    let exceeded = Case::at("restricted").exceeded(&weak, &weaker).map(|(limit, _)| limit);
    assert_eq!(exceeded, Some(Limit::PodSecurity(Control::CapabilitiesRestricted)));
    // A capability that the baseline permits violates the restricted level, which the container satisfied before.
    let lowered = with(pod(), &[(&format!("{APP}/securityContext/capabilities/add"), json!(["CHOWN"]))]);
    let message = Case::default().check(&pod(), &lowered).unwrap_err().to_string();
    assert!(message.contains("that the pod satisfied before"), "{message}");
}

#[test]
fn new_container_may_have_name_of_existing_volume() {
    let volume = with(pod(), &[("/spec/volumes", json!([{"name": "data", "emptyDir": {}}]))]);
    let after = with(volume.clone(), &[(SIDE, json!({"name": "data", "image": "a"}))]);
    assert_eq!(Case::default().exceeded(&volume, &after), None);
    assert!(Case::at("restricted").exceeded(&volume, &after).is_some());
}

#[test]
fn message_names_value_place_expectation_and_remedy() {
    let after = with(pod(), &[(&format!("{APP}/securityContext/capabilities/add"), json!(["SYS_ADMIN"]))]);
    let excess = Case::default().check(&pod(), &after).unwrap_err().to_string();
    assert_eq!(
        excess,
        "/spec/containers/app/securityContext/capabilities/add: \"SYS_ADMIN\" violates the Pod Security control \
         Capabilities (baseline) of the namespace's pods; expected none beyond AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, \
         FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID and SYS_CHROOT; change it in the profile, \
         or let a cluster profile do it"
    );
}
