//! The shipped profiles as the chart renders them: as they are shipped, with what they extend and what they look up, and with
//! defaults of the values.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use crate::chart::{
    documents, each_has_one_name_and_none_is_the_controllers, identity, named, of_kind, rendered, repository, shipped,
    template, text,
};

/// The profiles of a folder as they are shipped.
pub(crate) fn source(folder: &str) -> PathBuf {
    let folder = repository().join("profiles").join(folder);
    let policy = folder.join("policy.yaml");
    if policy.exists() { policy } else { folder.join("profile.yaml") }
}

#[test]
fn every_profile_is_rendered_as_it_is_shipped_with_what_it_extends() {
    let mut all = BTreeMap::new();
    for folder in shipped() {
        for object in documents(&fs::read_to_string(source(&folder)).unwrap()) {
            all.insert(text(&object, "/metadata/name").to_owned(), object);
        }
    }
    for folder in shipped() {
        let objects = rendered(&json!({"profiles": [folder]}));
        each_has_one_name_and_none_is_the_controllers(&folder, &objects);
        let found: BTreeMap<_, _> = of_kind(&objects, "ClusterInjectionProfile")
            .into_iter()
            .map(|object| (identity(object).2, object))
            .collect();
        for object in documents(&fs::read_to_string(source(&folder)).unwrap()) {
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
fn what_is_rendered_of_profiles_lints() {
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
fn a_value_sets_the_default_of_a_parameter_and_a_wrong_name_is_told() {
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
