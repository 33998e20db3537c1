//! Generates parts of pods and templates. They use only a few names, so that pod and template often conflict.

use serde_json::{Value as Json, json};

use pillion_testkit::dice::Dice;

/// Sets a field with this probability, in percent.
macro_rules! maybe {
    ($dice:ident, $into:ident . $field:ident, $percent:literal, $value:expr) => {
        if $dice.chance($percent) {
            $into[stringify!($field)] = json!($value);
        }
    };
}
pub(crate) use maybe;

const PORTS: [u16; 3] = [80, 8080, 9090];
const PATHS: [&str; 5] = ["/data", "/etc/app", "/var/log", "/cache", "/a~b"];
const VALUES: [&str; 5] = ["x", "y", "1", "", "a=b,c=d"];

/// The list that contains a container: `containers` or `initContainers`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    App,
    Init,
}

/// Generates a container with this name, which may mount volumes from `volumes`.
pub(crate) fn container(dice: &mut Dice, name: &str, place: Place, volumes: &[String]) -> Json {
    let mut container = json!({"name": name});
    // A template that adds a container must set its image.
    container["image"] = json!(dice.pick(&["app:1", "app:2", "registry.example.com/app@sha256:0"]));
    // Kubernetes allows probes and hooks in an init container only if it is a sidecar.
    let is_sidecar = place == Place::Init && dice.chance(60);
    if is_sidecar {
        container["restartPolicy"] = json!("Always");
    }
    maybe!(dice, container.command, 30, dice.some(&["sh", "-c", "run"], 3));
    maybe!(dice, container.args, 30, dice.some(&["--a", "--b", "--c=1"], 3));
    maybe!(dice, container.workingDir, 10, dice.pick(&["/", "/srv"]));
    maybe!(dice, container.imagePullPolicy, 20, dice.pick(&["Always", "IfNotPresent", "Never"]));
    maybe!(dice, container.terminationMessagePolicy, 10, dice.pick(&["File", "FallbackToLogsOnError"]));
    maybe!(dice, container.tty, 10, dice.chance(50));
    maybe!(dice, container.stdin, 10, dice.chance(50));
    maybe!(dice, container.env, 60, env(dice));
    maybe!(dice, container.envFrom, 20, env_from(dice));
    maybe!(dice, container.ports, 50, ports(dice));
    maybe!(dice, container.resources, 40, resources(dice));
    maybe!(dice, container.securityContext, 40, security_context(dice));
    if dice.chance(50) && !volumes.is_empty() {
        container["volumeMounts"] = mounts(dice, volumes);
    }
    let devices: Vec<_> = volumes.iter().filter(|name| name.starts_with("block-")).collect();
    if dice.chance(70) && !devices.is_empty() {
        let path = if dice.chance(90) { "/dev/x" } else { "/dev/y" };
        container["volumeDevices"] = json!([{"name": dice.pick(&devices), "devicePath": path}]);
    }
    if place == Place::App {
        maybe!(dice, container.resizePolicy, 10, resize_policy(dice));
    }
    if place == Place::App || is_sidecar {
        maybe!(dice, container.livenessProbe, 30, probe(dice));
        maybe!(dice, container.readinessProbe, 30, probe(dice));
        maybe!(dice, container.startupProbe, 15, probe(dice));
        if dice.chance(30) {
            let mut lifecycle = json!({});
            maybe!(dice, lifecycle.postStart, 50, handler(dice));
            maybe!(dice, lifecycle.preStop, 70, handler(dice));
            container["lifecycle"] = lifecycle;
        }
    }
    container
}

fn env(dice: &mut Dice) -> Json {
    let names = dice.some(&["A", "B", "C", "D", "E", "F"], 5);
    names.into_iter().map(|name| variable(dice, name)).collect()
}

fn variable(dice: &mut Dice, name: &str) -> Json {
    if dice.chance(10) {
        return json!({"name": name});
    }
    // References are rare, because the engine reorders the variables of a template that contains one.
    if dice.chance(1) {
        return json!({"name": name, "value": format!("$({})/x", dice.pick(&["A", "B", "C"]))});
    }
    if dice.chance(65) {
        return json!({"name": name, "value": dice.pick(&VALUES)});
    }
    json!({"name": name, "valueFrom": source(dice)})
}

