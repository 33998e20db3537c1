//! The containers that profiles added to a pod, and what each of them adds to the CPU and memory of the pod.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pillion_api::names::INJECTED_ANNOTATION;

use crate::expression::Quantity;
use crate::inject::pod_resources::Use;
use crate::json::Value;
use crate::record::{Record, is_genuine};
use crate::review::RecordTrust;

/// A container that a profile added to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedContainer {
    /// The display name of the profile.
    pub profile: Box<str>,
    /// The name of the container.
    pub name: Box<str>,
    /// Whether it is an init container that ends before the other containers start.
    pub is_ending: bool,
    /// The CPU, in cores.
    pub cpu: AddedResource,
    /// The memory, in bytes.
    pub memory: AddedResource,
}

/// What a container adds to one resource of its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedResource {
    /// The increase of the pod's requests.
    pub requests: Quantity,
    /// The increase of the pod's limits. A container without a limit adds nothing.
    pub limits: Quantity,
    /// Whether the container itself has a request, or a limit, which is then also its request.
    pub is_requested: bool,
    /// Whether the container itself has a limit.
    pub is_limited: bool,
}

/// Returns the containers that profiles added to a stored pod, without those that were removed since. Empty without a
/// trusted record.
///
/// Requests and limits of a pod are computed as in the scheduler: the peak of its containers, where init containers run
/// one after the other. The added containers are counted one after the other: first those that run as long as the pod,
/// then the init containers that end. So their parts add up to the difference between the pod with and without all
/// added containers, and an init container counts only as far as it exceeds the containers that run later.
#[must_use]
pub fn added_containers(pod: Value<'_>, trust: RecordTrust) -> Vec<AddedContainer> {
    let is_trusted = trust == RecordTrust::AsFound || is_genuine(pod);
    let annotation = pod.at(&["metadata", "annotations", INJECTED_ANNOTATION]).filter(|_| is_trusted);
    let record = annotation.and_then(|annotation| Record::read(&annotation.as_str()?));
    let (Some(record), Some(spec)) = (record, pod.get("spec")) else { return Vec::new() };
    let profiles: BTreeMap<_, _> = record.added_by_profile().collect();
    let (mut running, mut ending) = (Vec::new(), Vec::new());
    for list in ["containers", "initContainers"] {
        for container in spec.get(list).into_iter().flat_map(Value::items) {
            let Some(name) = container.get("name").and_then(Value::as_str) else { continue };
            let Some(profile) = profiles.get(&*format!("/spec/{list}/{name}")) else { continue };
            let is_sidecar = container.get("restartPolicy").is_some_and(|policy| policy.is("Always"));
            let order = if list == "containers" || is_sidecar { &mut running } else { &mut ending };
            order.push((name, profile, container));
        }
    }
    let lasting = running.len();
    running.append(&mut ending);
    let mut uncounted: BTreeSet<_> = running.iter().map(|(name, ..)| name.clone()).collect();
    let mut before = PodUse::of(spec, &uncounted);
    let mut added = Vec::with_capacity(running.len());
    for (place, (name, profile, container)) in running.into_iter().enumerate() {
        uncounted.remove(&name);
        let now = PodUse::of(spec, &uncounted);
        let part = |resource: &str, now: Use, before: Use| {
            let has = |kind| container.at(&["resources", kind, resource]).is_some();
            AddedResource {
                requests: now.requests.above(before.requests),
                limits: now.own_limits.above(before.own_limits),
                is_requested: has("requests") || has("limits"),
                is_limited: has("limits"),
            }
        };
        added.push(AddedContainer {
            profile: profile.as_ref().into(),
            name: name.into(),
            is_ending: place >= lasting,
            cpu: part("cpu", now.cpu, before.cpu),
            memory: part("memory", now.memory, before.memory),
        });
        before = now;
    }
    added
}

/// The use of CPU and memory by a pod.
#[derive(Clone, Copy)]
struct PodUse {
    cpu: Use,
    memory: Use,
}

