//! Exported policies on a real API server must make the same decisions as the engine: they accept and reject the same
//! objects, with the same status, and add the same labels and annotations.

mod cases;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::{Method, Request};
use futures::{StreamExt, TryStreamExt};
use pillion_api::opt_in::OptIn;
use pillion_engine::profile::{ProfileName, compile};
use pillion_engine::review::{Endpoint, Facts, Review};
use pillion_engine::snapshot::{Namespace, ProfileSet, Snapshot};
use pillion_testkit::{ControlPlane, eventually, isolated};
use serde_json::{Value as Json, json};

use self::cases::{Case, Operation, cases, namespaces, profiles};

const SOON: Duration = Duration::from_mins(1);

/// Sends a test case to the API server. Returns the status and message of a rejection, or `None` if the object is
/// accepted.
async fn send(client: &kube::Client, case: &Case) -> Result<Option<(u16, String)>> {
    let (name, collection) = (name(case), format!("/api/v1/namespaces/{}/configmaps", case.namespace));
    let (method, path, body) = match case.operation {
        Operation::Create => (Method::POST, collection, case.object.to_string()),
        Operation::Update => (Method::PUT, format!("{collection}/{name}"), case.object.to_string()),
        Operation::Delete => (Method::DELETE, format!("{collection}/{name}"), String::new()),
    };
    let request = Request::builder().method(method).uri(format!("{path}?dryRun=All"));
    let request = request.header("content-type", "application/json").body(body.into_bytes())?;
    match client.request_text(request).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message.clone()))),
        Err(error) => Err(error).context("the API server does not answer"),
    }
}

/// Sends test cases concurrently over a few connections. Opening a connection for each case would take longer than all
/// responses together.
async fn send_all(client: &kube::Client, cases: &[&Case]) -> Result<Vec<Option<(u16, String)>>> {
    futures::stream::iter(cases.iter().map(|case| send(client, case))).buffered(16).try_collect().await
}

fn name(case: &Case) -> &str {
    let object = if case.operation == Operation::Delete { &case.old } else { &case.object };
    object["metadata"]["name"].as_str().unwrap()
}

/// Returns the status and message of the engine's rejection, or `None` if the engine accepts the object.
fn decide(
    snapshot: &Snapshot,
    namespace: &str,
    resource: &str,
    operation: Operation,
    object: &Json,
    old: &Json,
) -> Result<Option<(u16, String)>> {
    let operation = match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    };
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "resource": {"group": "", "version": "v1", "resource": resource}, "namespace": namespace,
            "operation": operation, "object": object, "oldObject": old, "userInfo": {"username": "admin"},
        },
    })
    .to_string();
    let review = Review::parse(body.as_bytes())?;
    let facts = Facts { namespace: snapshot.namespace(namespace), ..Facts::default() };
    let decided = review.decide(Endpoint::Validate, snapshot, &facts)?;
    let answer: Json = serde_json::from_slice(&review.respond(&decided))?;
    let status = &answer["response"]["status"];
    let code = u16::try_from(status["code"].as_u64().unwrap_or_default())?;
    Ok((answer["response"]["allowed"] == false).then(|| (code, status["message"].to_string())))
}

fn snapshot(profiles: Vec<(&'static str, Json)>) -> Snapshot {
    let pairs = |map: &Json| -> Vec<(String, String)> {
        map.as_object().unwrap().iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
    };
    let compiled = profiles.into_iter().map(|(name, spec)| {
        let spec = serde_json::from_value(spec).unwrap();
        Arc::new(compile(&ProfileName::cluster(name), &spec).unwrap())
    });
    namespaces().iter().fold(Snapshot::new(ProfileSet::new(compiled)), |snapshot, (name, labels, annotations)| {
        let mut labels = pairs(labels);
        // The API server adds this label to every namespace.
        labels.push(("kubernetes.io/metadata.name".to_owned(), (*name).to_owned()));
        snapshot.with_namespace(name, Some(Namespace::new(labels, pairs(annotations))))
    })
}

/// Starts a cluster with the namespaces, the exported policies, and the objects that the test cases update and delete.
async fn start(cases: &[Case], profiles: Vec<(&'static str, Json)>) -> Result<ControlPlane> {
    let plane = ControlPlane::start().await?;
    let mut objects = Vec::new();
    for (name, labels, annotations) in namespaces() {
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels, "annotations": annotations}}));
    }
    let mut names = std::collections::BTreeSet::new();
    for case in cases.iter().filter(|case| case.operation != Operation::Create && names.insert(name(case).to_owned())) {
        objects.push(case.old.clone());
    }
    plane.apply_yaml(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "team-a"}});
    plane.apply_yaml(&account.to_string()).await?;

    let folder = tempfile::tempdir()?;
    for (name, spec) in profiles {
        let profile = json!({"apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": name}, "spec": spec});
        std::fs::write(folder.path().join(format!("{name}.yaml")), profile.to_string())?;
    }
    let exported =
        std::process::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("export").arg(folder.path()).output()?;
    ensure!(exported.status.code() == Some(0), "{}", String::from_utf8_lossy(&exported.stderr));
    plane.apply_yaml(std::str::from_utf8(&exported.stdout)?).await?;
    Ok(plane)
}

