//! Compares upgraded pods with the other pods over the same period, and decides whether the upgraded pods are worse. It
//! does no I/O.
//!
//! A pod is bad if a container that runs as long as the pod has terminated with an error since the observation began,
//! or if the pod is not ready now. A container that terminated because of the upgrade does not count. The upgraded pods
//! are worse in two cases:
//!
//! - Fisher's exact test: suppose that the bad pods are distributed at random over both groups. The probability that at
//!   least as many of them are upgraded pods is less than 5 %, divided by the number of comparisons in the observation.
//! - At least half of the upgraded pods are bad, and none of the others. In small groups, the test alone would not find
//!   such a difference.

use jiff::Timestamp;
use pillion_engine::in_place::ContainerList;
use serde_json::Value;

use super::progress::{is_ready, name, statuses};
use super::render::read_annotation;

/// The significance level for all comparisons of one observation together. Each comparison uses this value, divided by
/// the number of comparisons.
const SIGNIFICANCE: f64 = 0.05;

/// Maximum time between a change of a container's image and the end of the old container, in seconds.
const CHANGE_SECONDS: i64 = 60;

/// A group of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) pods: u32,
    pub(super) bad: u32,
    /// What is wrong with the first bad pod.
    pub(super) example: Option<String>,
}

/// The comparison of two groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The upgraded pods are not worse.
    Good,
    /// The upgraded pods are worse, for this reason.
    Worse(String),
}

impl Group {
    /// Adds a pod. `since` is the start of the observation, in seconds since 1970.
    pub(super) fn add(&mut self, pod: &Value, since: i64) {
        self.pods += 1;
        if let Some(fault) = fault(pod, since) {
            self.bad += 1;
            let text = |field: &str| pod.pointer("/metadata").and_then(|metadata| metadata.get(field)?.as_str());
            let (namespace, name) = (text("namespace").unwrap_or_default(), text("name").unwrap_or_default());
            self.example.get_or_insert_with(|| format!("pod {namespace}/{name}: {fault}"));
        }
    }
}

/// Compares the upgraded pods with the others. `comparisons` is the number of comparisons in the whole observation.
pub(super) fn compare(upgraded: &Group, others: &Group, comparisons: u32) -> Verdict {
    let is_half = upgraded.bad > 0 && upgraded.bad * 2 >= upgraded.pods && others.bad == 0;
    if !is_half && tail_probability(upgraded, others) >= SIGNIFICANCE / f64::from(comparisons.max(1)) {
        return Verdict::Good;
    }
    let example = upgraded.example.as_deref().unwrap_or_default();
    Verdict::Worse(format!(
        "{} of {} upgraded pods are bad, and {} of {} others; {example}",
        upgraded.bad, upgraded.pods, others.bad, others.pods
    ))
}

/// Returns what is wrong with a pod; `None` if it is not bad. Ignores containers that do not run as long as their pod,
/// and those that terminated before `since`, without an error, or shortly after a change of their image.
fn fault(pod: &Value, since: i64) -> Option<String> {
    let changed = read_annotation(pod).unwrap_or_default().changed;
    for status in statuses(pod) {
        let changed = changed.get(name(status)?).copied().unwrap_or(i64::MIN);
        let ended = ["/state/terminated", "/lastState/terminated"].into_iter().find_map(|pointer| {
            let ended = status.pointer(pointer)?;
            let at = ended.get("finishedAt")?.as_str()?.parse::<Timestamp>().ok()?;
            let is_change = (changed..=changed.saturating_add(CHANGE_SECONDS)).contains(&at.as_second());
            let is_error = ended.get("exitCode").and_then(Value::as_i64) != Some(0);
            (at.as_second() > since && is_error && !is_change).then_some(ended)
        });
        let is_sidecar_or_app = is_long_running(pod, name(status)?);
        if let Some(ended) = ended.filter(|_| is_sidecar_or_app) {
            let reason = ended.get("reason").and_then(Value::as_str).unwrap_or("no reason");
            return Some(format!("container {} ended: {reason}", name(status)?));
        }
    }
    (!is_ready(pod)).then(|| "it is not ready".to_owned())
}

/// Whether a container runs as long as its pod. Other init containers end before the pod is ready.
fn is_long_running(pod: &Value, name: &str) -> bool {
    let list = ContainerList::InitContainers.field();
    let init = pod.pointer("/spec").and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten();
    let mut found = init.filter(|one| one.get("name").is_some_and(|found| found == name));
    found.next().is_none_or(|container| container.get("restartPolicy").is_some_and(|policy| policy == "Always"))
}

