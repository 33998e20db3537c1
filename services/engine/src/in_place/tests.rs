//! Tests plans on pods as the API server stores them.

use serde_json::{Value, json};

use super::*;

/// Returns the pod with a native sidecar as the profile defines it, after `change` was applied to the sidecar.
fn rendered(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"annotations": {"pillion.dev/injected": "r"}},
        "spec": {
            "containers": [{"name": "web", "image": "web:1"}],
            "initContainers": [{
                "name": "shipper", "image": "shipper:1", "restartPolicy": "Always",
                "env": [{"name": "A", "value": "1"}],
                "resources": {"requests": {"cpu": "0.1", "memory": "16Mi"}, "limits": {"memory": "32Mi"}},
            }],
        },
    });
    change(&mut pod["spec"]["initContainers"][0]);
    pod
}

/// Returns the stored pod, with the fields that the API server adds.
fn running(change: impl FnOnce(&mut Value)) -> Value {
    rendered(|sidecar| {
        sidecar["imagePullPolicy"] = json!("IfNotPresent");
        sidecar["terminationMessagePath"] = json!("/dev/termination-log");
        sidecar["resources"]["requests"]["cpu"] = json!("100m");
        change(sidecar);
    })
}

fn planned(running: &Value, after: impl FnOnce(&mut Value)) -> PodPlan {
    plan(running, &rendered(|_| {}), &rendered(after), &["/spec/initContainers/shipper".into()])
}

fn obstacles(plan: &PodPlan) -> Vec<String> {
    let PodPlan::Recreate(obstacles) = plan else { panic!("{plan:?}") };
    obstacles.iter().map(ToString::to_string).collect()
}

#[test]
fn image_and_resources_change_in_place() {
    let plan = planned(&running(|_| {}), |sidecar| {
        sidecar["image"] = json!("shipper:2");
        sidecar["resources"]["requests"]["cpu"] = json!("200m");
        sidecar["resources"]["limits"]["memory"] = json!("64Mi");
    });
    let change = ContainerChange {
        list: ContainerList::InitContainers,
        name: "shipper".to_owned(),
        image: Some(("shipper:1".to_owned(), "shipper:2".to_owned())),
        resources: Some((
            json!({"requests": {"cpu": "0.1"}, "limits": {"memory": "32Mi"}}),
            json!({"requests": {"cpu": "200m"}, "limits": {"memory": "64Mi"}}),
        )),
    };
    assert_eq!(plan, PodPlan::InPlace(vec![change]));
    // The same quantity in another notation is not a change.
    assert_eq!(planned(&running(|_| {}), |new| new["resources"]["requests"]["cpu"] = json!("100m")), PodPlan::Same);
}

#[test]
fn other_fields_are_obstacles_with_their_paths() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 6] = [
        (|new| new["env"][0]["value"] = json!("2"), "spec.initContainers[shipper].env[A].value changes"),
        (|new| new["args"] = json!(["-v"]), "spec.initContainers[shipper].args changes"),
        (|new| new["env"] = json!([]), "spec.initContainers[shipper].env changes"),
        (|new| new["name"] = json!("other"), "spec.initContainers changes"),
        (|new| new["resources"]["limits"]["cpu"] = json!("1"), "limits.cpu of container shipper is added or removed"),
        (
            |new| new["resources"]["requests"]["ephemeral-storage"] = json!("1Gi"),
            "spec.initContainers[shipper].resources changes",
        ),
    ];
    for (edit, obstacle) in cases {
        let plan = planned(&running(|_| {}), |new| {
            new["image"] = json!("shipper:2");
            edit(new);
        });
        assert!(obstacles(&plan).iter().any(|found| found == obstacle), "{obstacle}: {plan:?}");
    }
}

#[test]
fn edited_values_and_containers_of_author_are_not_changed() {
    let edited = running(|sidecar| sidecar["image"] = json!("mine:1"));
    let plan = planned(&edited, |new| new["image"] = json!("shipper:2"));
    assert_eq!(obstacles(&plan), ["another client has changed the image of container shipper"]);
    let resized = running(|sidecar| sidecar["resources"]["requests"]["cpu"] = json!("1"));
    let plan = planned(&resized, |new| new["resources"]["requests"]["cpu"] = json!("200m"));
    assert_eq!(obstacles(&plan), ["another client has changed the resources of container shipper"]);
    // A user's edit of a value is kept if the upgrade does not change this value.
    let plan = planned(&resized, |new| new["image"] = json!("shipper:2"));
    assert!(matches!(plan, PodPlan::InPlace(_)), "{plan:?}");

    // A container that the record does not list belongs to the author.
    let after = rendered(|new| new["image"] = json!("shipper:2"));
    let plan = plan_of_author(&after);
    assert_eq!(obstacles(&plan), ["spec.initContainers[shipper].image changes"]);
}

fn plan_of_author(after: &Value) -> PodPlan {
    plan(&running(|_| {}), &rendered(|_| {}), after, &["/spec/initContainers/shipper/env/A".into()])
}

