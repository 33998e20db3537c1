//! Objects that come a second time: what the record of the first pass says, and whose record it is.

use super::*;

#[test]
fn a_second_pass_changes_nothing() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let second = inject(&first.object, &[("nginx", sidecar())]);
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
}

#[test]
fn a_second_pass_leaves_alone_what_others_made_of_ours_and_adds_what_is_missing() {
    let mut object = inject(&as_stored(pod()), &[("nginx", sidecar())]).object;
    object["spec"]["containers"][1]["resources"] = json!({"limits": {"cpu": "1"}});
    object["spec"].as_object_mut().unwrap().remove("volumes");
    let record = object["metadata"]["annotations"]["pillion.dev/injected"].clone();
    let second = inject(&object, &[("nginx", sidecar())]);
    assert_eq!(second.object["spec"]["containers"], object["spec"]["containers"]);
    assert_eq!(second.object["spec"]["volumes"][0]["name"], "config");
    assert_eq!(second.object["metadata"]["annotations"]["pillion.dev/injected"], record);
}

#[test]
fn a_record_that_is_escaped_in_another_way_is_the_same() {
    let mut profile = sidecar();
    profile["template"]["metadata"]["annotations"] = json!({"example.com/a": {"$value": "b", "$conflict": "Replace"}});
    let mut object = as_stored(pod());
    object["metadata"]["annotations"] = json!({"example.com/a": "x&y<z"});
    let object = inject(&object, &[("nginx", profile.clone())]).object;
    assert!(object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().contains("x&y"));
    // As Go writes JSON.
    let body = review_of(&object).to_string().replace('&', r"\u0026").replace('<', r"\u003c");
    assert!(body.contains(r"x\u0026y"), "{body}");
    let snapshot = snapshot(&[("nginx", profile)]);
    let decided = Review::parse(body.as_bytes()).unwrap().decide(ENABLED, &snapshot, &Facts::default()).unwrap();
    assert_eq!(decided.patch.map(|patch| String::from_utf8(patch).unwrap()), None);
}

#[test]
fn a_second_pass_decides_by_what_the_author_wrote() {
    let mut marking = sidecar();
    marking["template"]["metadata"]["labels"] = json!({"mesh": "on"});
    marking["objectSelector"] = json!({"matchExpressions": [{"key": "mesh", "operator": "DoesNotExist"}]});
    let first = inject(&as_stored(pod()), &[("nginx", marking.clone())]);
    assert_eq!(first.object["metadata"]["labels"]["mesh"], "on");
    let second = inject(&first.object, &[("nginx", marking)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn conditions_see_the_object_as_its_author_wrote_it() {
    let mut profile = sidecar();
    profile["template"]["metadata"]["labels"] = json!({"tier": {"$value": "gold", "$conflict": "Replace"}});
    profile["matchConditions"] = json!([
        {"name": "alone", "expression": "containers.size() == 1 && primary.name == 'app'"},
        {"name": "tier", "expression": "object.metadata.labels.tier == 'silver'"},
        {"name": "fresh", "expression": "!has(object.spec.volumes) && !has(object.metadata.annotations)"},
        {"name": "user", "expression": "request.userInfo.username == 'somebody' && request.operation == 'CREATE'"},
    ]);
    let mut object = as_stored(pod());
    object["metadata"]["labels"] = json!({"tier": "silver"});
    let first = inject(&object, &[("p", profile.clone())]);
    assert_eq!(first.decided.decision.outcome, Outcome::Injected, "{:?}", first.decided.decision.profiles[0].detail);
    let second = inject(&first.object, &[("p", profile)]);
    assert_eq!(second.decided.decision.reason, Reason::AlreadyInjected, "{:?}", second.decided.decision.profiles[0]);
    assert_eq!(second.decided.patch, None);
}

#[test]
fn a_profile_that_was_not_applied_again_keeps_its_entry() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let other = json!({"activation": "Always", "template": {"metadata": {"labels": {"x": "y"}}}});
    let second = inject(&first.object, &[("other", other)]);
    let record = second.object["metadata"]["annotations"]["pillion.dev/injected"].as_str().unwrap().to_owned();
    let record: Json = serde_json::from_str(&record).unwrap();
    let names: Vec<_> = record["profiles"].as_array().unwrap().iter().map(|entry| entry["profile"].clone()).collect();
    assert_eq!(names, ["nginx", "other"]);
}

#[test]
fn a_record_that_is_not_genuine_is_dropped_and_its_names_are_taken() {
    let copied = inject(&pod(), &[("nginx", sidecar())]).object;
    let again = inject(&copied, &[("nginx", sidecar())]);
    assert_eq!(again.decided.decision.notices, [Notice::RecordDropped]);
    let profile = &again.decided.decision.profiles[0];
    // Container and volume are equal to ours to the letter; in a cluster, defaults would have made them differ.
    assert_eq!(profile.outcome, ProfileOutcome::Unchanged);
    let mut other = copied;
    other["spec"]["containers"][1]["imagePullPolicy"] = json!("IfNotPresent");
    let refused = inject(&other, &[("nginx", sidecar())]);
    let profile = &refused.decided.decision.profiles[0];
    assert_eq!((profile.outcome, profile.reason), (ProfileOutcome::Skipped, Reason::NameTaken));
    assert_eq!(refused.object["metadata"]["annotations"].get("pillion.dev/injected"), None);
    assert_eq!(refused.answer["response"]["warnings"].as_array().unwrap().len(), 2);
}

#[test]
fn the_command_line_believes_a_record_without_managed_fields() {
    let object = inject(&pod(), &[("nginx", sidecar())]).object;
    let facts = Facts { record_trust: RecordTrust::AsFound, ..Facts::default() };
    let again = answer(&review_of(&object), ENABLED, &snapshot(&[("nginx", sidecar())]), &facts);
    assert_eq!(again.decided.patch, None);
}

#[test]
fn a_changed_profile_does_not_claim_what_an_earlier_revision_did() {
    let first = inject(&as_stored(pod()), &[("nginx", sidecar())]);
    let mut edited = sidecar();
    edited["template"]["spec"]["containers"][0]["image"] = json!("sidecar:2");
    let second = inject(&first.object, &[("nginx", edited)]);
    // What is there is of the earlier revision, and the record goes on saying so.
    assert_eq!(second.decided.patch, None);
    assert_eq!(second.decided.decision.outcome, Outcome::Unchanged);
}
