//! Tests expressions as they occur in profiles for well-known sidecars, with pods that these profiles target.

use pillion_expression::Outcome;
use serde_json::{Value as Json, json};

use crate::Environment;

fn object(environment: Environment, object: &Json) -> Environment {
    environment.with("object", object.clone()).with("request", json!({"namespace": "shop", "uid": "1"}))
}

#[test]
fn opentelemetry_java() {
    let app = json!({"name": "app", "type": "App", "image": "registry.example.com:5000/shop/web:1.4@sha256:ab"});
    let containers = json!([{"name": "init", "type": "Init", "image": "busybox"}, app]);
    let params = json!({
        "names": [], "javaNames": ["app"], "endpoint": "http://collector:4317", "env": [], "image": "java:2.10.0",
        "propagators": ["tracecontext", "b3"], "attributes": {"team": "a"}, "platformAttributes": {"cloud": "x", "team": "z"},
    });
    let owners = json!([{"kind": "ReplicaSet", "name": "web-7d9f"}, {"kind": "Deployment", "name": "web"}]);
    let environment = Environment::default()
        .with("containers", containers)
        .with("primary", app.clone())
        .with("container", app)
        .with("params", params)
        .with("owner", json!({"name": "web"}))
        .with("owners", owners);
    let environment = object(environment, &json!({"metadata": {"generateName": "web-"}})).variables(&[
        ("names", "params.names + params.javaNames"),
        ("targets", "variables.names.size() > 0 ? containers.filter(c, c.name in variables.names) : [primary]"),
        ("service", "firstOf([params.attributes[?'service.name'], owner.?name, object.metadata.?name, container.name])"),
        ("version", "[image(container.image).tag, image(container.image).digest].filter(p, p != '').join('@')"),
        (
            "facts",
            "merge({'k8s.namespace.name': request.namespace, 'k8s.container.name': container.name, 'service.namespace': request.namespace,
      'service.version': variables.version, 'k8s.pod.name': '$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME)', 'k8s.node.name': '$(OTEL_RESOURCE_ATTRIBUTES_NODE_NAME)',
      'service.instance.id': request.namespace + '.$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME).' + container.name},
      toMap(owners.map(o, ['k8s.' + o.kind.lowerAscii() + '.name', o.name])))",
        ),
    ]);
    assert_eq!(environment.value("!containers.exists(c, hasEnv(c, 'OTEL_RESOURCE_ATTRIBUTES_NODE_NAME'))"), true);
    assert_eq!(environment.value("container.name in variables.targets.map(t, t.name)"), true);
    assert_eq!(environment.value("params.env"), json!([]));
    assert_eq!(environment.value("variables.service"), "web");
    assert_eq!(environment.value("params.propagators.size() > 0"), true);
    assert_eq!(environment.value("params.propagators.join(',')"), "tracecontext,b3");
    assert_eq!(
        environment.value("pairs(omitEmpty(merge(params.attributes, variables.facts, params.platformAttributes)))"),
        "cloud=x,k8s.container.name=app,k8s.deployment.name=web,k8s.namespace.name=shop,\
         k8s.node.name=$(OTEL_RESOURCE_ATTRIBUTES_NODE_NAME),k8s.pod.name=$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME),\
         k8s.replicaset.name=web-7d9f,service.instance.id=shop.$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME).app,\
         service.namespace=shop,service.version=1.4@sha256:ab,team=a"
    );
    assert_eq!(environment.value("variables.targets[0].name"), "app");
    assert_eq!(environment.run("variables.targets[0].?securityContext").unwrap(), Outcome::Absent);
    assert_eq!(environment.value("!envIsRef(container, 'JAVA_TOOL_OPTIONS')"), true);
    let mount = "/otel-auto-instrumentation-java-${container.name}";
    assert_eq!(environment.text(mount), "/otel-auto-instrumentation-java-app");
}

