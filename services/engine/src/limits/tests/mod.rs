//! Tests the limits with pairs of pods before and after a profile.

mod pod_security;
mod reviews;
mod scope;

use serde_json::{Value as Json, json};

use super::*;
use crate::snapshot::Namespace;

/// Returns a pod that satisfies all controls of both levels.
fn pod() -> Json {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web", "team.example.com/x": "1"}},
        "spec": {
            "containers": [hardened("app")],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "serviceAccountName": "web",
        },
    })
}

/// Returns a container that satisfies all controls of both levels.
fn hardened(name: &str) -> Json {
    json!({"name": name, "image": "ghcr.io/team/app:1", "securityContext": {
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }})
}

/// Sets the value at a path, and creates missing maps. Path components that are numbers are list indices. Null is
/// treated as an absent value.
fn set(object: &mut Json, path: &str, value: Json) {
    let mut place = object;
    for token in path.split('/').skip(1) {
        let token = token.replace("~1", "/");
        place = match place {
            Json::Array(items) => {
                let index: usize = token.parse().unwrap();
                if index == items.len() {
                    items.push(Json::Null);
                }
                &mut items[index]
            }
            Json::Null => {
                *place = json!({});
                &mut place[token]
            }
            other => &mut other[token],
        };
    }
    *place = value;
}

fn with(mut object: Json, changes: &[(&str, Json)]) -> Json {
    for (path, value) in changes {
        set(&mut object, path, value.clone());
    }
    object
}

/// The inputs of the checks, except for the two pods.
#[derive(Default)]
struct Case {
    namespace: Namespace,
    guardrails: Guardrails,
    protected: Protected,
}

impl Case {
    fn at(level: &str) -> Self {
        let namespace = Namespace::new([(PodSecurityLevel::LABEL, level)], []);
        Self { namespace, ..Self::default() }
    }

    fn guarded(guardrails: Json) -> Self {
        Self { guardrails: serde_json::from_value(guardrails).unwrap(), ..Self::default() }
    }

    fn check(&self, before: &Json, after: &Json) -> Result<(), Excess> {
        let tape = |pod: &Json| OwnedTape::parse(pod.to_string()).unwrap();
        let (before, after) = (tape(before), tape(after));
        check(before.root(), after.root(), &self.protected, &self.namespace, &self.guardrails)
    }

    /// Returns the first exceeded limit and its path. `None` if no limit is exceeded.
    fn exceeded(&self, before: &Json, after: &Json) -> Option<(Limit, String)> {
        self.check(before, after).err().map(|excess| (excess.limit, excess.place))
    }
}
