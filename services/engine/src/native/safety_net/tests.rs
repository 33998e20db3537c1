//! Tests of the conversion. The end-to-end test `e2e/safety_net.rs` of the crate `pillion` compares the converted
//! policies with the engine, on a real API server.

use serde_json::json;

use super::*;
use crate::profile::compile;

struct Library(Vec<(Arc<CompiledProfile>, ProfileSpec)>);

impl Library {
    fn of(profiles: &[(&str, Value)]) -> Self {
        let compiled = profiles.iter().map(|(name, spec)| {
            let spec: ProfileSpec = serde_json::from_value(spec.clone()).unwrap();
            let name = match name.split_once('/') {
                Some((namespace, name)) => ProfileName::namespaced(namespace, name),
                None => ProfileName::cluster(*name),
            };
            (Arc::new(compile(&name, &spec).unwrap()), spec)
        });
        Self(compiled.collect())
    }

    fn net(&self) -> SafetyNet {
        let all = ProfileSet::new(self.0.iter().map(|(compiled, _)| Arc::clone(compiled)));
        let cluster = self.0.iter().filter(|(compiled, _)| compiled.name().namespace.is_none());
        let candidates = cluster.map(|(compiled, spec)| Candidate { compiled, spec });
        safety_net(candidates, &all, &OptIn::default())
    }
}

/// Returns the reason why a profile with this spec is not covered, if it is the only profile of the cluster.
fn refusal(spec: Value) -> String {
    let net = Library::of(&[("p", spec)]).net();
    let [(_, reason)] = net.uncovered.as_slice() else { panic!("covered: {net:?}") };
    format!("{}: {}", reason.path, reason.why)
}

fn labels(value: &Value) -> Value {
    json!({"metadata": {"labels": value}})
}

fn added(net: &SafetyNet, index: usize) -> String {
    let name = format!("p{index}_added");
    net.covered[index].variables.iter().find(|(own, _)| *own == name).unwrap().1.clone()
}

#[test]
fn covers_literal_and_native_parts() {
    let net = Library::of(&[(
        "p",
        json!({
            "parameters": [{"name": "tag", "type": "string", "default": "1.2"}],
            "variables": [{"name": "app", "expression": "object.metadata.?labels[?'app'].orValue('none')"}],
            "template": {
                "metadata": {"annotations": {"a/b": "x-${variables.app}"}},
                "spec": {
                    "containers": [{"name": "logger", "image": "logger:${params.tag}", "env": [{"name": "A", "value": "${variables.app}"}]}],
                    "initContainers": [{"$position": "First", "name": "proxy", "image": "p", "restartPolicy": "Always"}],
                    "volumes": [{"name": "tmp", "emptyDir": {}}],
                },
            },
        }),
    )])
    .net();
    assert_eq!(net.uncovered, []);
    let covered = &net.covered[0];
    assert!(covered.mutation.contains("'image': dyn('logger:1.2')"), "{}", covered.mutation);
    assert!(covered.mutation.contains("'value': dyn(variables.p0_e1)"), "{}", covered.mutation);
    assert!(covered.mutation.contains("'x-' + string(variables.p0_e0)"), "{}", covered.mutation);
    assert!(covered.mutation.contains("path: '/spec/initContainers/' + string(0)"), "{}", covered.mutation);
    assert!(covered.variables.contains(&("p0_e1".to_owned(), "variables.p0_v_app".to_owned())), "{covered:?}");
    for pointer in ["/metadata/annotations/a~1b", "/spec/containers/logger", "/spec/initContainers/proxy"] {
        assert!(added(&net, 0).contains(pointer), "{}", added(&net, 0));
    }
}

#[test]
fn names_the_reason_for_uncovered_profiles() {
    let template = labels(&json!({"a": "b"}));
    for (spec, expected) in [
        (json!({"template": template, "failurePolicy": "Fail"}), "spec.failurePolicy: "),
        (json!({"template": template, "optOut": "Forbidden"}), "spec.failurePolicy: "),
        (json!({"template": template, "exclusiveGroup": "g"}), "spec.exclusiveGroup: "),
        (
            json!({"template": template, "containerPatches": [{"name": "a", "template": {"env": [{"name": "A", "value": "b"}]}}]}),
            "spec.containerPatches: ",
        ),
        (
            json!({"template": template, "parameters": [{"name": "a", "type": "string", "default": "x", "annotation": "a", "sources": ["Pod"]}]}),
            "spec.parameters[0]: ",
        ),
        (
            json!({"template": template, "preconditions": [{"name": "a", "expression": "true"}]}),
            "spec.preconditions[0]: ",
        ),
        (json!({"template": labels(&json!({"a": "${owner.?name}"}))}), "spec.template.metadata.labels.a: "),
        (
            json!({"template": labels(&json!({"a": {"$value": "b", "$conflict": "Replace"}}))}),
            "spec.template.metadata.labels.a.$",
        ),
        (json!({"template": {"spec": {"priorityClassName": "high"}}}), "spec.template.spec.priorityClassName: "),
        (
            json!({"template": {"spec": {"containers": [{"name": "a", "image": "i", "$position": {"before": "web"}}]}}}),
            "spec.template.spec.containers[0].$position: ",
        ),
        (
            json!({"template": {"spec": {"containers": [{"name": "a", "image": "i", "$when": "object.metadata.name == 'x'"}]}}}),
            "spec.template.spec.containers[0].$when: ",
        ),
        (
            json!({"template": {"spec": {"containers": [{"name": "a", "image": "i", "imagePullPolicy": "${object.metadata.name}"}]}}}),
            "spec.template.spec.containers[0].imagePullPolicy: ",
        ),
        (json!({"target": {"version": "v1", "resources": ["configmaps"]}, "template": template}), "spec.target: "),
    ] {
        let found = refusal(spec.clone());
        assert!(found.starts_with(expected), "{spec}\n{found}");
    }
}