#[test]
fn eks_web_identity() {
    let params = json!({
        "role": "", "identities": {"*/default": {"roleARN": "arn:aws:iam::1:role/x", "audience": ""}}, "audience": "",
        "regional": true, "expiration": 86400, "skip": ["proxy"],
    });
    let container = json!({"name": "app", "env": [{"name": "AWS_REGION", "value": "eu-west-1"}]});
    let environment = Environment::default()
        .with("params", params)
        .with("container", container)
        .with("cluster", json!({"region": "eu-central-1"}));
    let pod = json!({"spec": {"nodeSelector": {"beta.kubernetes.io/os": "windows"}}});
    let environment = object(environment, &pod).variables(&[
        ("account", "object.spec.?serviceAccountName.orValue('default')"),
        (
            "entry",
            "firstOf([params.identities[?(request.namespace + '/' + variables.account)], params.identities[?('*/' + variables.account)], {}])",
        ),
        ("role", "firstOf([params.role, variables.entry.?roleARN, ''])"),
        ("region", "cluster.?region.orValue('')"),
        (
            "windows",
            "firstOf([object.spec.?nodeSelector[?'kubernetes.io/os'], object.spec.?nodeSelector[?'beta.kubernetes.io/os'], '']) == 'windows'",
        ),
        (
            "complete",
            "hasEnv(container, 'AWS_ROLE_ARN', 'AWS_WEB_IDENTITY_TOKEN_FILE') && hasEnv(container, 'AWS_REGION', 'AWS_DEFAULT_REGION') && hasEnv(container, 'AWS_STS_REGIONAL_ENDPOINTS')",
        ),
    ]);
    assert_eq!(environment.value("variables.role != ''"), true);
    assert_eq!(environment.value("variables.role"), "arn:aws:iam::1:role/x");
    let audience = "firstOf([params.audience, variables.entry.?audience, 'sts.amazonaws.com'])";
    assert_eq!(environment.value(audience), "sts.amazonaws.com");
    assert_eq!(environment.value("params.expiration"), 86400);
    assert_eq!(environment.value("!(container.name in params.skip) && !variables.complete"), true);
    assert_eq!(environment.value("params.regional"), true);
    let region = "variables.region != '' && !hasEnv(container, 'AWS_REGION', 'AWS_DEFAULT_REGION')";
    assert_eq!(environment.value(region), false);
    assert_eq!(environment.value("!hasEnv(container, 'AWS_ROLE_ARN', 'AWS_WEB_IDENTITY_TOKEN_FILE')"), true);
    assert_eq!(
        environment.value(
            r"variables.windows ? 'C:\\var\\run\\secrets\\eks.amazonaws.com\\serviceaccount\\token' : '/var/run/secrets/eks.amazonaws.com/serviceaccount/token'"
        ),
        r"C:\var\run\secrets\eks.amazonaws.com\serviceaccount\token"
    );
    assert_eq!(environment.value("!hasMount(container, 'aws-iam-token')"), true);
    // No entry of `params.identities` matches the service account `other`, and `params.role` is empty.
    let other = environment.with("object", json!({"spec": {"serviceAccountName": "other"}}));
    assert_eq!(other.value("variables.role != ''"), false);
    assert_eq!(other.value("variables.windows"), false);
}

#[test]
fn mesh_proxy() {
    let containers = json!([
        {"name": "init", "type": "Init"},
        {
            "name": "app", "type": "App", "ports": [{"name": "http", "containerPort": 8080}],
            "livenessProbe": {"httpGet": {"path": "/live", "port": "http"}, "timeoutSeconds": 3, "periodSeconds": 9},
            "readinessProbe": {"exec": {"command": ["true"]}},
            "startupProbe": {"grpc": {"port": 9000}},
        },
    ]);
    let environment = Environment::default()
        .with("containers", containers.clone())
        .with("container", containers[1].clone())
        .with(
            "params",
            json!({"native": false, "hold": true, "rewrite": true, "image": "proxy:1", "statusPort": 15020}),
        )
        .with("cluster", json!({"nativeSidecars": true}))
        .with("overlays", json!({"istio-proxy": {"image": "auto"}}))
        .with("existing", json!({"httpGet": {}}));
    let environment = object(environment, &json!({"spec": {"hostNetwork": false}})).variables(&[
        ("uid", "overlays[?'istio-proxy'].?securityContext.?runAsUser.orValue(1337)"),
        (
            "probers",
            "toMap(containers.map(c, [['livez', c.?livenessProbe], ['readyz', c.?readinessProbe], ['startupz', c.?startupProbe]]
      .filter(p, p[1].?httpGet.hasValue() || p[1].?tcpSocket.hasValue() || p[1].?grpc.hasValue())
      .map(p, ['/app-health/' + c.name + '/' + p[0], pick(numberedPorts(p[1].value(), c), ['httpGet', 'tcpSocket', 'grpc', 'timeoutSeconds'])])).flatten())",
        ),
    ]);
    assert_eq!(environment.value("!object.spec.?hostNetwork.orValue(false)"), true);
    assert_eq!(environment.value("cluster.nativeSidecars"), true);
    assert_eq!(environment.value("params.native ? 'First' : 'Last'"), "Last");
    assert_eq!(environment.value("params.native || params.hold ? 'First' : 'Last'"), "First");
    assert_eq!(environment.value("string(variables.uid)"), "1337");
    assert_eq!(environment.value("containers.filter(c, c.type == 'App').map(c, c.name).join(',')"), "app");
    assert_eq!(environment.value("params.rewrite && variables.probers.size() > 0"), true);
    assert_eq!(
        environment.value("toJson(variables.probers)"),
        r#"{"/app-health/app/livez":{"httpGet":{"path":"/live","port":8080},"timeoutSeconds":3},"/app-health/app/startupz":{"grpc":{"port":9000}}}"#
    );
    assert_eq!(environment.value("!params.native && params.hold"), true);
    assert_eq!(
        environment
            .value("existing.?httpGet.hasValue() || existing.?tcpSocket.hasValue() || existing.?grpc.hasValue()"),
        true
    );
    assert_eq!(environment.text("/app-health/${container.name}/livez"), "/app-health/app/livez");
    let image = "existing.orValue('') == 'auto' ? 'Replace' : 'Keep'";
    assert_eq!(environment.value(image), "Keep");
    let environment = environment.with("existing", json!("auto"));
    assert_eq!(environment.value(image), "Replace");
    assert_eq!(environment.with("existing", Json::Null).value(image), "Keep");
}