#[test]
fn init_container_that_has_run_is_obstacle() {
    let without_policy = |image: &str| {
        rendered(|container| {
            container["image"] = json!(image);
            container.as_object_mut().unwrap().remove("restartPolicy");
        })
    };
    let (before, after) = (without_policy("shipper:1"), without_policy("shipper:2"));
    let plan = plan(&before, &before, &after, &["/spec/initContainers/shipper".into()]);
    assert_eq!(obstacles(&plan), ["the image of init container shipper changes, which has already run"]);
}

#[test]
fn only_always_restarting_init_container_is_sidecar() {
    let container = |policy: &str, cpu: &str| {
        rendered(|container| {
            container["restartPolicy"] = json!(policy);
            container["resources"]["requests"]["cpu"] = json!(cpu);
        })
    };
    let added: [Box<str>; 1] = ["/spec/initContainers/shipper".into()];
    for (policy, expected) in [("Always", None), ("OnFailure", Some("resources")), ("Never", Some("resources"))] {
        let before = container(policy, "100m");
        let plan = plan(&before, &before, &container(policy, "200m"), &added);
        match expected {
            None => assert!(matches!(plan, PodPlan::InPlace(_)), "{policy}: {plan:?}"),
            Some(field) => assert_eq!(
                plan,
                PodPlan::Recreate(vec![Obstacle::HasRun { container: "shipper".to_owned(), field }]),
                "{policy}"
            ),
        }
    }
}

#[test]
fn interrupted_upgrade_is_continued() {
    let wanted = |new: &mut Value| {
        new["image"] = json!("shipper:2");
        new["resources"]["requests"]["cpu"] = json!("200m");
        new["resources"]["limits"]["memory"] = json!("64Mi");
    };
    let PodPlan::InPlace(whole) = planned(&running(|_| {}), wanted) else { panic!("no upgrade in place") };
    // One of the new resources is already written, in another notation.
    let partial = running(|sidecar| sidecar["resources"]["requests"]["cpu"] = json!("0.2"));
    assert_eq!(planned(&partial, wanted), PodPlan::InPlace(whole.clone()));
    // All new resources are already written.
    let resized = running(|sidecar| {
        sidecar["resources"]["requests"]["cpu"] = json!("200m");
        sidecar["resources"]["limits"]["memory"] = json!("64Mi");
    });
    assert_eq!(planned(&resized, wanted), PodPlan::InPlace(whole.clone()));
    // The new image is already written too, so it need not be written again.
    let PodPlan::InPlace(rest) = planned(&running(wanted), wanted) else { panic!("no upgrade in place") };
    assert_eq!((&rest[0].image, &rest[0].resources), (&None, &whole[0].resources));
    assert_eq!(planned(&running(wanted), |new| new["image"] = json!("shipper:2")), PodPlan::Same);
}

#[test]
fn qos_class_must_not_change() {
    let guaranteed = |pod: &mut Value| {
        let equal = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        pod["spec"]["containers"][0]["resources"] = equal.clone();
        pod["spec"]["initContainers"][0]["resources"] = equal;
    };
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = rendered(|_| {});
        guaranteed(&mut pod);
        change(&mut pod["spec"]["initContainers"][0]["resources"]);
        pod
    };
    let before = with(&|_| {});
    let planned = |after: &Value| plan(&before, &before, after, &["/spec/initContainers/shipper".into()]);
    let plan = planned(&with(&|resources| resources["limits"]["cpu"] = json!("2")));
    assert_eq!(obstacles(&plan), ["the QoS class of the pod would change from Guaranteed to Burstable"]);
    let both = with(&|resources| {
        resources["limits"]["cpu"] = json!("2");
        resources["requests"]["cpu"] = json!("2000m");
    });
    assert!(matches!(planned(&both), PodPlan::InPlace(_)), "{:?}", planned(&both));
}

#[test]
fn qos_class_is_computed_like_kubernetes() {
    let pod = |of_pod: &Value, first: &Value, second: &Value| {
        let containers = json!([{"name": "a", "resources": first}]);
        let init = json!([{"name": "b", "resources": second}]);
        json!({"spec": {"resources": of_pod, "containers": containers, "initContainers": init}})
    };
    let none = json!({});
    let whole = json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "0.5", "memory": "1024Mi"}});
    let partial = json!({"requests": {"cpu": "500m"}});
    let storage = json!({"requests": {"ephemeral-storage": "1Gi"}, "limits": {"example.com/gpu": 1}});
    let zero = json!({"requests": {"cpu": "0"}});
    for (of_pod, first, second, expected) in [
        (&none, &none, &none, QosClass::BestEffort),
        (&none, &storage, &zero, QosClass::BestEffort),
        (&none, &whole, &whole, QosClass::Guaranteed),
        (&none, &whole, &none, QosClass::Burstable),
        (&none, &partial, &none, QosClass::Burstable),
        // If the pod itself has resources (`spec.resources`), those of its containers are ignored.
        (&whole, &none, &partial, QosClass::Guaranteed),
        (&partial, &whole, &whole, QosClass::Burstable),
    ] {
        assert_eq!(qos_class(&pod(of_pod, first, second)), expected, "{of_pod} {first} {second}");
    }
}
