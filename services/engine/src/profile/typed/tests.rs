//! Valid templates with expressions and directives, and templates that Kubernetes would reject or prune.

use serde_json::json;

use super::*;

fn pod(spec: &Json) -> Vec<String> {
    let mut diagnostics = Vec::new();
    check_types("spec.template", &json!({"spec": spec}), Root::Pod, &[], &mut diagnostics);
    diagnostics.iter().map(ToString::to_string).collect()
}

fn container(template: &Json) -> Vec<String> {
    let mut diagnostics = Vec::new();
    check_types("t", template, Root::Container, &[], &mut diagnostics);
    diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn what_the_api_server_would_refuse_or_drop_is_found() {
    for (template, told) in [
        (
            json!({"env": [{"name": "P", "value": 8080}]}),
            "t.env[0].value: expected a string, found a number (help: quote it: \"8080\")",
        ),
        (
            json!({"env": [{"name": "P", "value": true}]}),
            "t.env[0].value: expected a string, found a boolean (help: quote it: \"true\")",
        ),
        (json!({"command": "sh"}), "t.command: expected a list, found a string (help: write a list: [\"sh\"])"),
        (
            json!({"ports": [{"containerPort": "80"}]}),
            "t.ports[0].containerPort: expected an integer, found a string (help: take the quotes away: 80)",
        ),
        (json!({"ports": [{"containerPort": 1.5}]}), "t.ports[0].containerPort: expected an integer, found a number"),
        (json!({"ports": [{"containerPort": 5_000_000_000_i64}]}), "t.ports[0].containerPort: 5000000000 does not fit"),
        (json!({"tty": "true"}), "t.tty: expected a boolean, found a string (help: take the quotes away: true)"),
        (json!({"tty": "perhaps"}), "t.tty: expected a boolean, found a string"),
        (
            json!({"resources": {"limits": {"memory": "1gb"}}}),
            "t.resources.limits[\"memory\"]: \"1gb\" is not a quantity (help: for instance",
        ),
        (
            json!({"resources": {"limits": {"memory": true}}}),
            "t.resources.limits[\"memory\"]: expected a quantity, found a boolean",
        ),
        (json!({"resources": []}), "t.resources: expected an object, found a list"),
        (json!({"image": {"name": "x"}}), "t.image: expected a string, found an object"),
        (json!({"env": {"name": "A"}}), "t.env: expected a list, found an object (help:"),
        (json!({"env": {"$when": "x"}}), "t.env: expected a list, found an object of directives without $value"),
        (
            json!({"livenessProbe": {"httpGet": {"port": true}}}),
            "t.livenessProbe.httpGet.port: expected an integer or a string",
        ),
        (
            json!({"ports": [{"containerPort": "8${x}"}]}),
            "t.ports[0].containerPort: expected an integer, found text with an expression",
        ),
        (json!({"image": " a:1"}), "t.image: expected the name of an image, without space before or behind it; found"),
        (json!({"env": [{"name": "A=B"}]}), "t.env[0].name: expected at least one letter of ASCII, and no '='; found"),
        (
            json!({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}),
            "t.resources: requests 2 of cpu, which is more than its limit of 1500m",
        ),
        (
            json!({"livenessProbe": {"httpGet": {"port": 80}, "exec": {"command": ["a"]}}}),
            "t.livenessProbe: expected exactly one of exec, grpc, httpGet, tcpSocket; found exec, httpGet",
        ),
        (json!({"env": [["x"]]}), "t.env[0][0]: expected an object, found a string"),
        (json!({"env": [{"$value": [{"name": 1}]}]}), "t.env[0].$value[0].name: expected a string"),
        (json!({"image": {"$value": 1, "$conflict": "Keep"}}), "t.image.$value: expected a string, found a number"),
        (
            json!({"imagePullPolicy": "always"}),
            "t.imagePullPolicy: expected Always, IfNotPresent or Never, found \"always\" (help: did you mean Always?)",
        ),
        (
            json!({"ports": [{"containerPort": 1, "protocol": "HTTP"}]}),
            "t.ports[0].protocol: expected TCP, UDP or SCTP, found \"HTTP\"",
        ),
    ] {
        let diagnostics = container(&template);
        assert!(diagnostics.len() == 1 && diagnostics[0].starts_with(told), "{diagnostics:?} is not {told:?}");
    }
    for (spec, told) in [
        (json!({"hostNetwork": "yes"}), "spec.template.spec.hostNetwork: expected a boolean, found a string"),
        (
            json!({"ephemeralContainers": []}),
            "spec.template.spec.ephemeralContainers: ephemeralContainers cannot be set",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {"medium": "memory"}}]}),
            "spec.template.spec.volumes[0].emptyDir.medium: expected Memory",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {"defaultMode": "0644"}}]}),
            "spec.template.spec.volumes[0].configMap.defaultMode: expected an integer",
        ),
    ] {
        let diagnostics = pod(&spec);
        assert!(diagnostics.len() == 1 && diagnostics[0].starts_with(told), "{diagnostics:?} is not {told:?}");
    }
}

