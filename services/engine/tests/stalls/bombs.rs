//! Profiles that do a lot of work (long templates, loops, joins and regular expressions), and pods that cause a lot of
//! work for a profile: long values, references among values, and large records.

use serde_json::{Value as Json, json};

use crate::stalls::{
    Bomb, DONE, EITHER, TOO_LARGE, TOO_MUCH, added, annotated, container_patch, env, many, numbers, pod, small,
    template, variables, with_list, with_variables,
};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn profile_bombs() -> Vec<Bomb> {
    let bomb = |name, profile, pod, reasons| Bomb { name, profile, pod, reasons };
    let thousand = &[
        ("ten", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
        (
            "thousand",
            "variables.ten.map(a, variables.ten.map(b, a * 10 + b)).flatten().map(a, variables.ten.map(b, a * 10 + b)).flatten()",
        ),
    ];
    let each = |more: Json| {
        let mut element = json!({"$forEach": "params.list", "name": "E${item}", "value": "x"});
        more.as_object().unwrap().iter().for_each(|(key, value)| element[key] = value.clone());
        json!([element])
    };
    vec![
        bomb(
            "64 KB of a template",
            env((0..1_900).map(|number| json!({"name": format!("E{number}"), "value": "x"})).collect()),
            small(),
            TOO_LARGE,
        ),
        bomb(
            "64 KB of a template for an added container",
            added((0..1_900).map(|number| json!({"name": format!("E{number}"), "value": "$(E3)"})).collect()),
            small(),
            EITHER,
        ),
        bomb(
            "64 KB of annotations in a template",
            template(json!({"metadata": {"annotations": (0..5_000)
                .map(|number| (format!("a{number}"), json!("")))
                .collect::<serde_json::Map<_, _>>()}})),
            small(),
            TOO_LARGE,
        ),
        bomb("10,000 elements of one $forEach", with_list(env(each(json!({})))), annotated(numbers(10_000)), TOO_LARGE),
        bomb(
            "10,000 elements of one $forEach in an added container",
            with_list(added(each(json!({})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements with position First",
            with_list(added(each(json!({"$position": "First"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements with different positions",
            with_list(env(each(json!({"$position": {"after": "V${item}"}})))),
            {
                let mut pod = variables(10_000, |_| String::new());
                pod["metadata"]["annotations"]["example.com/x"] = json!(numbers(10_000));
                pod
            },
            EITHER,
        ),
        bomb(
            "10,000 elements, each of which references the next",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "1,000 elements, each of which references the next",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(1_000)),
            DONE,
        ),
        bomb(
            "a million elements of a nested $forEach",
            with_variables(
                added(json!([{
                    "$forEach": "variables.thousand",
                    "$value": [{"$forEach": "variables.thousand.map(n, [item, n])", "name": "E${item[0]}_${item[1]}", "value": "x"}],
                }])),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "a million items of a list without keys",
            with_variables(
                template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "args": [{
                    "$forEach": "variables.thousand",
                    "$value": [{"$forEach": "variables.thousand.map(n, [item, n])", "$value": "${item[0]}.${item[1]}"}],
                }]}]}})),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "many spliced lists",
            with_variables(
                added(
                    (0..40)
                        .map(|number| {
                            json!(format!(
                                "${{variables.thousand.map(n, {{'name': 'E{number}_' + string(n), 'value': ''}})}}"
                            ))
                        })
                        .collect(),
                ),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "10,000 joins to one variable of an added container",
            with_list(added(json!([
                {"$forEach": "params.list", "name": "ALL", "value": "${item}", "$join": {"separator": ","}},
            ]))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "a large value with a merged field, computed 5,000 times and never used",
            with_list(template(json!({"spec": {"containers": [{
                "$forEach": "params.list", "name": "app", "image": "i", "$conflict": "Merge",
                "resources": {"$value": "${object.metadata.annotations}", "limits": {"cpu": "1"}, "$conflict": "Keep"},
            }]}}))),
            {
                let mut pod = small();
                pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
                pod["metadata"]["annotations"] = json!({"example.com/x": numbers(5_000), "large": "x".repeat(20_000)});
                pod
            },
            TOO_MUCH,
        ),
        bomb(
            "a large value equal to the existing one, compared 10,000 times",
            with_list(env(json!([{"$forEach": "params.list", "name": "V0", "value": "x".repeat(60_000)}]))),
            {
                let mut pod = variables(1, |_| "x".repeat(60_000));
                pod["metadata"]["annotations"]["example.com/x"] = json!(numbers(10_000));
                pod
            },
            TOO_MUCH,
        ),
        bomb(
            "a thousand omitted mounts of missing volumes",
            template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "volumeMounts": (0..1_000)
                .map(|n| json!({"$when": "false", "name": format!("v{n}"), "mountPath": format!("/{n}")}))
                .collect::<Vec<_>>()}]}})),
            variables(20_000, |_| "x".to_owned()),
            DONE,
        ),
        bomb(
            "JSON of the pod in each of 100 containers",
            container_patch(json!({"types": ["App"]}), json!({"env": [{"name": "POD", "value": "${toJson(object)}"}]})),
            many(100),
            EITHER,
        ),
        bomb(
            "regular expressions over long strings",
            container_patch(
                json!({"types": ["App"], "where": "object.metadata.annotations['example.com/x'].matches('(x+x+)+y')"}),
                json!({"tty": true}),
            ),
            {
                let mut pod = many(100);
                pod["metadata"]["annotations"]["example.com/x"] = json!("x".repeat(1_000_000));
                pod
            },
            TOO_MUCH,
        ),
        bomb(
            "a thousand computed regular expressions",
            container_patch(
                json!({"types": ["App"], "where": "container.name.matches('(' + container.name + '{1,50}){1,50}')"}),
                json!({"tty": true}),
            ),
            many(1_000),
            TOO_MUCH,
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn pod_bombs() -> Vec<Bomb> {
    let bomb = |name, profile, pod, reasons| Bomb { name, profile, pod, reasons };
    let joined = |separator: &str| env(json!([{"name": "V0", "value": "b", "$join": {"separator": separator}}]));
    let joins_annotation =
        |name: &str, join: Json| with_list(env(json!([{"name": name, "value": "${params.text}", "$join": join}])));
    let annotated = |mut pod: Json, text: String| {
        pod["metadata"]["annotations"]["example.com/x"] = json!(text);
        pod
    };
    let letters = "a,".repeat(500_000);
    vec![
        bomb("a join with a megabyte", joined(","), variables(1, |_| letters.clone()), EITHER),
        bomb(
            "a join of two long lists",
            joins_annotation("V0", json!({"separator": ","})),
            annotated(
                variables(1, |_| numbers(100_000)),
                (0..40_000).map(|n| format!("x{n}")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists by their keys",
            joins_annotation("V0", json!({"separator": ",", "key": "="})),
            annotated(
                variables(1, |_| (0..100_000).map(|n| format!("a{n}=")).collect::<Vec<_>>().join(",")),
                (0..40_000).map(|n| format!("x{n}=")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists as JSON",
            joins_annotation("V0", json!({"format": "JSON"})),
            annotated(
                variables(1, |_| format!("[{}]", numbers(100_000))),
                format!("[{}]", (0..40_000).map(|n| (n + 200_000).to_string()).collect::<Vec<_>>().join(",")),
            ),
            EITHER,
        ),
        bomb(
            "a join of two long lists of arguments",
            with_list(container_patch(
                json!({"types": ["App"]}),
                json!({"args": {"$value": "${params.list}", "$join": {}}}),
            )),
            annotated(
                pod(
                    json!({"containers": [{"name": "app", "args": (0..100_000).map(|n| n.to_string()).collect::<Vec<_>>()}]}),
                ),
                (0..20_000).map(|n| format!("x{n}")).collect::<Vec<_>>().join(","),
            ),
            EITHER,
        ),
        bomb(
            "a join of two lists with one large object each, whose keys have different orders",
            {
                let mut profile = template(json!({"spec": {"tolerations": {"$value": "${params.list}", "$join": {}}}}));
                profile = with_list(profile);
                profile["parameters"][0]["format"] = json!("JSON");
                profile
            },
            {
                let keys: Vec<_> = (0..10_000).map(|n| (format!("{n:x}"), json!(0))).collect();
                let object = |keys: Vec<(String, Json)>| json!([keys.into_iter().collect::<serde_json::Map<_, _>>()]);
                let mut pod = small();
                pod["spec"]["tolerations"] = object(keys.clone());
                annotated(pod, object(keys.into_iter().rev().collect()).to_string())
            },
            &["already_injected", "injected"],
        ),
        bomb("a megabyte of unclosed references", joined(""), variables(1, |_| "$(".repeat(500_000)), EITHER),
        bomb(
            "a megabyte of references",
            joined(""),
            variables(5_000, |number| if number == 0 { "$(A)".repeat(250_000) } else { "x".to_owned() }),
            EITHER,
        ),
        bomb(
            "5,000 variables that reference each other, some of them joined",
            env((0..50).map(|n| json!({"name": format!("V{n}"), "value": "b", "$join": {"separator": ","}})).collect()),
            variables(5_000, |number| format!("$(V{})", number + 1)),
            EITHER,
        ),
        bomb(
            "5,000 containers and a container patch that reads all of them",
            container_patch(json!({"types": ["App"], "where": "containers.size() > 0"}), json!({"tty": true})),
            many(5_000),
            EITHER,
        ),
        bomb(
            "10,000 containers and a container patch",
            container_patch(json!({"types": ["App"]}), json!({"env": [{"name": "B", "value": "x"}]})),
            many(10_000),
            EITHER,
        ),
        bomb(
            "10,000 containers and a container patch that reads the primary container, the overlays and the namespace",
            with_variables(
                container_patch(
                    json!({"types": ["App"], "where": "primary.name != '' && overlays.size() == 0 && variables.local"}),
                    json!({"tty": true}),
                ),
                &[("local", "namespaceObject.metadata.name != container.name")],
            ),
            many(10_000),
            EITHER,
        ),
        bomb(
            "20,000 variables, each changed",
            env(json!([{"$forEach": "existing", "value": "y", "$conflict": "Replace"}])),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "20,000 variables, each removed",
            env(json!([{"$prune": "true"}])),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "64 KB of variables for a container with 20,000",
            env((0..1_500).map(|n| json!({"name": format!("E{n}"), "value": "x"})).collect()),
            variables(20_000, |_| "x".to_owned()),
            EITHER,
        ),
        bomb(
            "64 KB of annotations for a pod with 100,000",
            template(json!({"metadata": {"annotations": (0..5_000)
                .map(|number| (format!("a{number}"), json!("")))
                .collect::<serde_json::Map<_, _>>()}})),
            json!({
                "metadata": {"annotations": (0..100_000).map(|n| (format!("b{n}"), json!(""))).collect::<serde_json::Map<_, _>>()},
                "spec": {"containers": [{"name": "app"}]},
            }),
            EITHER,
        ),
        bomb(
            "an overlay with 5,000 variables, all of them in managedFields",
            template(json!({"spec": {"containers": [{
                "name": "proxy", "image": "p", "$conflict": "Merge",
                "env": (0..1_000).map(|n| json!({"name": format!("V{n}"), "value": "y"})).collect::<Vec<_>>(),
            }]}})),
            {
                let mut pod = variables(5_000, |_| "x".to_owned());
                pod["spec"]["containers"][0]["name"] = json!("proxy");
                let keys = (0..5_000).map(|n| (format!("k:{{\"name\":\"V{n}\"}}"), json!({".": {}, "f:name": {}})));
                let keys: serde_json::Map<_, _> = keys.collect();
                pod["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {"f:containers": {
                    "k:{\"name\":\"proxy\"}": {".": {}, "f:env": keys},
                }}}}]);
                pod
            },
            EITHER,
        ),
        bomb(
            "a record of 16 KB on a pod with 40,000 variables",
            template(json!({"metadata": {"labels": {"a": "b"}}})),
            {
                let mut pod = variables(40_000, |_| "x".to_owned());
                pod["spec"]["containers"][0]["name"] = json!("a");
                let place = |n: usize| format!("/spec/containers/a/env/V{}", 39_999 - n);
                let added: Vec<_> = (0..350).map(place).collect();
                let replaced: Vec<_> = (350..450).map(|n| json!([format!("{}/value", place(n)), "y"])).collect();
                let entry = json!({"profile": "bomb", "revision": "1", "added": added, "replaced": replaced});
                let record = json!({"version": 1, "profiles": [entry]});
                pod["metadata"]["annotations"]["pillion.dev/injected"] = json!(record.to_string());
                pod["metadata"]["managedFields"] = json!([{"manager": "m"}]);
                pod
            },
            EITHER,
        ),
        bomb(
            "a record of 16 KB on a pod with 20,000 annotations",
            template(json!({"metadata": {"labels": {"a": "b"}}})),
            {
                let mut annotations: serde_json::Map<_, _> =
                    (0..20_000).map(|n| (format!("b{n}"), json!(""))).collect();
                let places: Vec<_> = (0..500).map(|n| format!("/metadata/annotations/b{}", 19_999 - n)).collect();
                let record = json!({"version": 1, "profiles": [{"profile": "bomb", "revision": "1", "added": places}]});
                annotations.insert("pillion.dev/injected".into(), json!(record.to_string()));
                json!({
                    "metadata": {"annotations": annotations, "managedFields": [{"manager": "m"}]},
                    "spec": {"containers": [{"name": "app"}]},
                })
            },
            EITHER,
        ),
    ]
}
