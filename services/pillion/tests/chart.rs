//! Lints and renders the chart with helm for several sets of values, and compares the objects and profiles with the
//! expected ones. `e2e/chart.rs` installs the chart in a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pillion_testkit::tools;
use serde_json::{Value as Json, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn chart() -> PathBuf {
    repository().join("charts/pillion")
}

/// Runs helm on the chart with these values.
fn helm(arguments: &[&str], values: &Json) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    fs::write(&file, values.to_string()).unwrap();
    let mut command = Command::new(tools::program("helm").unwrap());
    // The user's own plugins and repositories must not affect the result.
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, folder.path());
    }
    command.args(arguments).arg(chart()).arg("--values").arg(&file).output().unwrap()
}

fn template(name: &str, namespace: &str, values: &Json) -> Result<Vec<Json>, String> {
    let release = ["template", name, "--namespace", namespace, "--kube-version", "1.36.3"];
    // `helm template NAME CHART` expects the chart's path after the name. Helm accepts flags in any order.
    let ran = helm(&release, values);
    if !ran.status.success() {
        return Err(String::from_utf8(ran.stderr).unwrap());
    }
    assert!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(documents(&String::from_utf8(ran.stdout).unwrap()))
}

fn documents(text: &str) -> Vec<Json> {
    let found: Vec<Json> = serde_saphyr::from_multiple(text).unwrap();
    found.into_iter().filter(|document| !document.is_null()).collect()
}

fn rendered(values: &Json) -> Vec<Json> {
    template("pillion", "pillion-system", values).unwrap()
}

fn text<'j>(object: &'j Json, pointer: &str) -> &'j str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// Returns the object's kind, namespace and name. The namespace of a cluster-scoped object is empty.
fn identity(object: &Json) -> (String, String, String) {
    let owned = |pointer| text(object, pointer).to_owned();
    (owned("/kind"), owned("/metadata/namespace"), owned("/metadata/name"))
}

