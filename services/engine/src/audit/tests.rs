//! Tests that the expected profiles of a pod are found from its metadata and from the whole pod, and that both agree.

use pillion_api::names::FailureMode;
use serde_json::{Value as Json, json};

use super::*;
use crate::lookup::Answer;
use crate::profile::{ProfileName, compile};
use crate::review::{Endpoint, Facts, Review};
use crate::snapshot::{ProfileSet, Served};

fn snapshot(profiles: &[(&str, Json)]) -> Snapshot {
    let compiled = profiles.iter().map(|(name, spec)| {
        let mut spec = spec.clone();
        spec["template"] = json!({"metadata": {"annotations": {format!("filled.example.com/{name}"): "there"}}});
        Arc::new(compile(&ProfileName::cluster(*name), &serde_json::from_value(spec).unwrap()).unwrap())
    });
    Snapshot::new(ProfileSet::new(compiled))
}

fn opted_in() -> Arc<Namespace> {
    Arc::new(Namespace::opted_in(FailureMode::Enabled))
}

fn shown(expected: &[Expected]) -> Vec<(String, MatchState)> {
    expected.iter().map(|expected| (expected.profile.display_name().to_owned(), expected.match_state)).collect()
}

fn of_metadata(snapshot: &Snapshot, pod: &Json) -> Vec<(String, MatchState)> {
    let tape = OwnedTape::parse(pod.to_string()).unwrap();
    shown(&super::of_metadata(snapshot, "shop", &opted_in(), tape.root(), |_, _| None))
}

fn of_object(snapshot: &Snapshot, pod: &Json) -> Vec<(String, MatchState)> {
    let tape = OwnedTape::parse(pod.to_string()).unwrap();
    shown(&super::of_object(snapshot, "shop", &opted_in(), tape.root(), &LookedUp::default()))
}

fn pod(labels: &Json, annotations: &Json) -> Json {
    json!({"metadata": {"name": "p", "labels": labels, "annotations": annotations},
           "spec": {"containers": [{"name": "app", "image": "app:1"}]}})
}

/// Injects into the pod, and returns it as the API server would store it.
fn injected(snapshot: &Snapshot, pod: &Json) -> Json {
    let mut pod = pod.clone();
    pod["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]);
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "namespace": "shop", "operation": "CREATE", "object": pod,
        "resource": {"group": "", "version": "v1", "resource": "pods"}}})
    .to_string();
    let facts = Facts { namespace: Some(opted_in()), ..Facts::default() };
    let decided = Review::parse(body.as_bytes()).unwrap().decide(Endpoint::Any, snapshot, &facts).unwrap();
    let patch = decided.patch.map_or(json!([]), |patch| serde_json::from_slice(&patch).unwrap());
    json_patch::patch(&mut pod, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
    pod
}

#[test]
fn metadata_decides_without_expressions() {
    let snapshot = snapshot(&[
        ("always", json!({"activation": "Always"})),
        ("asked", json!({"requestedBy": {"annotation": "example.com/ask"}})),
        ("blue", json!({"activation": "Always", "objectSelector": {"matchLabels": {"color": "blue"}}})),
        ("forced", json!({"activation": "Always", "optOut": "Forbidden"})),
        (
            "limited",
            json!({"activation": "Always",
            "matchConditions": [{"name": "few", "expression": "object.spec.containers.size() < 2"}]}),
        ),
    ]);
    let names = |all: Vec<(String, MatchState)>, of: MatchState| {
        all.into_iter().filter(|(_, match_state)| *match_state == of).map(|(name, _)| name).collect::<Vec<_>>()
    };
    let plain = of_metadata(&snapshot, &pod(&json!({}), &json!({})));
    assert_eq!(names(plain.clone(), MatchState::Wanted), ["always", "forced"]);
    assert_eq!(names(plain.clone(), MatchState::Open), ["limited"]);
    assert_eq!(names(plain, MatchState::NotWanted), ["blue"]);

    let asking = of_metadata(&snapshot, &pod(&json!({"color": "blue"}), &json!({"example.com/ask": "yes"})));
    assert_eq!(names(asking, MatchState::Wanted), ["always", "asked", "blue", "forced"]);

    let out = of_metadata(&snapshot, &pod(&json!({"pillion.dev/inject": "false"}), &json!({})));
    assert_eq!(names(out.clone(), MatchState::Wanted), ["forced"]);
    assert_eq!(names(out, MatchState::OptedOut), ["always", "blue", "limited"]);
}