#[test]
fn exported_policies_decide_as_the_engine_does() {
    isolated(|| async {
        let (cases, snapshot) = (cases(), snapshot(profiles()));
        let plane = start(&cases, profiles()).await?;
        let client = plane.client();
        // The API server reloads policies periodically. A policy is active once it rejects an object.
        let mut awaited: Vec<&str> =
            vec!["plain", "old", "deleted", "strict", "computed", "asked", "forced", "elsewhere"];
        eventually(SOON, "the policies are active", async || {
            let awaiting: Vec<_> = cases.iter().filter(|case| awaited.contains(&case.profile)).collect();
            for (case, answer) in awaiting.iter().zip(send_all(&client, &awaiting).await?) {
                awaited.retain(|name| answer.is_none() || *name != case.profile);
            }
            ensure!(awaited.is_empty(), "{awaited:?} reject nothing");
            Ok(())
        })
        .await?;
        let (mut refused, mut differences) = (0, Vec::new());
        let all: Vec<_> = cases.iter().collect();
        for (case, theirs) in cases.iter().zip(send_all(&client, &all).await?) {
            let ours = decide(&snapshot, case.namespace, "configmaps", case.operation, &case.object, &case.old)?;
            refused += usize::from(theirs.is_some());
            if theirs.as_ref().map(|(code, _)| code) != ours.as_ref().map(|(code, _)| code) {
                let (profile, operation, namespace) = (case.profile, case.operation, case.namespace);
                differences.push(format!(
                    "{profile}: {operation:?} in {namespace} of {} (was {})\n  there {theirs:?}\n  here  {ours:?}",
                    case.object, case.old
                ));
            }
        }
        ensure!(differences.is_empty(), "{} of {}:\n{}", differences.len(), cases.len(), differences.join("\n"));
        ensure!(cases.len() > 1_000 && refused > 200 && refused < cases.len() / 2, "{refused} of {}", cases.len());
        println!("{} cases, {refused} rejected", cases.len());

        for (containers, passes) in [
            (json!([{"name": "a", "image": "i"}]), true),
            (
                json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i", "env": [{"name": "A", "value": "b"}]}]),
                false,
            ),
        ] {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
            let path = "/api/v1/namespaces/team-a/pods?dryRun=All";
            let request =
                Request::post(path).header("content-type", "application/json").body(pod.to_string().into_bytes())?;
            let theirs = plane.client().request_text(request).await;
            let ours = decide(&snapshot, "team-a", "pods", Operation::Create, &pod, &Json::Null)?;
            ensure!(theirs.is_ok() == passes && ours.is_none() == passes, "{pod}: {theirs:?}, {ours:?}");
        }
        Ok(())
    });
}

/// If a namespace has several opt-in labels, Pillion's own label takes effect, as for the webhooks.
#[test]
fn exported_policies_use_given_labels() {
    isolated(|| async {
        let plane = ControlPlane::start().await?;
        let opt_in = OptIn::with(["mesh=on"])?;
        let namespaces: [(&str, &[(&str, &str)]); 6] = [
            ("own", &[("pillion.dev/injection", "held")]),
            ("other", &[("mesh", "on")]),
            ("both", &[("pillion.dev/injection", "enabled"), ("mesh", "off")]),
            ("out", &[("pillion.dev/injection", "disabled"), ("mesh", "on")]),
            ("off", &[("mesh", "off")]),
            ("none", &[]),
        ];
        let objects = namespaces.iter().map(|(name, labels)| {
            let labels: std::collections::BTreeMap<_, _> = labels.iter().copied().collect();
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()});
        plane.apply_yaml(&list.to_string()).await?;
        let client = plane.client();
        let folder = tempfile::tempdir()?;
        let spec = json!({
            "target": {"version": "v1", "resources": ["configmaps"], "operations": ["CREATE"]},
            "activation": "Always", "optOut": "Forbidden", "validations": [{"expression": "false", "message": "no"}],
        });
        let profile = json!({"apiVersion": "pillion.dev/v1alpha1", "kind": "ClusterInjectionProfile", "metadata": {"name": "p"}, "spec": spec});
        std::fs::write(folder.path().join("p.yaml"), profile.to_string())?;
        let exported = std::process::Command::new(env!("CARGO_BIN_EXE_pillion"))
            .args(["export", "--opt-in", "mesh=on"])
            .arg(folder.path())
            .output()?;
        ensure!(exported.status.code() == Some(0), "{}", String::from_utf8_lossy(&exported.stderr));
        plane.apply_yaml(std::str::from_utf8(&exported.stdout)?).await?;
        // The API server reloads policies periodically, and reads namespaces from a cache.
        eventually(SOON, "the policy applies only to namespaces that opt in", async || {
            for (name, labels) in &namespaces {
                let ours = Namespace::new(labels.iter().copied(), []).opting_in_by(&opt_in).failure_mode().is_some();
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fresh"}});
                let (namespace, operation) = (*name, Operation::Create);
                let theirs =
                    send(&client, &Case { profile: "p", namespace, operation, object, old: Json::Null }).await?;
                ensure!(theirs.is_some() == ours, "{name}: {theirs:?}");
            }
            Ok(())
        })
        .await
    });
}

