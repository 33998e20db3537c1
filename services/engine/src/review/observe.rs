//! Observers of a decision, such as tracing: they are called when a step begins, which ends the step before. The engine
//! does not read the clock for them.

/// A step of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Selects the profiles for the object.
    Match,
    /// Merges their templates, and writes the patch.
    Merge,
    /// Applies the patch to the original object, and compares the result.
    SelfCheck,
    /// Evaluates validations, on the validating path.
    Validate,
}

impl Step {
    /// The name of the span.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Merge => "merge",
            Self::SelfCheck => "self_check",
            Self::Validate => "validate",
        }
    }
}

/// Observes the steps of a decision. Each step begins at most once, in this order. A decision that ends early has none.
pub trait Observer {
    /// Called when a step begins.
    fn begins(&mut self, step: Step);
}

/// An observer that does nothing and is optimized away.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    #[inline(always)]
    fn begins(&mut self, _step: Step) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillion_api::names::InjectionLevel;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::decision::{Outcome, Reason};
    use crate::limits::Guardrails;
    use crate::profile::{ProfileName, compile};
    use crate::review::{Decided, Endpoint, Facts, Review};
    use crate::snapshot::{ProfileSet, Snapshot};

    #[derive(Default)]
    struct Steps(Vec<Step>);

    impl Observer for Steps {
        fn begins(&mut self, step: Step) {
            self.0.push(step);
        }
    }

    fn snapshot(name: &ProfileName, spec: Json) -> Snapshot {
        let profile = compile(name, &serde_json::from_value(spec).unwrap()).unwrap();
        Snapshot::new(ProfileSet::new([Arc::new(profile)]))
    }

    fn observed(endpoint: Endpoint, namespace: &str, snapshot: &Snapshot, facts: &Facts) -> (Vec<Step>, Decided) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE", "namespace": namespace,
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                    "spec": {"containers": [{"name": "app", "image": "app:1"}]}},
            },
        });
        let body = review.to_string();
        let mut steps = Steps::default();
        let review = Review::parse(body.as_bytes()).unwrap();
        let decided = review.decide_observed(endpoint, snapshot, facts, &mut steps).unwrap();
        (steps.0, decided)
    }

    fn sidecar() -> Json {
        let containers = json!([{"name": "sidecar", "image": "docker.io/library/sidecar:1"}]);
        json!({"activation": "Always", "template": {"spec": {"containers": containers}}})
    }

    #[test]
    fn the_steps_come_in_their_order_and_only_those_that_are_done() {
        const ENABLED: Endpoint = Endpoint::Level(InjectionLevel::Enabled);
        let facts = Facts::default();
        let injecting = snapshot(&ProfileName::cluster("a"), sidecar());
        let (steps, decided) = observed(ENABLED, "shop", &injecting, &facts);
        assert_eq!(
            (steps, decided.decision.outcome),
            (vec![Step::Match, Step::Merge, Step::SelfCheck], Outcome::Injected)
        );

        let (steps, _) = observed(ENABLED, "shop", &Snapshot::default(), &facts);
        assert_eq!(steps, [Step::Match, Step::Merge], "without a patch there is nothing to check");
        let (steps, decided) = observed(ENABLED, "kube-system", &injecting, &facts);
        assert_eq!((steps, decided.decision.reason), (Vec::new(), Reason::SystemNamespace));

        let validations = json!([{"expression": "false", "message": "no"}]);
        let validating =
            snapshot(&ProfileName::cluster("v"), json!({"activation": "Always", "validations": validations}));
        let endpoint = Endpoint::ValidateLevel(InjectionLevel::Enabled);
        let (steps, decided) = observed(endpoint, "shop", &validating, &facts);
        assert_eq!((steps, decided.decision.outcome), (vec![Step::Match, Step::Validate], Outcome::Denied));
    }

    #[test]
    fn guardrails_that_are_given_hold_instead_of_the_snapshots() {
        let name = ProfileName::namespaced("shop", "side");
        let snapshot = snapshot(&name, sidecar());
        let endpoint = Endpoint::Level(InjectionLevel::Enabled);
        let outcome = |facts: &Facts| observed(endpoint, "shop", &snapshot, facts).1.decision.outcome;
        assert_eq!(outcome(&Facts::default()), Outcome::Injected);
        let none = Guardrails { max_containers: 0, ..Guardrails::default() };
        let facts = Facts { guardrails: Some(Arc::new(none)), ..Facts::default() };
        assert_eq!(outcome(&facts), Outcome::Skipped);
    }
}