fn of_kind<'o>(objects: &'o [Json], kind: &str) -> Vec<&'o Json> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn named<'o>(objects: &'o [Json], kind: &str, name: &str) -> &'o Json {
    let found = of_kind(objects, kind).into_iter().find(|object| object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn is_hook(object: &Json) -> bool {
    object["metadata"]["annotations"].get("helm.sh/hook").is_some()
}

/// Returns the names of the folders of shipped profiles.
fn shipped() -> Vec<String> {
    let folders = fs::read_dir(repository().join("profiles")).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|folder| folder.join("profile.yaml").exists());
    let mut names: Vec<_> = folders.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    names
}

/// Returns values that enable every feature.
fn everything() -> Json {
    json!({
        "profiles": shipped(), "optIn": ["istio-injection=enabled"], "excludedNamespaces": ["vault"],
        "imagePullSecrets": [{"name": "registry"}], "commonLabels": {"team": "platform"},
        "image": {"registry": "registry.example.com", "digest": format!("sha256:{}", "0".repeat(64))},
        "webhook": {
            "autoscaling": {"enabled": true}, "hostNetwork": true, "port": 10443, "metricsPort": 10090, "listenAddress": "[::]",
            "policy": {"cluster": {"region": "eu-west-1"}},
            "extraArgs": ["--client-name=kube-apiserver"], "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "v", "emptyDir": {}}], "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
            "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}, "podAnnotations": {"a": "b"},
            "deploymentAnnotations": {"a": "b"}, "serviceAnnotations": {"a": "b"}, "serviceAccount": {"annotations": {"a": "b"}},
            "podLabels": {"a": "b"},
        },
        "controller": {
            "policy": {"webhooks": {"timeoutRequired": "5s"}}, "podLabels": {"a": "b"}, "serviceAccount": {"annotations": {"a": "b"}},
            "extraVolumes": [{"name": "v", "emptyDir": {}}], "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        "guardrails": {"profiles": {"registries": ["ghcr.io/team"]}},
        "rollout": {
            "inPlace": true, "restart": true, "pullSecrets": ["registry"], "requestsPerSecond": 50, "namespaced": {"strategy": "InPlace"},
        },
        "audit": {"openReports": true},
        "safetyNet": {"enabled": true},
        "service": {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"},
        "rbac": {"extraLookups": [{"resource": "configmaps"}, {"group": "example.com", "resource": "things"}]},
        "networkPolicy": {"apiServerCIDRs": ["10.0.0.0/8"], "metricsFrom": [{"namespaceSelector": {}}]},
        "metrics": {"serviceMonitor": {"enabled": true, "labels": {"a": "b"}}, "prometheusRule": {"enabled": true}},
        "dashboards": {"enabled": true, "annotations": {"grafana_folder": "Pillion"}},
        "priorityClassName": "system-cluster-critical",
    })
}

/// The sets of values that the tests render and lint, each with a name.
fn value_sets() -> [(&'static str, Json); 3] {
    [
        ("none", json!({})),
        ("everything", everything()),
        (
            "nothing",
            json!({
                "rbac": {"held": false, "lookups": false, "aggregate": false}, "guardrails": {"authors": false, "records": false, "inlineSecrets": {"enabled": false}},
                "crds": {"upgrade": false}, "uninstall": {"enabled": false}, "networkPolicy": {"enabled": false},
                "metrics": {"service": false}, "webhook": {"podDisruptionBudget": {"enabled": false}, "topologySpreadConstraints": []},
                "controller": {"podDisruptionBudget": {"enabled": false}, "topologySpreadConstraints": []},
            }),
        ),
    ]
}

#[test]
fn helm_lint_accepts_the_chart() {
    for (name, values) in value_sets() {
        let ran = helm(&["lint", "--strict"], &values);
        let output = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name}: {output}");
        assert!(!output.contains("[WARNING]") && !output.contains("[ERROR]"), "{name}: {output}");
    }
}

#[test]
fn rendered_names_are_unique() {
    for (name, values) in value_sets() {
        check_names(name, &rendered(&values));
    }
}

/// Checks that names are unique, that the chart contains no object that the controller creates, and that each object
/// has the label of the release. Each namespaced object must set a namespace, and no other object may set one.
fn check_names(set: &str, objects: &[Json]) {
    let mut seen = BTreeSet::new();
    for object in objects {
        let (kind, namespace, name) = identity(object);
        assert!(seen.insert((kind.clone(), namespace.clone(), name.clone())), "{set}: {kind} {name} twice");
        let made =
            ["Secret", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Lease", "EndpointSlice"];
        assert!(!made.contains(&&*kind), "{set}: {kind} {name}");
        assert!(!(kind == "ConfigMap" && name == "pillion"), "the chart must not contain the kill switch");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "pillion", "{set}: {kind} {name}");
        let cluster_wide = kind.starts_with("Cluster") || kind.starts_with("Validating");
        assert_eq!(cluster_wide, namespace.is_empty(), "{set}: {kind} {name} in {namespace:?}");
    }
}

/// Returns the pod templates of a release's Deployments and Jobs, each with the name of its workload.
fn pods(objects: &[Json]) -> Vec<(String, &Json)> {
    let workloads = objects.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "Job");
    workloads.map(|workload| (identity(workload).2, &workload["spec"]["template"])).collect()
}

#[test]
fn system_priority_class_has_quota() {
    let quotas = |namespace: &str, class: &str| {
        let objects = template("pillion", namespace, &json!({"priorityClassName": class})).unwrap();
        of_kind(&objects, "ResourceQuota").into_iter().cloned().collect::<Vec<_>>()
    };
    let [quota] = &quotas("pillion-system", "system-cluster-critical")[..] else { panic!("there is one quota") };
    let scope = &quota["spec"]["scopeSelector"]["matchExpressions"];
    assert_eq!(
        *scope,
        json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"]}])
    );
    assert_eq!(quota["metadata"]["namespace"], "pillion-system");
    for (namespace, class) in
        [("pillion-system", ""), ("pillion-system", "high"), ("kube-system", "system-cluster-critical")]
    {
        assert!(quotas(namespace, class).is_empty(), "{namespace}, {class:?}");
    }
}

#[test]
fn pods_are_restricted_and_spread() {
    for (set, values) in [("none", json!({})), ("everything", everything())] {
        let objects = rendered(&values);
        let pods = pods(&objects);
        assert_eq!(pods.len(), 4, "webhook, controller and two jobs");
        for (name, pod) in pods {
            let spec = &pod["spec"];
            let context = &spec["securityContext"];
            assert_eq!(context["runAsNonRoot"], true, "{name}");
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            for container in spec["containers"].as_array().unwrap() {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}), "{name}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
                let image = text(container, "/image");
                let expected = if set == "none" { "pillion:0.1.0" } else { "registry.example.com/pillion@sha256:000" };
                assert!(image.starts_with(expected), "{image}");
            }
            let class = if set == "none" { json!(null) } else { json!("system-cluster-critical") };
            assert_eq!(spec["priorityClassName"], class, "{name}");
        }
        let webhook = &named(&objects, "Deployment", "pillion-webhook")["spec"];
        // The default of connections.drainDeadline is 100 s.
        assert!(webhook["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap() > 100);
        if set == "everything" {
            for kind in ["ServiceAccount", "Deployment"] {
                let object = named(&objects, kind, "pillion-webhook");
                assert_eq!(object["metadata"]["annotations"], json!({"a": "b"}), "{kind}");
            }
            let service = named(&objects, "Service", "pillion");
            assert_eq!(service["metadata"]["annotations"], json!({"a": "b"}));
        }
        // On the host network, an old pod must stop before a new one can start.
        assert_eq!(webhook["strategy"]["rollingUpdate"]["maxUnavailable"], u64::from(set == "everything"));
        assert_eq!(webhook.get("replicas").is_none(), set == "everything", "an HPA sets the replicas");
        assert_eq!(of_kind(&objects, "HorizontalPodAutoscaler").len(), usize::from(set == "everything"));
        assert_eq!(of_kind(&objects, "PodDisruptionBudget").len(), 2);
        for component in ["webhook", "controller"] {
            let name = format!("pillion-{component}");
            let deployment = &named(&objects, "Deployment", &name)["spec"];
            assert_eq!(deployment["template"]["spec"]["serviceAccountName"], name);
            let labels = deployment["template"]["metadata"]["labels"].as_object().unwrap();
            let selected =
                |selector: &Json| selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value);
            assert!(selected(&deployment["selector"]["matchLabels"]));
            let constraints = deployment["template"]["spec"]["topologySpreadConstraints"].as_array().unwrap();
            for constraint in constraints {
                assert_eq!(
                    constraint["labelSelector"]["matchLabels"], deployment["selector"]["matchLabels"],
                    "{name}: {constraint}"
                );
            }
            let is_by_node = |constraint: &&Json| constraint["topologyKey"] == "kubernetes.io/hostname";
            let by_node = constraints.iter().filter(is_by_node).count();
            assert_eq!(by_node, 1, "{set}: the pods of {name} are spread over nodes");
            let budget = named(&objects, "PodDisruptionBudget", &name);
            assert!(selected(&budget["spec"]["selector"]["matchLabels"]));
        }
        let service = named(&objects, "Service", "pillion");
        assert_eq!(service["spec"]["selector"]["app.kubernetes.io/component"], "webhook");
        assert_eq!(service["spec"]["ports"][0]["name"], "https", "probes of endpoints use this name");
    }
}

/// Returns the value of a flag in the arguments of a Deployment's first container. `flag` includes the `=`.
fn arguments(objects: &[Json], component: &str, flag: &str) -> String {
    let deployment = named(objects, "Deployment", &format!("pillion-{component}"));
    let all = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    let mut found = all.iter().filter_map(|argument| argument.as_str().unwrap().strip_prefix(flag));
    found.next().unwrap_or_else(|| panic!("{component} has no {flag}")).to_owned()
}

#[test]
fn services_lead_to_listening_ports() {
    for (service, expected) in [
        (json!({}), "0.0.0.0"),
        (json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}), "0.0.0.0"),
        (json!({"ipFamilies": ["IPv6"]}), "[::]"),
        (json!({"ipFamilies": ["IPv4", "IPv6"]}), "[::]"),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), "[::]"),
        (json!({"ipFamilyPolicy": "RequireDualStack"}), "[::]"),
    ] {
        let objects = rendered(&json!({"service": service}));
        for (component, flag, port) in [
            ("webhook", "--listen=", 8443),
            ("webhook", "--metrics-listen=", 9090),
            ("controller", "--trust-probe-listen=", 8443),
            ("controller", "--metrics-listen=", 9090),
        ] {
            assert_eq!(arguments(&objects, component, flag), format!("{expected}:{port}"), "{service}");
        }
        for name in ["pillion", "pillion-webhook-metrics", "pillion-controller-metrics"] {
            let spec = &named(&objects, "Service", name)["spec"];
            for field in ["ipFamilies", "ipFamilyPolicy"] {
                assert_eq!(spec.get(field), service.get(field), "{service}: {name}");
            }
        }
        // The leader writes a single EndpointSlice, of its pod's IP family.
        let probe_service = &named(&objects, "Service", "pillion-trust-probe")["spec"];
        assert_eq!((probe_service.get("ipFamilies"), probe_service.get("ipFamilyPolicy")), (None, None), "{service}");
    }
    let given =
        rendered(&json!({"webhook": {"listenAddress": "[fd00::1]"}, "controller": {"listenAddress": "10.0.0.1"}}));
    assert_eq!(arguments(&given, "webhook", "--listen="), "[fd00::1]:8443");
    assert_eq!(arguments(&given, "controller", "--trust-probe-listen="), "10.0.0.1:8443");
}