#[test]
fn whole_pod_decides_open_profiles() {
    let snapshot = snapshot(&[
        (
            "few",
            json!({"activation": "Always",
            "matchConditions": [{"name": "few", "expression": "object.spec.containers.size() < 2"}]}),
        ),
        (
            "mine",
            json!({"activation": "Always",
            "matchConditions": [{"name": "mine", "expression": "request.userInfo.username == 'me'"}]}),
        ),
    ]);
    let expected = |few| vec![("few".to_owned(), few), ("mine".to_owned(), MatchState::Undecided)];
    let mut pod = pod(&json!({}), &json!({}));
    assert_eq!(of_object(&snapshot, &pod), expected(MatchState::Wanted));
    pod["spec"]["containers"] = json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]);
    assert_eq!(of_object(&snapshot, &pod), expected(MatchState::NotWanted));
}

#[test]
fn refusable_parameter_makes_profile_open() {
    let parameter = |on_invalid: &str| {
        json!({"activation": "Always", "parameters": [{"name": "size", "type": "integer", "default": 1,
            "annotation": "example.com/size", "sources": ["Pod"], "onInvalid": on_invalid}]})
    };
    let snapshot = snapshot(&[("defaults", parameter("Default")), ("skips", parameter("Skip"))]);
    let wrong = pod(&json!({}), &json!({"example.com/size": "large"}));
    let match_states =
        |all: Vec<(String, MatchState)>| all.into_iter().map(|(_, match_state)| match_state).collect::<Vec<_>>();
    assert_eq!(match_states(of_metadata(&snapshot, &wrong)), [MatchState::Wanted, MatchState::Open]);
    assert_eq!(match_states(of_object(&snapshot, &wrong)), [MatchState::Wanted, MatchState::NotWanted]);
}

#[test]
fn parent_of_open_stand_in_is_open() {
    let snapshot = snapshot(&[
        (
            "a",
            json!({"activation": "Always", "exclusiveGroup": "g", "order": 1,
            "matchConditions": [{"name": "few", "expression": "object.spec.containers.size() < 2"}]}),
        ),
        ("b", json!({"activation": "Always", "exclusiveGroup": "g", "order": 2})),
        ("c", json!({"activation": "Always", "exclusiveGroup": "h", "order": 3})),
    ]);
    let match_states =
        |all: Vec<(String, MatchState)>| all.into_iter().map(|(_, match_state)| match_state).collect::<Vec<_>>();
    let pod = pod(&json!({}), &json!({}));
    assert_eq!(match_states(of_metadata(&snapshot, &pod)), [MatchState::Open, MatchState::Open, MatchState::Wanted]);
    assert_eq!(
        match_states(of_object(&snapshot, &pod)),
        [MatchState::Wanted, MatchState::NotWanted, MatchState::Wanted]
    );
}