#[test]
fn vault_records() {
    let secrets = json!([
        {"key": "db", "path": "secret/db", "mount": "/vault/db"},
        {"key": "api", "path": "secret/api", "file": "api.txt", "template": "{{ x }}", "perms": "0400"},
        {"key": "db2", "path": "secret/db2", "mount": "/vault/db"},
    ]);
    let environment = Environment::default().with("params", json!({"mountPath": "/vault/secrets", "secrets": secrets})).variables(&[
        ("mounts", "params.secrets.map(s, s.?mount.orValue(params.mountPath)).filter(m, m != params.mountPath).distinct().sort()"),
        (
            "templates",
            r#"params.secrets.map(s, omitEmpty({'destination': s.?mount.orValue(params.mountPath) + '/' + s.?file.orValue(s.key), 'contents': s.?template.orValue('{{ with secret "' + s.?path.orValue('') + '" }}{{ .Data }}{{ end }}'), 'perms': s.?perms.orValue('')}))"#,
        ),
    ]);
    assert_eq!(environment.value("variables.mounts"), json!(["/vault/db"]));
    assert_eq!(
        environment.value("variables.templates")[1],
        json!({"destination": "/vault/secrets/api.txt", "contents": "{{ x }}", "perms": "0400"})
    );
    let encoded =
        environment.value("base64.encode(bytes(toJson({'exit_after_auth': true, 'template': variables.templates})))");
    assert!(encoded.as_str().unwrap().starts_with("eyJleGl0X2FmdGVyX2F1dGgiOnRydWUsInRlbXBsYXRlIjpb"), "{encoded}");
    let environment = environment.with("item", json!("/vault/db")).with("index", json!(0));
    assert_eq!(environment.text("vault-secrets-custom-${index}"), "vault-secrets-custom-0");
    assert_eq!(environment.text("${item}"), "/vault/db");
}

#[test]
fn agones_and_denied_env() {
    let container =
        "object.spec.template.spec.containers.size() == 1 ? object.spec.template.spec.containers[0].name : null";
    let ports = "object.spec.?ports.orValue([]).all(p, p.portPolicy != 'Static' || p.?hostPort.orValue(0) > 0)";
    let server = |containers: Json, ports: Json| {
        object(
            Environment::default(),
            &json!({"spec": {"template": {"spec": {"containers": containers}}, "ports": ports}}),
        )
    };
    let one = server(
        json!([{"name": "game"}]),
        json!([{"portPolicy": "Static", "hostPort": 7000}, {"portPolicy": "Dynamic"}]),
    );
    assert_eq!(one.value(container), "game");
    assert_eq!(one.value(ports), true);
    let two = server(json!([{"name": "a"}, {"name": "b"}]), json!([{"portPolicy": "Static"}]));
    assert_eq!(two.run(container).unwrap(), Outcome::Absent);
    assert_eq!(two.value(ports), false);
    let existing = two.with("existing", json!({"disabled": true}));
    assert_eq!(existing.value("!existing.?disabled.orValue(false)"), false);

    let denied = "containers.all(c, c.ours || (!has(c.env) && !has(c.envFrom)))";
    let pod = |containers| Environment::default().with("containers", containers);
    assert_eq!(pod(json!([{"ours": true, "env": []}, {"ours": false}])).value(denied), true);
    assert_eq!(pod(json!([{"ours": false, "envFrom": []}])).value(denied), false);
}