#[test]
fn host_network_rollout_waits_for_ports() {
    let none = rendered(&json!({}));
    let host = rendered(&json!({
        "webhook": {"hostNetwork": true, "port": 10250}, "controller": {"hostNetwork": true, "port": 10260, "metricsPort": 9091},
    }));
    for (component, before) in [("webhook", json!({"maxSurge": 1, "maxUnavailable": 0})), ("controller", Json::Null)] {
        let name = format!("pillion-{component}");
        let spec = &named(&none, "Deployment", &name)["spec"];
        assert_eq!(spec["strategy"]["rollingUpdate"], before);
        assert_eq!(spec["template"]["spec"].get("hostNetwork"), None);
        let spec = &named(&host, "Deployment", &name)["spec"];
        assert_eq!(spec["strategy"]["rollingUpdate"], json!({"maxSurge": 0, "maxUnavailable": 1}), "{component}");
        assert_eq!(spec["template"]["spec"]["hostNetwork"], true);
        assert_eq!(spec["template"]["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
    }
    assert_eq!(arguments(&host, "webhook", "--listen="), "0.0.0.0:10250");
    let ports = &named(&host, "Deployment", "pillion-webhook")["spec"]["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(ports[0], json!({"name": "https", "containerPort": 10250, "protocol": "TCP"}));
    assert_eq!(named(&host, "NetworkPolicy", "pillion-webhook")["spec"]["ingress"][0]["ports"][0]["port"], 10250);
}

#[test]
fn network_policy_admits_api_servers_and_controller_only() {
    let rendered = rendered(&json!({"networkPolicy": {"apiServerCIDRs": ["10.0.0.0/8"]}}));
    let reviews = &named(&rendered, "NetworkPolicy", "pillion-webhook")["spec"]["ingress"][0];
    let from = reviews["from"].as_array().unwrap();
    assert_eq!(from[0], json!({"ipBlock": {"cidr": "10.0.0.0/8"}}));
    assert_eq!(from[1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"], "controller");
    assert_eq!(from.len(), 2);
}

#[test]
fn pods_share_image_and_pull_secrets() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let values = json!({
        "imagePullSecrets": [{"name": "registry"}], "image": {"registry": "registry.example.com", "digest": digest, "tag": "v9"},
    });
    let objects = rendered(&values);
    let pods = pods(&objects);
    assert_eq!(pods.len(), 4);
    for (name, pod) in pods {
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "registry"}]), "{name}");
        assert_eq!(pod["spec"]["containers"][0]["image"], format!("registry.example.com/pillion@{digest}"), "{name}");
    }
}

