//! Profiles that do much by themselves: long templates, loops, joins and regular expressions.

use serde_json::{Value as Json, json};

use crate::stalls::{
    Bomb, DONE, EITHER, TOO_LARGE, TOO_MUCH, added, annotated, env, many, numbers, rule, small, template, variables,
    with_list, with_variables,
};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn profiles_own_work() -> Vec<Bomb> {
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
            "64 KB of a template for a container that is added",
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
            "10,000 elements of one $forEach in a container that is added",
            with_list(added(each(json!({})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements that each go first",
            with_list(added(each(json!({"$position": "First"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "10,000 elements at places of their own",
            with_list(env(each(json!({"$position": {"after": "V${item}"}})))),
            {
                let mut pod = variables(10_000, |_| String::new());
                pod["metadata"]["annotations"]["example.com/x"] = json!(numbers(10_000));
                pod
            },
            EITHER,
        ),
        bomb(
            "10,000 elements, each of which refers to the next one",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "1,000 elements, each of which refers to the next one",
            with_list(added(each(json!({"value": "$(E${index + 1})"})))),
            annotated(numbers(1_000)),
            DONE,
        ),
        bomb(
            "a million elements of a $forEach in a $forEach",
            with_variables(
                added(json!([{
                    "$forEach": "variables.thousand", "$as": "outer",
                    "$value": [{"$forEach": "variables.thousand", "name": "E${outer}_${item}", "value": "x"}],
                }])),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "a million items of a list that is one value",
            with_variables(
                template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "args": [{
                    "$forEach": "variables.thousand", "$as": "outer",
                    "$value": [{"$forEach": "variables.thousand", "$value": "${outer}.${item}"}],
                }]}]}})),
                thousand,
            ),
            small(),
            TOO_MUCH,
        ),
        bomb(
            "many lists that are spliced",
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
            "10,000 joins to one variable of a container that is added",
            with_list(added(json!([
                {"$forEach": "params.list", "name": "ALL", "value": "${item}", "$join": {"separator": ","}},
            ]))),
            annotated(numbers(10_000)),
            TOO_MUCH,
        ),
        bomb(
            "a large value with a field laid over it, which is made 5,000 times and never put anywhere",
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
            "a large value that is what is there, compared 10,000 times",
            with_list(env(json!([{"$forEach": "params.list", "name": "V0", "value": "x".repeat(60_000)}]))),
            {
                let mut pod = variables(1, |_| "x".repeat(60_000));
                pod["metadata"]["annotations"]["example.com/x"] = json!(numbers(10_000));
                pod
            },
            TOO_MUCH,
        ),
        bomb(
            "a thousand mounts of volumes that nobody has, all of them left out",
            template(json!({"spec": {"containers": [{"name": "proxy", "image": "p", "volumeMounts": (0..1_000)
                .map(|n| json!({"$when": "false", "name": format!("v{n}"), "mountPath": format!("/{n}")}))
                .collect::<Vec<_>>()}]}})),
            variables(20_000, |_| "x".to_owned()),
            DONE,
        ),
        bomb(
            "JSON of the pod in each of 100 containers",
            rule(json!({"types": ["App"]}), json!({"env": [{"name": "POD", "value": "${toJson(object)}"}]})),
            many(100),
            EITHER,
        ),
        bomb(
            "regular expressions over long texts",
            rule(
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
            "a thousand regular expressions that are computed",
            rule(
                json!({"types": ["App"], "where": "container.name.matches('(' + container.name + '{1,50}){1,50}')"}),
                json!({"tty": true}),
            ),
            many(1_000),
            TOO_MUCH,
        ),
    ]
}