#[test]
fn metadata_and_object_agree_on_known_profiles() {
    let condition = |name: &str, expression: &str| json!([{"name": name, "expression": expression}]);
    let snapshot = snapshot(&[
        (
            "a",
            json!({"activation": "Always", "exclusiveGroup": "g", "order": 1,
            "matchConditions": condition("few", "object.spec.containers.size() < 2")}),
        ),
        ("b", json!({"activation": "Always", "exclusiveGroup": "g", "order": 2})),
        ("c", json!({"requestedBy": {"label": "example.com/c", "annotation": "example.com/c"}})),
        (
            "d",
            json!({"activation": "Always", "optOut": "Forbidden",
            "matchConditions": condition("host", "!object.spec.?hostNetwork.orValue(false)")}),
        ),
    ]);
    let labels = [json!({}), json!({"example.com/c": "true"}), json!({"pillion.dev/inject": "false"})];
    let annotations = [json!({}), json!({"pillion.dev/profiles": "c,-b"}), json!({"example.com/c": "no"})];
    let specs = [
        json!({"containers": [{"name": "x", "image": "x"}]}),
        json!({"hostNetwork": true, "containers": [{"name": "x", "image": "x"}, {"name": "y", "image": "y"}]}),
    ];
    let mut cases = 0;
    for (labels, annotations, spec) in labels
        .iter()
        .flat_map(|labels| annotations.iter().map(move |annotations| (labels, annotations)))
        .flat_map(|(labels, annotations)| specs.iter().map(move |spec| (labels, annotations, spec)))
    {
        let mut pod = pod(labels, annotations);
        pod["spec"] = spec.clone();
        let tape = OwnedTape::parse(pod.to_string()).unwrap();
        let whole = super::of_object(&snapshot, "shop", &opted_in(), tape.root(), &LookedUp::default());
        let few = spec["containers"].as_array().unwrap().len() < 2;
        // Both conditions hold only for pods with one container.
        let known = |_: &CompiledProfile, _: &str| Some(few);
        let metadata = OwnedTape::parse(json!({"metadata": pod["metadata"]}).to_string()).unwrap();
        let by_metadata = super::of_metadata(&snapshot, "shop", &opted_in(), metadata.root(), known);
        assert_eq!(shown(&by_metadata), shown(&whole), "{pod}");
        // Injection selects the same profiles.
        let Injected::Profiles(had) =
            read(OwnedTape::parse(injected(&snapshot, &pod).to_string()).unwrap().root()).injected
        else {
            assert!(whole.iter().all(|expected| expected.match_state != MatchState::Wanted), "{pod}");
            continue;
        };
        let had: Vec<_> = had.into_iter().map(|(profile, _)| profile).collect();
        let wanted = whole.iter().filter(|expected| expected.match_state == MatchState::Wanted);
        assert_eq!(
            had,
            wanted.map(|expected| expected.profile.display_name().into()).collect::<Vec<Box<str>>>(),
            "{pod}"
        );
        cases += 1;
    }
    assert!(cases > 8, "{cases}");
}

#[test]
fn pin_to_inactive_revision_is_open() {
    let compiled = |text: &str| {
        let spec = json!({"activation": "Always", "objectSelector": {"matchLabels": {"text": text}},
            "template": {"metadata": {"annotations": {"example.com/text": text}}}});
        Arc::new(compile(&ProfileName::cluster("a"), &serde_json::from_value(spec).unwrap()).unwrap())
    };
    let (new, old) = (compiled("new"), compiled("old"));
    let kept = [&new, &old].map(|profile| Box::from(profile.revision())).into();
    let served = Served { profile: Arc::clone(&new), stage: None, kept };
    let snapshot = Snapshot::new(ProfileSet::serving(&ProfileSet::default(), [served]));
    let asks = |namespace: &str, own: &str, known: Option<bool>| {
        let annotations = if own.is_empty() { json!({}) } else { json!({"pillion.dev/profiles": own}) };
        let tape = OwnedTape::parse(pod(&json!({"text": "new"}), &annotations).to_string()).unwrap();
        let pins = [("pillion.dev/profiles", namespace)];
        let namespace = Arc::new(Namespace::new([("pillion.dev/injection", "enabled")], pins));
        let mut found = super::of_metadata(&snapshot, "shop", &namespace, tape.root(), |_, revision| {
            assert!([new.revision(), old.revision()].contains(&revision));
            known
        });
        assert_eq!(found.len(), 1);
        let found = found.remove(0);
        (found.match_state, found.revision().to_owned())
    };
    let (to_new, to_old) = (format!("a@{}", new.revision()), format!("a@{}", old.revision()));
    let (new, old) = (new.revision().to_owned(), old.revision().to_owned());
    assert_eq!(asks("", &to_old, None), (MatchState::Open, old.clone()));
    assert_eq!(asks("", &to_old, Some(true)), (MatchState::Wanted, old.clone()));
    assert_eq!(asks(&to_old, "", None), (MatchState::Open, old.clone()));
    assert_eq!(
        asks(&to_old, &to_new, None),
        (MatchState::Wanted, new.clone()),
        "the pod's own pin replaces the namespace's"
    );
    assert_eq!(asks("", "a@0123456789", None), (MatchState::Wanted, new), "the revision is not stored");
}