#[test]
fn job_pods_are_in_no_service() {
    let objects = rendered(&json!({}));
    for job in of_kind(&objects, "Job") {
        let component = &job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"];
        assert!(component == "crds" || component == "uninstall", "{component}");
    }
}

#[test]
fn policies_come_from_values() {
    let folder = tempfile::tempdir().unwrap();
    for (set, values) in [("none", json!({})), ("everything", everything())] {
        let objects = rendered(&values);
        for component in ["webhook", "controller"] {
            let config = named(&objects, "ConfigMap", &format!("pillion-{component}"));
            let file = folder.path().join(format!("{set}-{component}.yaml"));
            fs::write(&file, text(config, "/data/policy.yaml")).unwrap();
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion"));
            let ran = command.args([component, "--check-config", "--config"]).arg(&file).output().unwrap();
            assert!(ran.status.success(), "{component}: {}", String::from_utf8_lossy(&ran.stderr));
            let policy = &documents(std::str::from_utf8(&ran.stdout).unwrap())[0];
            let wanted = if set == "none" { json!([]) } else { json!(["istio-injection=enabled"]) };
            let opt_in = if component == "webhook" { "/namespaces/optIn" } else { "/webhooks/optIn" };
            assert_eq!(policy.pointer(opt_in), Some(&wanted), "{policy}");
            if component == "webhook" {
                assert_eq!(policy["guardrails"]["recordDecisions"], true, "the policy in the API server requires it");
            }
            if set == "everything" && component == "webhook" {
                assert_eq!(policy["cluster"]["region"], "eu-west-1");
                assert_eq!(policy["guardrails"]["registries"], json!(["ghcr.io/team"]));
            } else if set == "everything" {
                assert_eq!(policy["webhooks"]["excludedNamespaces"], json!(["vault"]));
                assert_eq!(policy["webhooks"]["timeoutRequired"], "5s");
                let rollouts = json!({
                    "inPlace": true, "restart": true, "pullSecrets": ["registry"], "requestsPerSecond": 50,
                    "namespaced": {"strategy": "InPlace", "maxUnavailable": 10, "podTimeoutSeconds": 600},
                });
                assert_eq!(policy["rollouts"], rollouts);
                assert_eq!(policy["audit"]["openReports"], true);
                assert_eq!(policy["safetyNet"], json!({"enabled": true}));
                assert_eq!(policy["guardrails"]["registries"], json!(["ghcr.io/team"]));
                assert_eq!(policy["guardrails"]["recordDecisions"], true, "a simulated pod equals a created one");
            } else if component == "controller" {
                assert_eq!(policy["rollouts"]["inPlace"], false);
                assert_eq!(policy["audit"]["openReports"], false);
                assert_eq!(policy["safetyNet"]["enabled"], false);
            }
        }
    }
}