#[test]
fn what_was_meant_by_an_unknown_field_is_said() {
    for (template, told) in [
        (
            json!({"imagePullpolicy": "Always"}),
            "t.imagePullpolicy: Kubernetes has no field \"imagePullpolicy\" in a Container (help: did you mean imagePullPolicy?)",
        ),
        (json!({"imge": "x"}), "t.imge: Kubernetes has no field \"imge\" in a Container (help: did you mean image?)"),
        (
            json!({"runAsUser": 1}),
            "t.runAsUser: Kubernetes has no field \"runAsUser\" in a Container (help: did you mean securityContext.runAsUser?)",
        ),
        (
            json!({"limits": {}}),
            "t.limits: Kubernetes has no field \"limits\" in a Container (help: did you mean resources.limits?)",
        ),
        (
            json!({"livenessProbe": {"port": 1}}),
            "t.livenessProbe.port: Kubernetes has no field \"port\" in a Probe (help: did you mean grpc.port or httpGet.port or tcpSocket.port?)",
        ),
        (
            json!({"securityContext": {"limits": {}}}),
            "t.securityContext.limits: Kubernetes has no field \"limits\" in a SecurityContext (help: it stands elsewhere: t.resources.limits)",
        ),
        (
            json!({"resources": {"image": "x"}}),
            "t.resources.image: Kubernetes has no field \"image\" in a ResourceRequirements (help: it stands elsewhere: t.image)",
        ),
        (
            json!({"conflict": "Keep"}),
            "t.conflict: Kubernetes has no field \"conflict\" in a Container (help: did you mean $conflict?)",
        ),
        (
            json!({"env": [{"name": "A", "colour": "x"}]}),
            "t.env[0].colour: Kubernetes has no field \"colour\" in an EnvVar (help: there is name, value, valueFrom)",
        ),
        (
            json!({"colourfulness": 1}),
            "t.colourfulness: Kubernetes has no field \"colourfulness\" in a Container (help: the API server would drop it",
        ),
    ] {
        let diagnostics = container(&template);
        assert!(diagnostics.len() == 1 && diagnostics[0].starts_with(told), "{diagnostics:?} is not {told:?}");
    }
    for (spec, told) in [
        (json!({"contaners": []}), "(help: did you mean containers?)"),
        (
            json!({"containers": [{"name": "a", "hostNetwork": true}]}),
            "(help: it stands elsewhere: spec.template.spec.hostNetwork)",
        ),
        (
            json!({"containers": [{"name": "a", "securityContext": {"fsGroup": 1}}]}),
            "(help: it stands elsewhere: spec.template.spec.securityContext.fsGroup)",
        ),
    ] {
        let diagnostics = pod(&spec);
        assert!(diagnostics.len() == 1 && diagnostics[0].ends_with(told), "{diagnostics:?} is not {told:?}");
    }
}

#[test]
fn what_kubernetes_takes_is_right() {
    let spec = json!({
        "containers": [{
            "name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "UDP"}],
            "livenessProbe": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTPS"}, "periodSeconds": 5},
            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": "100m", "x.com/y": "1e3"}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        }],
        "volumes": [
            {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 1}}]}},
            {"name": "w", "emptyDir": {"medium": "", "sizeLimit": 5}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["x"]}}}},
        ],
    });
    assert_eq!(pod(&spec), Vec::<String>::new());
}