fn source(dice: &mut Dice) -> Json {
    match dice.below(4) {
        0 => {
            let mut field = json!({"fieldPath": dice.pick(&["metadata.name", "spec.nodeName", "status.podIP"])});
            maybe!(dice, field.apiVersion, 30, "v1");
            json!({"fieldRef": field})
        }
        1 => {
            let mut field = json!({"resource": dice.pick(&["limits.cpu", "requests.memory"])});
            maybe!(dice, field.containerName, 40, dice.pick(&["app", "web"]));
            maybe!(dice, field.divisor, 40, "1");
            json!({"resourceFieldRef": field})
        }
        2 => json!({"configMapKeyRef": key_of(dice)}),
        _ => json!({"secretKeyRef": key_of(dice)}),
    }
}

fn key_of(dice: &mut Dice) -> Json {
    let mut key = json!({"name": dice.pick(&["one", "two"]), "key": dice.pick(&["k", "l"])});
    maybe!(dice, key.optional, 40, dice.chance(50));
    key
}

fn env_from(dice: &mut Dice) -> Json {
    let count = dice.below(3);
    (0..count)
        .map(|_| {
            let reference = json!({"name": dice.pick(&["one", "two"])});
            let mut source =
                if dice.chance(50) { json!({"configMapRef": reference}) } else { json!({"secretRef": reference}) };
            maybe!(dice, source.prefix, 30, "P_");
            source
        })
        .collect()
}

fn ports(dice: &mut Dice) -> Json {
    let mut ports = Vec::new();
    for number in dice.some(&PORTS, 3) {
        // Most port numbers occur with one protocol only, because strategic merge identifies ports by number alone.
        let count = if dice.chance(8) { 2 } else { 1 };
        for protocol in dice.some(&["TCP", "UDP", "SCTP"], 3).into_iter().take(count) {
            let protocol = if dice.chance(80) { "TCP" } else { protocol };
            let mut port = json!({"containerPort": number});
            if protocol != "TCP" || dice.chance(50) {
                port["protocol"] = json!(protocol);
            }
            if ports.iter().any(|other: &Json| port_key(other) == port_key(&port)) {
                continue;
            }
            let prefix = dice.pick(&["a", "b"]);
            maybe!(dice, port.name, 50, format!("{prefix}{number}-{}", protocol.to_lowercase()));
            maybe!(dice, port.hostIP, 10, dice.pick(&["10.0.0.1", "10.0.0.2"]));
            ports.push(port);
        }
    }
    Json::Array(ports)
}

/// Returns a port's number and protocol, which is TCP by default.
pub(crate) fn port_key(port: &Json) -> (Option<u64>, &str) {
    (port["containerPort"].as_u64(), port["protocol"].as_str().unwrap_or("TCP"))
}

fn resources(dice: &mut Dice) -> Json {
    let mut resources = json!({});
    if dice.chance(70) {
        let mut requests = json!({});
        maybe!(dice, requests.cpu, 70, dice.pick(&["10m", "0.02", "30m"]));
        maybe!(dice, requests.memory, 70, dice.pick(&["16Mi", "32Mi"]));
        resources["requests"] = requests;
    }
    if dice.chance(70) {
        let mut limits = json!({});
        maybe!(dice, limits.cpu, 60, dice.pick(&["1", "2000m"]));
        maybe!(dice, limits.memory, 60, dice.pick(&["1Gi", "2048Mi"]));
        if dice.chance(20) {
            limits["ephemeral-storage"] = json!("1Gi");
        }
        resources["limits"] = limits;
    }
    resources
}

fn resize_policy(dice: &mut Dice) -> Json {
    let names = dice.some(&["cpu", "memory"], 2);
    let policy = |dice: &mut Dice| if dice.chance(80) { "NotRequired" } else { "RestartContainer" };
    names.into_iter().map(|name| json!({"resourceName": name, "restartPolicy": policy(dice)})).collect()
}

fn security_context(dice: &mut Dice) -> Json {
    let mut context = json!({});
    maybe!(dice, context.runAsUser, 40, dice.below(3) + 1000);
    maybe!(dice, context.runAsGroup, 20, dice.below(3) + 1000);
    maybe!(dice, context.runAsNonRoot, 30, dice.chance(50));
    maybe!(dice, context.readOnlyRootFilesystem, 30, dice.chance(50));
    maybe!(dice, context.allowPrivilegeEscalation, 30, false);
    maybe!(dice, context.seLinuxOptions, 15, selinux(dice));
    maybe!(dice, context.seccompProfile, 20, seccomp(dice));
    if dice.chance(40) {
        let mut capabilities = json!({});
        maybe!(dice, capabilities.add, 50, dice.some(&["NET_ADMIN", "NET_RAW", "SYS_TIME"], 3));
        maybe!(dice, capabilities.drop, 60, dice.some(&["ALL", "CHOWN"], 2));
        context["capabilities"] = capabilities;
    }
    context
}