/// Removes the labels, since the chart adds its own labels to every object.
fn bare(mut object: Json) -> Json {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("labels");
    object
}

const RBAC: [&str; 5] = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

fn rules(objects: impl IntoIterator<Item = Json>) -> BTreeMap<(String, String, String), Json> {
    let all = objects.into_iter().filter(|object| RBAC.contains(&text(object, "/kind")) && !is_hook(object));
    all.map(|object| (identity(&object), bare(object))).collect()
}

#[test]
fn rbac_equals_deploy_rbac() {
    let mut expected = BTreeMap::new();
    for file in ["webhook.yaml", "controller.yaml"] {
        let file = fs::read_to_string(repository().join("deploy/rbac").join(file)).unwrap();
        expected.extend(rules(documents(&file)));
    }
    let mut found = rules(rendered(&json!({})));
    // Only the chart, and not `deploy/rbac`, contains roles for tenants.
    for role in ["pillion-view", "pillion-edit"] {
        let role = found.remove(&("ClusterRole".to_owned(), String::new(), role.to_owned())).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            let resources = rule["resources"].to_string();
            assert!(!resources.contains("status") && !resources.contains("cluster"), "{rule}");
            assert!(!resources.contains("revisions") || rule["verbs"] == json!(["get", "list", "watch"]), "{rule}");
        }
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, object) in &expected {
        assert_eq!(found[name], *object, "{name:?}");
    }

    let without = rules(rendered(&json!({"rbac": {"held": false, "lookups": false, "aggregate": false}})));
    assert!(without.keys().all(|(_, _, name)| !name.ends_with("held") && !name.ends_with("lookups")), "{without:?}");
    assert_eq!(without.len(), expected.len() - 5);
}