/// Returns the probability that the first group has at least this many bad pods, if all bad pods are distributed at
/// random.
fn tail_probability(first: &Group, second: &Group) -> f64 {
    let (pods, bad) = (first.pods + second.pods, first.bad + second.bad);
    if first.bad == 0 {
        return 1.0;
    }
    let logs: Vec<f64> = std::iter::once(0.0)
        .chain((1..=pods).scan(0.0, |sum, number| {
            *sum += f64::from(number).ln();
            Some(*sum)
        }))
        .collect();
    let log_factorial = |number: u32| logs.get(number as usize).copied().unwrap_or_default();
    let log_choose = |all: u32, some: u32| log_factorial(all) - log_factorial(some) - log_factorial(all - some);
    (first.bad..=bad.min(first.pods))
        .filter(|in_first| bad - in_first <= second.pods)
        .map(|in_first| {
            let ways = log_choose(first.pods, in_first) + log_choose(second.pods, bad - in_first);
            (ways - log_choose(pods, bad)).exp()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(bad: u32, pods: u32) -> Group {
        Group { pods, bad, example: None }
    }

    /// Returns the exact probability from counts of subsets.
    fn exact(first: &Group, second: &Group) -> f64 {
        let choose = |all: u32, some: u32| -> f64 {
            let ways = (0..some).fold(1_u128, |ways, index| ways * u128::from(all - index) / u128::from(index + 1));
            f64::from(u32::try_from(ways).unwrap())
        };
        let bad = first.bad + second.bad;
        let ways = |in_first: u32| {
            if bad - in_first > second.pods {
                0.0
            } else {
                choose(first.pods, in_first) * choose(second.pods, bad - in_first)
            }
        };
        let all: f64 = (0..=bad.min(first.pods)).map(ways).sum();
        (first.bad..=bad.min(first.pods)).map(ways).sum::<f64>() / all
    }

    #[test]
    fn probability_is_exact() {
        for pods in 1..12 {
            for others in 0..12 {
                for bad in 0..=pods {
                    for bad_others in 0..=others {
                        let (first, second) = (group(bad, pods), group(bad_others, others));
                        let difference = tail_probability(&first, &second) - exact(&first, &second);
                        assert!(difference.abs() < 1e-9, "{first:?} {second:?}: {difference}");
                    }
                }
            }
        }
    }

    #[test]
    fn worse_pods_are_told_from_noise() {
        let is_worse = |upgraded, others| compare(&upgraded, &others, 1) != Verdict::Good;
        assert!(is_worse(group(1, 1), group(0, 1)), "the only upgraded pod is bad");
        assert!(is_worse(group(1, 1), group(0, 0)), "there are no others");
        assert!(is_worse(group(5, 50), group(0, 50)));
        assert_eq!(compare(&group(5, 50), &group(0, 50), 60), Verdict::Good, "with 60 comparisons, this may be chance");
        assert_ne!(compare(&group(10, 50), &group(0, 50), 60), Verdict::Good);
        assert!(!is_worse(group(1, 50), group(0, 50)), "one bad pod may be chance");
        assert!(!is_worse(group(3, 50), group(2, 50)));
        assert!(!is_worse(group(50, 50), group(50, 50)), "the other pods are as bad");
        assert!(!is_worse(group(0, 50), group(9, 50)));
        assert!(!is_worse(group(0, 0), group(0, 0)));
        let text = Verdict::Worse("2 of 2 upgraded pods are bad, and 0 of 3 others; pod a/b: x".to_owned());
        assert_eq!(compare(&Group { example: Some("pod a/b: x".to_owned()), ..group(2, 2) }, &group(0, 3), 1), text);
    }

    #[test]
    fn ended_container_and_unready_pod_are_faults() {
        let ended = |at: &str| json!({"terminated": {"finishedAt": at, "reason": "OOMKilled"}});
        let pod = |ready: &str, app: Value, init: Value| {
            json!({
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"initContainers": [{"name": "setup"}, {"name": "shipper", "restartPolicy": "Always"}]},
                "status": {
                    "conditions": [{"type": "Ready", "status": ready}],
                    "containerStatuses": [{"name": "web", "lastState": app}],
                    "initContainerStatuses": [{"name": "setup", "state": ended("2026-11-22T00:00:09Z")},
                                              {"name": "shipper", "lastState": init}],
                },
            })
        };
        let since = "2026-11-22T00:00:05Z".parse::<Timestamp>().unwrap().as_second();
        let of = |ready: &str, app: Value, init: Value| fault(&pod(ready, app, init), since);
        assert_eq!(of("True", json!({}), json!({})), None);
        assert_eq!(of("True", ended("2026-11-22T00:00:04Z"), json!({})), None, "before the observation");
        let app = Some("container web ended: OOMKilled".to_owned());
        assert_eq!(of("True", ended("2026-11-22T00:00:06Z"), json!({})), app);
        let sidecar = Some("container shipper ended: OOMKilled".to_owned());
        assert_eq!(of("True", json!({}), ended("2026-11-22T00:00:06Z")), sidecar);
        assert_eq!(of("False", json!({}), json!({})), Some("it is not ready".to_owned()));
        let mut group = Group::default();
        group.add(&pod("False", json!({}), json!({})), since);
        assert_eq!(group, Group { pods: 1, bad: 1, example: Some("pod shop/web: it is not ready".to_owned()) });
    }

    /// In each of 60 comparisons, 2 % of all pods are bad, whatever their revision.
    #[test]
    fn noise_rarely_fails_rollout() {
        let mut state = 7_u64;
        let mut group_with_noise = |pods: u32| {
            let bad = (0..pods).filter(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.is_multiple_of(50)
            });
            group(u32::try_from(bad.count()).unwrap(), pods)
        };
        let mut fails = || (0..60).any(|_| compare(&group_with_noise(30), &group_with_noise(50), 60) != Verdict::Good);
        let failed = (0..1_000).filter(|_| fails()).count();
        assert!(failed <= 50, "{failed} of 1000 observations");
    }
}