fn selinux(dice: &mut Dice) -> Json {
    let mut options = json!({});
    maybe!(dice, options.level, 70, dice.pick(&["s0:c1", "s0:c2"]));
    maybe!(dice, options.role, 50, "r");
    options
}

fn seccomp(dice: &mut Dice) -> Json {
    match dice.below(5) {
        0 => json!({"type": "Localhost", "localhostProfile": dice.pick(&["a.json", "b.json"])}),
        1 => json!({"type": "Unconfined"}),
        _ => json!({"type": "RuntimeDefault"}),
    }
}

/// Generates the security context of a pod.
pub(crate) fn pod_security_context(dice: &mut Dice) -> Json {
    let mut context = json!({});
    maybe!(dice, context.runAsUser, 40, dice.below(3) + 1000);
    maybe!(dice, context.fsGroup, 40, dice.below(3) + 1000);
    maybe!(dice, context.fsGroupChangePolicy, 20, dice.pick(&["Always", "OnRootMismatch"]));
    maybe!(dice, context.supplementalGroups, 30, dice.some(&[1, 2, 3], 3));
    maybe!(dice, context.seccompProfile, 20, seccomp(dice));
    maybe!(dice, context.seLinuxOptions, 10, selinux(dice));
    if dice.chance(20) {
        let names = dice.some(&["kernel.shm_rmid_forced", "net.ipv4.tcp_syncookies"], 2);
        context["sysctls"] =
            names.into_iter().map(|name| json!({"name": name, "value": dice.pick(&["0", "1"])})).collect();
    }
    context
}

fn mounts(dice: &mut Dice, volumes: &[String]) -> Json {
    let usable: Vec<_> = volumes.iter().filter(|name| !name.starts_with("block-")).collect();
    if usable.is_empty() {
        return json!([]);
    }
    let mount = |dice: &mut Dice, path| {
        let mut mount = json!({"name": dice.pick(&usable), "mountPath": path});
        maybe!(dice, mount.readOnly, 40, dice.chance(50));
        maybe!(dice, mount.subPath, 30, dice.pick(&["a", "b"]));
        maybe!(dice, mount.mountPropagation, 15, dice.pick(&["None", "HostToContainer"]));
        mount
    };
    let paths = dice.some(&PATHS, 4);
    paths.into_iter().map(|path| mount(dice, path)).collect()
}

fn probe(dice: &mut Dice) -> Json {
    let mut probe = json!({});
    if dice.chance(90) {
        let (name, action) = match dice.below(4) {
            0 => ("exec", exec(dice)),
            1 => ("tcpSocket", socket(dice)),
            2 => {
                let mut call = json!({"port": dice.pick(&PORTS)});
                maybe!(dice, call.service, 40, dice.pick(&["s", "t"]));
                ("grpc", call)
            }
            _ => ("httpGet", http(dice)),
        };
        probe[name] = action;
    }
    maybe!(dice, probe.periodSeconds, 40, dice.below(3) + 5);
    maybe!(dice, probe.failureThreshold, 30, dice.below(3) + 1);
    maybe!(dice, probe.initialDelaySeconds, 30, dice.below(3));
    maybe!(dice, probe.timeoutSeconds, 20, dice.below(3) + 1);
    probe
}

fn handler(dice: &mut Dice) -> Json {
    match dice.below(4) {
        0 => json!({"exec": exec(dice)}),
        1 => json!({"tcpSocket": socket(dice)}),
        2 => json!({"sleep": {"seconds": dice.below(3) + 1}}),
        _ => json!({"httpGet": http(dice)}),
    }
}

fn exec(dice: &mut Dice) -> Json {
    json!({"command": [dice.pick(&["check", "true"]), dice.pick(&["-a", "-b"])]})
}

fn socket(dice: &mut Dice) -> Json {
    let mut socket = json!({"port": dice.pick(&PORTS)});
    maybe!(dice, socket.host, 20, "127.0.0.1");
    socket
}

fn http(dice: &mut Dice) -> Json {
    let mut get = json!({"port": if dice.chance(70) { json!(dice.pick(&PORTS)) } else { json!("web") }});
    maybe!(dice, get.path, 60, dice.pick(&["/", "/healthz"]));
    maybe!(dice, get.scheme, 30, dice.pick(&["HTTP", "HTTPS"]));
    maybe!(dice, get.host, 10, "127.0.0.1");
    if dice.chance(20) {
        let names = dice.some(&["X-A", "X-B"], 2);
        get["httpHeaders"] =
            names.into_iter().map(|name| json!({"name": name, "value": dice.pick(&["1", "2"])})).collect();
    }
    get
}