#[test]
fn safety_net_permissions_follow_value() {
    let before = rules(rendered(&json!({})));
    let after = rules(rendered(&json!({"safetyNet": {"enabled": true}})));
    assert!(before.iter().all(|(name, object)| after[name] == *object));
    let added: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    let [(_, role), (_, binding)] = added.as_slice() else { panic!("{added:?}") };
    let [permission] = role["rules"].as_array().unwrap().as_slice() else { panic!("{role}") };
    assert_eq!(permission["resourceNames"], json!(["pillion-safety-net"]));
    assert_eq!(permission["resources"], json!(["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"]));
    assert!(!permission["verbs"].to_string().contains("delete"), "the controller may always delete the policy");
    assert_eq!(binding["subjects"][0]["name"], "pillion-controller");
}

#[test]
fn in_place_permissions_follow_value() {
    let before = rules(rendered(&json!({})));
    let after = rules(rendered(&json!({"rollout": {"inPlace": true}})));
    assert!(before.iter().all(|(name, object)| after[name] == *object));
    let added: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    let (accounts, added): (Vec<_>, Vec<_>) = added.into_iter().partition(|((kind, ..), _)| kind == "ServiceAccount");
    let [(_, account)] = accounts.as_slice() else { panic!("{accounts:?}") };
    // The pods that pull images have neither a token nor Secrets.
    assert_eq!(account["metadata"]["name"], "pillion-image-pull");
    assert!(account["automountServiceAccountToken"] == false && account.get("imagePullSecrets").is_none());
    assert!(added.iter().all(|((_, _, name), _)| name == "pillion-controller-in-place"), "{added:?}");
    let kinds: Vec<_> = added.iter().map(|((kind, namespace, _), _)| (&**kind, &**namespace)).collect();
    let home = "pillion-system";
    assert_eq!(kinds, [("ClusterRole", ""), ("ClusterRoleBinding", ""), ("Role", home), ("RoleBinding", home)]);
    let granted = |index: usize| {
        let rules = added[index].1["rules"].as_array().unwrap().iter();
        rules.map(|rule| format!("{} {}: {}", rule["apiGroups"], rule["resources"], rule["verbs"])).collect::<Vec<_>>()
    };
    let cluster = [
        r#"[""] ["pods","pods/resize"]: ["patch"]"#,
        r#"["policy"] ["poddisruptionbudgets"]: ["list"]"#,
        r#"[""] ["nodes"]: ["get"]"#,
    ];
    assert_eq!(granted(0), cluster);
    assert_eq!(granted(2), [r#"[""] ["pods"]: ["create","delete"]"#]);
    let restart = rules(rendered(&json!({"rollout": {"inPlace": true, "restart": true}})));
    let role = &restart[added[0].0]["rules"];
    let evicts = json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]});
    assert_eq!(role.as_array().unwrap().iter().filter(|rule| **rule == evicts).count(), 1, "{role}");
    assert_eq!(role.as_array().unwrap().len(), cluster.len() + 1);
    for (_, binding) in [added[1], added[3]] {
        assert_eq!(binding["subjects"][0]["name"], "pillion-controller");
    }
}

#[test]
fn report_permissions_follow_value() {
    let before = rules(rendered(&json!({})));
    let after = rules(rendered(&json!({"audit": {"openReports": true}})));
    let added: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    let [(_, role), (_, binding)] = added.as_slice() else { panic!("{added:?}") };
    let reports = json!([{"apiGroups": ["openreports.io"], "resources": ["reports"], "resourceNames": ["pillion"],
        "verbs": ["list", "create", "patch", "delete"]}]);
    assert_eq!(role["rules"], reports);
    assert_eq!(binding["subjects"][0]["name"], "pillion-controller");
    assert_eq!(before.len() + 2, after.len());
}

