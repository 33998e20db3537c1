//! Detects request keys whose value may request either of two profiles.

use pillion_api::profile::{Activation, OptOut};

use super::CompiledProfile;

impl CompiledProfile {
    /// Returns the key whose truthy values may request either of two profiles of one scope, so that a pod gets neither.
    /// Also returns `None` if their namespace selectors differ: no namespace may match both.
    #[must_use]
    pub fn contends_with(&self, other: &Self) -> Option<&str> {
        let is_default =
            |profile: &Self| profile.activation != Activation::Never && profile.opt_out != OptOut::Forbidden;
        if self.name == other.name
            || self.name.namespace != other.name.namespace
            || !is_default(self)
            || !is_default(other)
            || self.target() != other.target()
        {
            return None;
        }
        let (one, two) = (&self.namespace_selector, &other.namespace_selector);
        if one.is_some() && two.is_some() && one != two {
            return None;
        }
        let (one, two) = (self.request.as_ref()?, other.request.as_ref()?);
        if !one.truthy.iter().any(|word| two.truthy.contains(word)) {
            return None;
        }
        let keys = [(&one.label, &two.label), (&one.annotation, &two.annotation)];
        keys.into_iter().filter(|(one, two)| one == two).find_map(|(key, _)| key.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::profile::{ProfileName, compile};

    fn profile(name: &ProfileName, changes: &Value) -> CompiledProfile {
        let mut spec = json!({"request": {"annotation": "example.com/inject"},
                              "template": {"metadata": {"labels": {"a": "b"}}}});
        json_patch::merge(&mut spec, changes);
        compile(name, &serde_json::from_value(spec).unwrap()).unwrap()
    }

    #[test]
    fn two_of_one_key_contend_where_they_are_certain_to_meet() {
        let (a, b) = (ProfileName::cluster("a"), ProfileName::cluster("b"));
        let one = profile(&a, &json!({}));
        let selector = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
        for (changes, expected) in [
            (json!({}), Some("example.com/inject")),
            (selector("red"), Some("example.com/inject")),
            (json!({"request": {"annotation": "example.com/other"}}), None),
            (json!({"request": {"annotation": null, "label": "example.com/inject"}}), None),
            (json!({"request": {"truthy": ["please"]}}), None),
            (json!({"request": null}), None),
            (json!({"activation": "Never"}), None),
            (json!({"optOut": "Forbidden", "onError": "Deny"}), None),
        ] {
            assert_eq!(one.contends_with(&profile(&b, &changes)), expected, "{changes}");
            assert_eq!(profile(&b, &changes).contends_with(&one), expected, "{changes}");
        }
        assert_eq!(one.contends_with(&one), None);
        assert_eq!(one.contends_with(&profile(&ProfileName::namespaced("shop", "b"), &json!({}))), None);
        let (red, blue) = (profile(&a, &selector("red")), profile(&b, &selector("blue")));
        assert_eq!(red.contends_with(&blue), None, "a namespace has one team");
    }
}