#[test]
fn failed_lookup_differs_from_undecided() {
    let with = |expression: &str| {
        snapshot(&[(
            "a",
            json!({"activation": "Always", "matchConditions": [{"name": "c", "expression": expression}]}),
        )])
    };
    let tape = OwnedTape::parse(pod(&json!({}), &json!({})).to_string()).unwrap();
    let match_state = |expression: &str, looked_up: &LookedUp| {
        super::of_object(&with(expression), "shop", &opted_in(), tape.root(), looked_up)[0].match_state
    };
    let unavailable = LookedUp { service_account: Answer::Failed("away".into()), ..LookedUp::default() };
    assert_eq!(match_state("serviceAccount.hasValue()", &unavailable), MatchState::NotLookedUp);
    let unknown = LookedUp { cluster: LookedUp::unknown_cluster(), ..LookedUp::default() };
    assert_eq!(match_state("cluster.?region.orValue('') == ''", &unknown), MatchState::Undecided);
    assert_eq!(match_state("cluster.?region.orValue('') == ''", &LookedUp::default()), MatchState::Wanted);
}

#[test]
fn reads_record_from_metadata_alone() {
    let snapshot = snapshot(&[("a", json!({"activation": "Always"}))]);
    let mut stored = injected(&snapshot, &pod(&json!({"app": "web"}), &json!({"mine": "1"})));
    stored.as_object_mut().unwrap().remove("spec");
    let tape = OwnedTape::parse(stored.to_string()).unwrap();
    let Read { injected, original_object } = read(tape.root());
    let revision = snapshot.profiles().iter().next().unwrap().revision().into();
    assert_eq!(injected, Injected::Profiles(vec![("a".into(), revision)]));
    let original_object = original_object.unwrap();
    assert!(original_object.root().at(&["metadata", "annotations", "filled.example.com/a"]).is_none());
    assert!(original_object.root().at(&["metadata", "annotations", INJECTED_ANNOTATION]).is_none());
    assert!(original_object.root().at(&["metadata", "annotations", "mine"]).is_some_and(|value| value.is("1")));

    stored["metadata"]["managedFields"] =
        json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
    let copied = OwnedTape::parse(stored.to_string()).unwrap();
    assert_eq!(read(copied.root()).injected, Injected::Foreign);
    assert_eq!(read(OwnedTape::parse(r#"{"metadata":{}}"#).unwrap().root()).injected, Injected::Nothing);
}

#[test]
fn expects_nothing_without_opt_in() {
    let snapshot = snapshot(&[("a", json!({"activation": "Always"}))]);
    let tape = OwnedTape::parse(pod(&json!({}), &json!({})).to_string()).unwrap();
    for (name, namespace) in [("shop", Namespace::default()), ("kube-system", Namespace::opted_in(FailureMode::Held))] {
        assert!(super::of_metadata(&snapshot, name, &namespace, tape.root(), |_, _| None).is_empty());
        assert!(super::of_object(&snapshot, name, &namespace, tape.root(), &LookedUp::default()).is_empty());
    }
}

#[test]
fn upgrade_in_place_replaces_recorded_revision() {
    let snapshot = snapshot(&[("a", json!({"activation": "Always"}))]);
    let mut pod = injected(&snapshot, &pod(&json!({}), &json!({})));
    let revisions = |pod: &Json| match read(OwnedTape::parse(pod.to_string()).unwrap().root()).injected {
        Injected::Profiles(profiles) => profiles,
        other => panic!("{other:?}"),
    };
    let recorded = revisions(&pod)[0].1.clone();
    pod["metadata"]["uid"] = json!("u");
    let upgraded =
        |uid: &str, from: &str| json!({"uid": uid, "profiles": {"a": {"from": from, "to": "b2"}}}).to_string();
    for (annotation, expected) in [
        (upgraded("u", &recorded), "b2"),
        (upgraded("u", "older"), &*recorded),
        // The annotation was copied from another pod.
        (upgraded("other", &recorded), &recorded),
        ("no JSON".to_owned(), &recorded),
    ] {
        pod["metadata"]["annotations"][UPGRADED_ANNOTATION] = json!(annotation);
        assert_eq!(revisions(&pod), [("a".into(), expected.into())]);
    }
}