#[test]
fn names_follow_the_release() {
    for (name, values) in [("edge", json!({})), ("x", json!({"fullnameOverride": "edge"}))] {
        let objects = template(name, "platform", &values).unwrap();
        for object in &objects {
            assert!(text(object, "/metadata/name").starts_with("edge"), "{:?}", identity(object));
            let mut object = object.to_string();
            for wire in ["pillion.dev", "pillion:0.1.0", "/etc/pillion", "name\":\"pillion\"", "pillion-0.1.0"] {
                object = object.replace(wire, "");
            }
            assert!(!object.contains("pillion-system") && !object.contains("\"pillion"), "{object}");
        }
        let secrets = &named(&objects, "Role", "edge-webhook")["rules"][0];
        assert_eq!(secrets["resourceNames"], json!(["edge-serving"]));
    }
}

#[test]
fn trust_probe_service_matches_program() {
    let release = pillion_control::Release::new("pillion", "pillion-system", "cluster.local").unwrap();
    let expected = serde_json::to_value(pillion_control::trust_probe::service(&release).unwrap()).unwrap();
    let objects = rendered(&json!({}));
    assert_eq!(bare(named(&objects, "Service", "pillion-trust-probe").clone()), expected);
}

#[test]
fn invalid_values_are_rejected() {
    for (values, expected) in [
        (json!({"webhok": {}}), "webhok"),
        (json!({"webhook": {"replica": 2}}), "replica"),
        (json!({"webhook": {"port": 0}}), "port"),
        (json!({"image": {"digest": "latest"}}), "digest"),
        (json!({"optIn": ["istio-injection"]}), "optIn"),
        (json!({"webhook": {"policy": {"kind": "WebhookPolicy"}}}), "policy"),
        (json!({"webhook": {"policy": {"guardrails": {}}}}), "policy"),
        (json!({"controller": {"policy": {"guardrails": {}}}}), "policy"),
        (json!({"controller": {"policy": {"rollouts": {"inPlace": true}}}}), "policy"),
        (json!({"controller": {"policy": {"audit": {"openReports": true}}}}), "policy"),
        (json!({"audit": {"openReports": "yes"}}), "openReports"),
        (json!({"controller": {"policy": {"safetyNet": {"enabled": true}}}}), "policy"),
        (json!({"rollout": {"inplace": true}}), "inplace"),
        (json!({"rollout": {"pullSecrets": [{"name": "registry"}]}}), "pullSecrets"),
        (json!({"rollout": {"requestsPerSecond": 0}}), "requestsPerSecond"),
        (json!({"rollout": {"namespaced": {"strategy": "Always"}}}), "strategy"),
        (json!({"webhook": {"replicas": 2}}), "replicas"),
        (json!({"guardrails": {"profiles": {"maxContainer": 2}}}), "maxContainer"),
        (json!({"webhook": {"topologySpreadConstraints": ["kubernetes.io/hostname"]}}), "topologySpreadConstraints"),
        (json!({"rbac": {"extraLookups": [{"resource": "secrets"}]}}), "Secrets are never looked up"),
        (json!({"rbac": {"extraLookups": [{"group": "*", "resource": "secrets"}]}}), "Secrets are never looked up"),
        (json!({"rbac": {"extraLookups": [{"group": "*", "resource": "*"}]}}), "Secrets are never looked up"),
        (json!({"metrics": {"service": false, "serviceMonitor": {"enabled": true}}}), "requires metrics.service"),
        (json!({"fullnameOverride": "p".repeat(53)}), "fullnameOverride"),
        (
            json!({"webhook": {"listenAddress": "0.0.0.0"}, "service": {"ipFamilyPolicy": "RequireDualStack"}}),
            "webhook.listenAddress: 0.0.0.0 is not reachable by IPv6",
        ),
        (
            json!({"controller": {"listenAddress": "10.0.0.1"}, "service": {"ipFamilies": ["IPv6"]}}),
            "controller.listenAddress: 10.0.0.1 is not reachable by IPv6",
        ),
        (
            json!({"webhook": {"hostNetwork": true}, "controller": {"hostNetwork": true, "port": 9443}}),
            "both use port 9090",
        ),
    ] {
        let error = template("pillion", "pillion-system", &values).unwrap_err();
        assert!(error.contains(expected), "{values}: {error}");
    }
}

/// Returns the file with the profiles of this folder of `profiles/`: `policy.yaml` if it exists, else `profile.yaml`.
pub(crate) fn profile_source(folder: &str) -> PathBuf {
    let folder = repository().join("profiles").join(folder);
    let policy = folder.join("policy.yaml");
    if policy.exists() { policy } else { folder.join("profile.yaml") }
}