/// Returns the names and specs of profiles that add labels and annotations.
fn additions() -> Vec<(&'static str, Json)> {
    let maps = json!({"version": "v1", "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"]});
    let template = json!({"metadata": {
        "labels": {"example.com/team": "nobodys", "tier": "back"}, "annotations": {"example.com/a-b": "it's x\\y", "kept": "ours"},
    }});
    vec![
        ("always", json!({"target": maps, "activation": "Always", "template": template})),
        (
            "asked",
            json!({
                "target": maps, "requestedBy": {"annotation": "example.com/add", "label": "example.com/add"},
                "template": {"metadata": {"annotations": {"asked": "yes"}}},
                "matchConditions": [{"name": "c", "expression": "object.metadata.name != 'never'"}],
            }),
        ),
    ]
}

/// Returns the labels and the annotations of an object, without the injection record.
fn keys(object: &Json) -> Json {
    let mut annotations = object["metadata"]["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove("pillion.dev/injected");
    }
    let some = |map: Json| if map.is_null() { json!({}) } else { map };
    json!([some(object["metadata"]["labels"].clone()), some(annotations)])
}

#[test]
fn exported_mutations_add_what_the_engine_adds() {
    isolated(|| async {
        let plane = start(&[], additions()).await?;
        let snapshot = snapshot(additions());
        let mut objects = Vec::new();
        for labels in [
            json!(null),
            json!({"tier": "front"}),
            json!({"pillion.dev/inject": "false"}),
            json!({"example.com/add": "no"}),
        ] {
            for annotations in [
                json!(null),
                json!({"kept": "theirs", "example.com/add": "YES"}),
                json!({"pillion.dev/profiles": "asked,-always"}),
            ] {
                for name in ["one", "never"] {
                    let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
                    objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
                }
            }
        }
        let send = async |namespace: &str, object: &Json| -> Result<Json> {
            let request = Request::post(format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All"));
            let request = request.header("content-type", "application/json").body(object.to_string().into_bytes())?;
            Ok(serde_json::from_str(&plane.client().request_text(request).await?)?)
        };
        eventually(SOON, "both policies are active", async || {
            let object = json!({"metadata": {"name": "probe", "annotations": {"example.com/add": "1"}}});
            let made = send("team-a", &object).await?;
            let (labels, annotations) = (&made["metadata"]["labels"], &made["metadata"]["annotations"]);
            ensure!(labels["tier"] == "back" && annotations["asked"] == "yes", "not yet: {made}");
            Ok(())
        })
        .await?;
        let mut changed = 0;
        for (namespace, ..) in namespaces() {
            for object in &objects {
                let mut ours = object.clone();
                if let Some(patch) = inject(&snapshot, namespace, object)? {
                    json_patch::patch(&mut ours, &serde_json::from_slice::<json_patch::Patch>(&patch)?)?;
                }
                let theirs = send(namespace, object).await?;
                ensure!(
                    keys(&theirs) == keys(&ours),
                    "{object} in {namespace}\n API server {}\n engine     {}",
                    keys(&theirs),
                    keys(&ours)
                );
                changed += usize::from(keys(&ours) != keys(object));
            }
        }
        ensure!(changed > 30 && changed < 90, "{changed} of {}", 4 * objects.len());
        Ok(())
    });
}

/// Returns the engine's patch for the creation of an object, or `None` if the engine changes nothing.
fn inject(snapshot: &Snapshot, namespace: &str, object: &Json) -> Result<Option<Vec<u8>>> {
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "resource": {"group": "", "version": "v1", "resource": "configmaps"}, "namespace": namespace,
            "operation": "CREATE", "object": object, "userInfo": {"username": "admin"},
        },
    })
    .to_string();
    let review = Review::parse(body.as_bytes())?;
    let facts = Facts { namespace: snapshot.namespace(namespace), ..Facts::default() };
    Ok(review.decide(Endpoint::Any, snapshot, &facts)?.patch)
}