#[test]
fn later_profile_must_not_read_earlier_additions() {
    let reads = |expression: &str| json!({"order": 200, "matchConditions": [{"name": "m", "expression": expression}], "template": labels(&json!({"z": "z"}))});
    let first = || ("a", json!({"template": labels(&json!({"a": "b"}))}));
    for (expression, is_covered) in [
        ("object.metadata.?labels[?'other'].orValue('') == ''", true),
        ("object.metadata.?labels[?'a'].orValue('') == ''", false),
        ("object.metadata.?labels.orValue({}).size() == 0", false),
        ("object.spec.containers.size() > 0", true),
        ("object.metadata.?annotations.orValue({}).size() > 0", false),
    ] {
        let net = Library::of(&[first(), ("b", reads(expression))]).net();
        assert_eq!(net.covered.len() == 2, is_covered, "{expression}: {:?}", net.uncovered);
    }
    let selects =
        json!({"order": 200, "objectSelector": {"matchLabels": {"a": "b"}}, "template": labels(&json!({"z": "z"}))});
    assert_eq!(Library::of(&[first(), ("b", selects)]).net().uncovered.len(), 1);
}

#[test]
fn namespaced_profiles_exclude_their_namespaces() {
    let requested =
        |value: &str| json!({"requestedBy": {"annotation": "inject"}, "template": labels(&json!({"a": value}))});
    let net = Library::of(&[("p", requested("x")), ("team-a/q", requested("y"))]).net();
    let (_, applies) = net.covered[0].variables.last().unwrap();
    assert!(applies.contains("!(request.namespace in ['team-a'])"), "{applies}");
    let net = Library::of(&[("p", requested("x")), ("q", requested("y"))]).net();
    assert!(net.uncovered.iter().all(|(_, reason)| reason.path == "spec.requestedBy"), "{net:?}");
    let names: Vec<_> = (0..=MAX_EXCLUDED).map(|number| format!("team-{number}/q")).collect();
    let own = names.iter().map(|name| (name.as_str(), requested("y")));
    let net = Library::of(&own.chain([("p", requested("x"))]).collect::<Vec<_>>()).net();
    assert!(net.uncovered[0].1.why.starts_with("501 namespaces have profiles"), "{:?}", net.uncovered);
}

#[test]
fn policy_covers_only_profiles_that_fit() {
    let large = |name| json!({"template": {"spec": {"containers": [{"name": name, "image": "i", "args": ["x".repeat(55_000)]}]}}});
    let net = Library::of(&["a", "b", "c", "d", "e"].map(|name| (name, large(name)))).net();
    assert_eq!(net.covered.len(), 4);
    let [(name, reason)] = net.uncovered.as_slice() else { panic!("{:?}", net.uncovered) };
    assert_eq!((&*name.name, &*reason.path), ("e", "spec.template"));
    assert_eq!(reason.why, format!("the policy of all profiles would have more than {MAX_BYTES} bytes"));
}

#[test]
fn mutations_have_the_order_of_profiles() {
    let template =
        |name: &str| json!({"spec": {"initContainers": [{"$position": "First", "name": name, "image": "i"}]}});
    let profile = |order: i32, name: &str| json!({"order": order, "template": template(name)});
    let net = Library::of(&[("a", profile(20, "x")), ("b", profile(10, "y")), ("c", profile(10, "z"))]).net();
    let names: Vec<_> = net.covered.iter().map(|covered| &*covered.name.name).collect();
    assert_eq!(names, ["b", "c", "a"]);
    // Each element is inserted after those that earlier profiles inserted.
    assert_eq!(net.covered[2].mutation.matches("? 1 : 0").count(), 2, "{}", net.covered[2].mutation);
}