#[test]
fn profiles_are_rendered_with_their_parents() {
    let mut all = BTreeMap::new();
    for folder in shipped() {
        for object in documents(&fs::read_to_string(profile_source(&folder)).unwrap()) {
            all.insert(text(&object, "/metadata/name").to_owned(), object);
        }
    }
    for folder in shipped() {
        let objects = rendered(&json!({"profiles": [folder]}));
        check_names(&folder, &objects);
        let found: BTreeMap<_, _> = of_kind(&objects, "ClusterInjectionProfile")
            .into_iter()
            .map(|object| (identity(object).2, object))
            .collect();
        for object in documents(&fs::read_to_string(profile_source(&folder)).unwrap()) {
            let (kind, _, name) = identity(&object);
            let found = named(&objects, &kind, &name);
            assert_eq!(found["spec"], object["spec"], "{folder}: {name}");
        }
        for (name, object) in found {
            assert_eq!(object["spec"], all[&name]["spec"], "{folder}: {name}");
            let parent = text(object, "/spec/extends/name");
            assert!(
                parent.is_empty()
                    || of_kind(&objects, "ClusterInjectionProfile")
                        .iter()
                        .any(|other| other["metadata"]["name"] == parent)
            );
            for lookup in object["spec"]["lookups"].as_array().into_iter().flatten() {
                let role = named(&objects, "ClusterRole", "pillion-declared-lookups")["rules"].as_array().unwrap();
                let group = lookup.get("group").cloned().unwrap_or_else(|| json!(""));
                assert!(
                    role.iter().any(|rule| rule["apiGroups"] == json!([group])
                        && rule["resources"].as_array().unwrap().contains(&lookup["resource"])),
                    "{folder}: {lookup}"
                );
            }
        }
    }
}

#[test]
fn rendered_profiles_are_valid() {
    let objects = rendered(&json!({"profiles": shipped()}));
    let profiles: Vec<_> = of_kind(&objects, "ClusterInjectionProfile").into_iter().cloned().collect();
    assert!(profiles.len() > 30, "{}", profiles.len());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profiles.yaml");
    let text: Vec<_> = profiles.iter().map(Json::to_string).collect();
    fs::write(&file, text.join("\n---\n")).unwrap();
    let ran = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("lint").arg(&file).output().unwrap();
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn values_set_parameter_defaults() {
    let profiles = |value: Json| template("pillion", "pillion-system", &json!({"profiles": value}));
    let objects =
        profiles(json!({"otel-java": {"parameters": {"image": "registry.example.com/agent:1"}}, "nginx": null}))
            .unwrap();
    let default = |name: &str| {
        let parameters =
            named(&objects, "ClusterInjectionProfile", name)["spec"]["parameters"].as_array().unwrap().clone();
        parameters
            .into_iter()
            .find(|parameter| parameter["name"] == "image")
            .map(|parameter| parameter["default"].clone())
    };
    assert_eq!(default("otel-java"), Some(json!("registry.example.com/agent:1")));
    named(&objects, "ClusterInjectionProfile", "nginx");
    named(&objects, "ClusterInjectionProfile", "otel-agent");
    let without = profiles(json!({"nginx": {"enabled": false}})).unwrap();
    assert!(of_kind(&without, "ClusterInjectionProfile").is_empty());

    for (value, expected) in [
        (json!(["nginxx"]), "there is no shipped profile \"nginxx\"; there are: agones-defaults, "),
        (json!({"otel-java": {"parameters": {"imgae": "x"}}}), "there is no parameter \"imgae\"; there are: "),
        (json!({"otel-java": {"params": {}}}), "values don't meet the specifications of the schema"),
    ] {
        let error = profiles(value).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn own_spread_constraint_keeps_its_selector() {
    let constraint = json!({
        "topologyKey": "example.com/rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "own"}},
    });
    let objects = rendered(&json!({"controller": {"topologySpreadConstraints": [constraint]}}));
    let controller = named(&objects, "Deployment", "pillion-controller");
    assert_eq!(controller["spec"]["template"]["spec"]["topologySpreadConstraints"], json!([constraint]));
}
