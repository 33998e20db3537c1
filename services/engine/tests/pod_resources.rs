//! Tests that pods with pod-level resources remain valid. The API server rejects a pod if its containers request more
//! in total than the pod, or if a container has a higher limit than the pod.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test helpers fail by panicking")]

use pillion_engine::review::{Endpoint, Facts, RecordTrust, Review};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::common::{patched, respond, review, snapshot};

/// The CPU resources of a container in millicores (its request, and the difference between limit and request), and its
/// kind.
#[derive(Clone, Debug)]
struct Asked {
    requests: Option<u64>,
    above: Option<u64>,
    is_init: bool,
    is_restarted: bool,
}

impl Asked {
    fn limits(&self) -> Option<u64> {
        self.above.map(|above| self.requests.unwrap_or(1) + above)
    }

    fn container(&self, name: &str) -> Json {
        let mut container = json!({"name": name, "image": "i:1", "resources": {}});
        for (kind, amount) in [("requests", self.requests), ("limits", self.limits())] {
            if let Some(amount) = amount {
                container["resources"][kind] = json!({"cpu": format!("{amount}m")});
            }
        }
        if self.is_restarted && self.is_init {
            container["restartPolicy"] = json!("Always");
        }
        container
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let amount = || proptest::option::of(1_u64..3_000);
    (amount(), amount(), any::<bool>(), any::<bool>()).prop_map(|(requests, above, is_init, is_restarted)| Asked {
        requests,
        above,
        is_init,
        is_restarted,
    })
}

fn spec(prefix: &str, containers: &[Asked]) -> Json {
    let list = |is_init: bool| {
        let of_kind = containers.iter().enumerate().filter(|(_, asked)| asked.is_init == is_init);
        of_kind.map(|(number, asked)| asked.container(&format!("{prefix}{number}"))).collect::<Vec<_>>()
    };
    json!({"containers": list(false), "initContainers": list(true)})
}

fn milli(quantity: &Json) -> u64 {
    let text = quantity.as_str().unwrap();
    text.strip_suffix('m').map_or_else(|| text.parse::<u64>().unwrap() * 1_000, |milli| milli.parse().unwrap())
}

/// Returns the total CPU request of a pod's containers, computed like `AggregateContainerRequests` in Kubernetes, and
/// their largest CPU limit. Both are in millicores.
fn used(spec: &Json) -> (u64, u64) {
    let of = |container: &Json, kind: &str| container["resources"][kind].get("cpu").map(milli);
    let requests = |container: &Json| of(container, "requests").or_else(|| of(container, "limits")).unwrap_or(0);
    let lists =
        || ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    let (mut total, mut sidecars, mut largest_init) = (0, 0, 0);
    for container in spec["containers"].as_array().unwrap() {
        total += requests(container);
    }
    for container in spec["initContainers"].as_array().into_iter().flatten() {
        if container["restartPolicy"] == "Always" {
            sidecars += requests(container);
            largest_init = largest_init.max(sidecars);
        } else {
            largest_init = largest_init.max(sidecars + requests(container));
        }
    }
    let limit = lists().filter_map(|container| of(container, "limits")).max().unwrap_or(0);
    ((total + sidecars).max(largest_init), limit)
}

/// Asserts that the CPU resources of a pod's spec satisfy the rules of `validatePodResources` in Kubernetes.
fn assert_valid(spec: &Json) {
    let (requests, largest_limit) = used(spec);
    let of_pod = |kind: &str| spec["resources"][kind].get("cpu").map(milli);
    let of_pod_requests = of_pod("requests");
    if let Some(pod) = of_pod_requests {
        assert!(requests <= pod, "containers request {requests}m, the pod {pod}m: {spec}");
    }
    if let Some(pod) = of_pod("limits") {
        assert!(largest_limit <= pod, "the limit of a container is {largest_limit}m, of the pod {pod}m: {spec}");
        assert!(of_pod_requests.unwrap_or(requests) <= pod, "the pod requests more than its limit: {spec}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn pod_with_resources_stays_valid(
        own in proptest::collection::vec(asked(), 0..3),
        injected in proptest::collection::vec(proptest::collection::vec(asked(), 1..3), 1..3),
        (has_requests, has_limits) in (any::<bool>(), any::<bool>()),
        spare in 0_u64..500,
    ) {
        let app = Asked { requests: Some(100), above: None, is_init: false, is_restarted: false };
        let own: Vec<_> = [app].into_iter().chain(own).collect();
        let mut pod = json!({"metadata": {}, "spec": spec("own", &own)});
        let (requests, largest_limit) = used(&pod["spec"]);
        pod["spec"]["resources"] = json!({});
        if has_requests {
            pod["spec"]["resources"]["requests"] = json!({"cpu": format!("{}m", requests + spare)});
        }
        if has_limits {
            let limits = largest_limit.max(requests + spare);
            pod["spec"]["resources"]["limits"] = json!({"cpu": format!("{limits}m")});
        }
        assert_valid(&pod["spec"]);
        let profiles: Vec<_> = injected.iter().enumerate().map(|(number, containers)| {
            let name = format!("p{number}");
            let template = json!({"spec": spec(&format!("{name}-"), containers)});
            (name, json!({"activation": "Always", "template": template}))
        }).collect();
        let profiles: Vec<_> = profiles.iter().map(|(name, spec)| (name.as_str(), spec.clone())).collect();
        let snapshot = snapshot(&profiles);
        let body = review(&pod);
        let (decided, _) = respond(&body, &snapshot);
        let first = patched(&body, &decided);
        prop_assert!(first["spec"]["containers"].as_array().unwrap().len()
            + first["spec"]["initContainers"].as_array().unwrap().len() > own.len());
        assert_valid(&first["spec"]);

        // The API server calls the webhook again if another webhook changes the pod. The second pass must not add
        // resources again.
        let body = review(&first);
        let facts = Facts { namespace: snapshot.namespace("team-a"), record_trust: RecordTrust::AsFound, ..Facts::default() };
        let decided = Review::parse(&body).unwrap().decide(Endpoint::Any, &snapshot, &facts).unwrap();
        prop_assert_eq!(patched(&body, &decided), first);
    }
}

/// Adds a sidecar that requests 100m and 64Mi, with a limit of 128Mi, to a pod with these pod-level resources. Returns
/// the resulting pod-level resources.
fn grown(resources: &Json) -> Json {
    let sidecar = json!({"name": "sidecar", "image": "s:1", "resources":
        {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}});
    let profile = json!({"activation": "Always", "template": {"spec": {"containers": [sidecar]}}});
    let app = json!({"name": "app", "image": "a:1", "resources": {"requests": {"cpu": "1"}}});
    let body = review(&json!({"metadata": {}, "spec": {"containers": [app], "resources": resources}}));
    let (decided, _) = respond(&body, &snapshot(&[("sidecar", profile)]));
    patched(&body, &decided)["spec"]["resources"].clone()
}

#[test]
fn pod_grows_by_the_share_of_its_sidecar() {
    let before = json!({"requests": {"cpu": 1.5, "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}});
    let after =
        json!({"requests": {"cpu": "1600m", "memory": "1088Mi"}, "limits": {"cpu": "2100m", "memory": "2176Mi"}});
    assert_eq!(grown(&before), after);
    assert_eq!(grown(&json!({"requests": {"hugepages-2Mi": "2Mi"}})), json!({"requests": {"hugepages-2Mi": "2Mi"}}));
    assert_eq!(grown(&json!({})), json!({}));
}