#[test]
fn expressions_and_directives_may_stand_anywhere() {
    let spec = json!({
        "hostNetwork": "${params.host}",
        "volumes": [
            {"$forEach": "variables.mounts", "$as": "m", "name": "v-${index}", "emptyDir": {"medium": "${params.medium}"}},
            {"name": "t", "$position": "First", "projected": {"sources": [
                {"serviceAccountToken": {"expirationSeconds": "${params.expiration}", "path": "token"}},
                "${variables.more}",
            ]}},
        ],
        "tolerations": {"$value": [{"key": "a"}], "$join": {}},
        "initContainers": "${variables.containers}",
        "containers": [
            "${variables.container}",
            {"$value": "${primary}", "name": "copy", "tty": "${true}"},
            {
                "name": "a", "$sidecar": "params.native", "$conflict": "Merge",
                "image": {"$value": "${params.image}", "$conflict": "${existing.orValue('') == 'auto' ? 'Replace' : 'Keep'}"},
                "args": ["x", "-${variables.y}", {"$when": "z", "$value": "w"}, ["v"]],
                "env": [
                    {"$when": "x", "$value": [{"name": "A", "value": "${b}"}]},
                    {"name": "C", "value": "c", "$join": {"separator": ","}},
                    {"$each": "true", "value": "v"},
                    {"$prune": "item.name == 'D'"},
                ],
                "startupProbe": {"$when": "params.native", "httpGet": {"port": "${params.port}"}},
                "resources": {"limits": {"memory": "${params.memory}", "cpu": "${params.cpu}m"}},
                "ports": [{"containerPort": {"$value": 80, "$conflict": "Replace"}}],
                "imagePullPolicy": "${params.policy}",
            },
        ],
    });
    assert_eq!(pod(&spec), Vec::<String>::new());
}

#[test]
fn a_directive_that_there_is_not_is_likened_to_one_that_there_is() {
    let told = |name| unknown_directive("a", name).to_string();
    assert_eq!(told("$conflcit"), "a: there is no directive $conflcit (help: did you mean $conflict?)");
    assert_eq!(told("$foreach"), "a: there is no directive $foreach (help: did you mean $forEach?)");
    assert!(told("$zzz").contains("(help: there are $value, $when"));
}

#[test]
fn a_parameter_that_is_all_of_a_value_has_to_be_of_its_type() {
    let parameters: Vec<Parameter> = serde_json::from_value(json!([
        {"name": "lines", "type": "integer"},
        {"name": "verbose", "type": "boolean"},
        {"name": "port", "type": "string"},
        {"name": "all", "type": "list"},
        {"name": "memory", "type": "quantity"},
        {"name": "untyped"},
    ]))
    .unwrap();
    let told = |template: &Json| {
        let mut diagnostics = Vec::new();
        check_types("t", template, Root::Container, &parameters, &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (template, expected) in [
        (
            json!({"env": [{"name": "A", "value": "${params.lines}"}]}),
            "t.env[0].value: expected a string, found the parameter lines, a number (help: make it text: \"${string(params.lines)}\")",
        ),
        (
            json!({"args": ["${ params.verbose }"]}),
            "t.args[0]: expected a string, found the parameter verbose, a boolean",
        ),
        (
            json!({"ports": [{"containerPort": "${params.port}"}]}),
            "t.ports[0].containerPort: expected an integer, found the parameter port, a string (help: give it the type integer)",
        ),
        (json!({"tty": "${params.port}"}), "t.tty: expected a boolean, found the parameter port, a string"),
    ] {
        let found = told(&template);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?} is not {expected:?}");
    }
    for fine in [
        json!({"env": [{"name": "A", "value": "${string(params.lines)}"}, {"name": "B", "value": "-n${params.lines}"}]}),
        json!({"args": ["${params.all}", "${params.untyped}", "${params.unknown}", "${params.memory}"]}),
        json!({"ports": [{"containerPort": "${params.lines}"}], "tty": "${params.verbose}"}),
        json!({"resources": {"limits": {"memory": "${params.memory}"}}}),
    ] {
        assert_eq!(told(&fine), Vec::<String>::new(), "{fine}");
    }
}