impl PodUse {
    /// Computes the use of a pod without the containers with these names.
    fn of(spec: Value<'_>, without: &BTreeSet<Cow<'_, str>>) -> Self {
        let is_counted = |container: Value<'_>| {
            container.get("name").and_then(Value::as_str).is_none_or(|name| !without.contains(&name))
        };
        Self { cpu: Use::of(spec, "cpu", is_counted), memory: Use::of(spec, "memory", is_counted) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::json::OwnedTape;

    /// Returns a stored pod with the author's container `app`, which requests 100m and 100Mi, and with these added
    /// containers.
    fn pod(added: &[(&str, &str, Json)]) -> Json {
        let mut containers =
            vec![json!({"name": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}})];
        let (mut init, mut entries) = (Vec::new(), Vec::new());
        for (profile, pointer, container) in added {
            let (list, name) = pointer.split_once('/').unwrap();
            let mut container = container.clone();
            container["name"] = json!(name);
            if list == "containers" {
                containers.push(container);
            } else {
                init.push(container);
            }
            entries.push(json!({"profile": profile, "revision": "ab", "added": [format!("/spec/{pointer}")]}));
        }
        let record = json!({"version": 1, "profiles": entries}).to_string();
        json!({
            "metadata": {"annotations": {"pillion.dev/injected": record},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": containers, "initContainers": init},
        })
    }

    fn of(pod: &Json) -> Vec<AddedContainer> {
        added_containers(OwnedTape::parse(pod.to_string()).unwrap().root(), RecordTrust::ManagedFields)
    }

    fn shown(pod: &Json) -> Vec<(String, [String; 4], [bool; 2])> {
        let one = |added: AddedContainer| {
            let AddedContainer { profile, name, is_ending, cpu, memory } = added;
            assert_eq!(is_ending, &*name == "setup");
            assert_eq!(cpu.is_limited, cpu.limits.is_more_than(Quantity::default()));
            let amounts = [cpu.requests, memory.requests, cpu.limits, memory.limits].map(|amount| amount.to_string());
            (format!("{profile}/{name}"), amounts, [cpu.is_requested, memory.is_requested])
        };
        of(pod).into_iter().map(one).collect()
    }

    fn expect(pod: &Json, expected: &[(&str, [&str; 4], [bool; 2])]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, amounts, requested)| ((*name).to_owned(), amounts.map(str::to_owned), *requested))
            .collect();
        assert_eq!(shown(pod), expected);
    }

    fn resources(requests: &Json, limits: &Json) -> Json {
        json!({"resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn container_and_native_sidecar_add_requests() {
        let mut sidecar = resources(&json!({"cpu": "20m"}), &json!({"cpu": 1, "memory": "64Mi"}));
        sidecar["restartPolicy"] = json!("Always");
        let shipper = resources(&json!({"cpu": "50m", "memory": "32Mi"}), &json!({"memory": "48Mi"}));
        let pod = pod(&[("log", "containers/shipper", shipper), ("mesh", "initContainers/proxy", sidecar)]);
        expect(
            &pod,
            &[
                ("log/shipper", ["50m", "33554432", "0", "50331648"], [true, true]),
                // The container sets no memory request, so Kubernetes uses the memory limit as the request.
                ("mesh/proxy", ["20m", "67108864", "1", "67108864"], [true, true]),
            ],
        );
    }

    #[test]
    fn init_container_adds_only_its_excess() {
        let setup = |cpu: &str| resources(&json!({"cpu": cpu, "memory": "10Mi"}), &json!({}));
        let with = |cpu: &str| pod(&[("log", "initContainers/setup", setup(cpu))]);
        expect(&with("100m"), &[("log/setup", ["0", "0", "0", "0"], [true, true])]);
        expect(&with("130m"), &[("log/setup", ["30m", "0", "0", "0"], [true, true])]);
        // Another added container raises the use of the containers that run later, so the init container adds less.
        let shipper = resources(&json!({"cpu": "20m"}), &json!({}));
        expect(
            &pod(&[("log", "initContainers/setup", setup("130m")), ("log", "containers/shipper", shipper)]),
            &[
                ("log/shipper", ["20m", "0", "0", "0"], [true, false]),
                ("log/setup", ["10m", "0", "0", "0"], [true, true]),
            ],
        );
    }

    #[test]
    fn container_without_requests_adds_nothing() {
        expect(
            &pod(&[("log", "containers/shipper", json!({}))]),
            &[("log/shipper", ["0", "0", "0", "0"], [false, false])],
        );
    }

    #[test]
    fn only_existing_containers_of_genuine_records_are_returned() {
        let mut pod = pod(&[("log", "containers/shipper", json!({}))]);
        let record = |replaced: Json| {
            let added =
                ["/spec/containers/app", "/spec/containers/gone", "/spec/containers/app/env/A", "/spec/volumes/app"];
            json!({"version": 1, "profiles": [{"profile": "log", "revision": "a", "added": added, "replaced": replaced}]})
        };
        // The profile moved the author's container from `initContainers` to `containers`.
        let moved = record(json!([["/spec/initContainers/app", {"name": "app"}]]));
        pod["metadata"]["annotations"]["pillion.dev/injected"] = json!(moved.to_string());
        assert_eq!(of(&pod), []);
        pod["metadata"]["annotations"]["pillion.dev/injected"] = json!(record(json!([])).to_string());
        assert_eq!(of(&pod).iter().map(|added| &*added.name).collect::<Vec<_>>(), ["app"]);
        pod["metadata"]["managedFields"] =
            json!([{"fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
        assert_eq!(of(&pod), []);
        let tape = OwnedTape::parse(pod.to_string()).unwrap();
        assert_eq!(added_containers(tape.root(), RecordTrust::AsFound).len(), 1);
        assert_eq!(of(&json!({"metadata": {}})), []);
    }

    /// Generates a container that is added to the pod: whether it is an init container, whether such a container is a
    /// native sidecar, and its CPU request in millicores.
    fn any_container() -> impl Strategy<Value = (bool, bool, Option<u32>)> {
        (any::<bool>(), any::<bool>(), proptest::option::of(0..500_u32))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn parts_add_up_to_pod_with_minus_without(containers in prop::collection::vec(any_container(), 0..6)) {
            let added: Vec<_> = containers
                .iter()
                .enumerate()
                .map(|(number, (is_init, is_sidecar, cpu))| {
                    let mut container = json!({});
                    if let Some(cpu) = cpu {
                        container = resources(&json!({"cpu": format!("{cpu}m")}), &json!({}));
                    }
                    if *is_init && *is_sidecar {
                        container["restartPolicy"] = json!("Always");
                    }
                    (format!("{}/c{number}", if *is_init { "initContainers" } else { "containers" }), container)
                })
                .collect();
            let added: Vec<_> = added.iter().map(|(pointer, container)| ("log", &**pointer, container.clone())).collect();
            let parts: f64 = of(&pod(&added)).iter().map(|added| added.cpu.requests.approximately()).sum();
            // A second implementation of the scheduler's formula: the maximum over all phases of the pod's start.
            let (mut running, mut peak, mut sidecars) = (100, 100, 0);
            for (is_init, is_sidecar, cpu) in &containers {
                let cpu = cpu.unwrap_or(0);
                match (is_init, is_sidecar) {
                    (false, _) => running += cpu,
                    (true, true) => { sidecars += cpu; peak = peak.max(sidecars) }
                    (true, false) => peak = peak.max(sidecars + cpu),
                }
            }
            let expected = f64::from((running + sidecars).max(peak) - 100) / 1000.0;
            prop_assert!((parts - expected).abs() < 1e-9, "{parts} instead of {expected}");
        }
    }
}
