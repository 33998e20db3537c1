//! The CRDs (`CustomResourceDefinition`) of all kinds. They are generated from the Rust types, except for that of
//! [`InjectionTrustProbe`].
//!
//! A CRD is smaller than 64 KiB, because `kubectl apply` copies the object into an annotation. Therefore the schema
//! allows any object as a template, and the engine checks the template's fields. The schema and its CEL rules check the
//! other fields, as far as a schema can. API servers evaluate them without a webhook.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::kinds::{
    ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision, ProfileStatus, plural,
};
use crate::names;
use crate::profile::ProfileSpec;
use crate::revision::RevisionSpec;
use crate::trust_probe::{self, InjectionTrustProbe};

/// A validation rule of the schema, with the message for profiles that violate it.
struct Rule {
    expression: &'static str,
    message: &'static str,
}

/// Rules for both kinds of profiles.
const COMMON_RULES: [Rule; 5] = [
    Rule {
        expression: "!has(self.optOut) || self.optOut != 'Forbidden' || !has(self.activation) || self.activation != 'Never'",
        message: "a profile with activation Never is not applied, so optOut Forbidden has no meaning",
    },
    Rule {
        expression: "!has(self.requestedBy) || has(self.requestedBy.annotation) || has(self.requestedBy.label)",
        message: "requestedBy needs an annotation or a label",
    },
    Rule {
        expression: "!has(self.extends) || self.extends.name.size() > 0",
        message: "extends needs the name of a cluster profile",
    },
    Rule {
        expression: "has(self.extends) || !has(self.parameters) || self.parameters.all(p, has(p.type))",
        message: "a parameter needs a type; only a profile that extends another one may leave it out",
    },
    Rule {
        expression: "has(self.template) || has(self.containerPatches) || has(self.validations) || has(self.extends) || (has(self.activation) && self.activation == 'Never')",
        message: "a profile needs a template, containerPatches, validations or extends: otherwise it does nothing; one that exists only to be extended needs activation Never",
    },
];

/// Rules for namespaced profiles. They reject fields and values that only cluster profiles may use.
const NAMESPACED_RULES: [Rule; 4] = [
    Rule {
        expression: "!has(self.namespaceSelector)",
        message: "namespaceSelector is for ClusterInjectionProfiles; this profile applies only to its own namespace",
    },
    Rule {
        expression: "!has(self.optOut) || self.optOut != 'Forbidden'",
        message: "optOut Forbidden is for ClusterInjectionProfiles",
    },
    Rule { expression: "!has(self.lookups)", message: "lookups are for ClusterInjectionProfiles" },
    Rule {
        expression: "!has(self.target) || (self.target.group == '' && self.target.resources.all(r, r in ['pods', 'pods/ephemeralcontainers', 'pods/resize']))",
        message: "a target other than pods is for ClusterInjectionProfiles",
    },
];

/// The message for rejected updates of a revision.
const IMMUTABLE: &str = "revisions are immutable; edit the profile, and the controller creates a new revision";

/// Returns all CRDs, in the order in which they are printed.
///
/// # Errors
/// Fails if a generated schema does not match Kubernetes' type. The tests of this crate make sure that this does not
/// happen.
pub fn definitions() -> Result<[CustomResourceDefinition; 5], serde_json::Error> {
    Ok([cluster()?, namespaced()?, cluster_revision()?, namespaced_revision()?, injection_trust_probe()?])
}

fn cluster() -> Result<CustomResourceDefinition, serde_json::Error> {
    let names = json!({
        "kind": ClusterInjectionProfile::KIND,
        "plural": plural::CLUSTER,
        "singular": "clusterinjectionprofile",
        "shortNames": ["ciprof"],
        "categories": ["pillion"],
    });
    profile(&names, "Cluster", &COMMON_RULES.iter().collect::<Vec<_>>())
}

fn namespaced() -> Result<CustomResourceDefinition, serde_json::Error> {
    let names = json!({
        "kind": InjectionProfile::KIND,
        "plural": plural::NAMESPACED,
        "singular": "injectionprofile",
        // "ip" is the short name of IPAddress.
        "shortNames": ["iprof"],
        "categories": ["pillion"],
    });
    let rules: Vec<_> = COMMON_RULES.iter().chain(&NAMESPACED_RULES).collect();
    profile(&names, "Namespaced", &rules)
}

fn cluster_revision() -> Result<CustomResourceDefinition, serde_json::Error> {
    let names = json!({
        "kind": ClusterProfileRevision::KIND,
        "plural": plural::CLUSTER_REVISION,
        "singular": "clusterprofilerevision",
        "shortNames": ["ciprev"],
    });
    revision(&names, "Cluster")
}

fn namespaced_revision() -> Result<CustomResourceDefinition, serde_json::Error> {
    let names = json!({
        "kind": ProfileRevision::KIND,
        "plural": plural::NAMESPACED_REVISION,
        "singular": "profilerevision",
        "shortNames": ["iprev"],
    });
    revision(&names, "Namespaced")
}

/// Returns the CRD of a kind of revision. It has no category, so `kubectl get pillion` lists only profiles.
fn revision(names: &Value, scope: &str) -> Result<CustomResourceDefinition, serde_json::Error> {
    let spec = validated::<RevisionSpec>(json!([{"rule": "self == oldSelf", "message": IMMUTABLE}]));
    let columns = json!([
        column("Profile", "string", ".spec.profile", 0),
        column("Revision", "string", ".spec.revision", 0),
        column("Generation", "integer", ".spec.generation", 0),
        column("Bounds", "string", ".spec.bounds", 1),
        column("Age", "date", ".metadata.creationTimestamp", 0),
    ]);
    definition(names, scope, json!({"additionalPrinterColumns": columns, "schema": with_spec(&json!({"spec": spec}))}))
}

/// Returns the CRD for a kind of profile, with the given validation rules.
fn profile(names: &Value, scope: &str, rules: &[&Rule]) -> Result<CustomResourceDefinition, serde_json::Error> {
    let rules = rules.iter().map(|rule| json!({"rule": rule.expression, "message": rule.message})).collect();
    let spec = validated::<ProfileSpec>(rules);
    let columns = json!([
        column("Activation", "string", ".status.activation", 0),
        column("Extends", "string", ".spec.extends.name", 0),
        column("Order", "integer", ".spec.order", 1),
        column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", 0),
        column("State", "string", ".status.conditions[?(@.type==\"Ready\")].reason", 0),
        column("Revision", "string", ".status.revision", 0),
        column("Accepted", "string", ".status.conditions[?(@.type==\"Accepted\")].status", 1),
        column("Valid", "string", ".status.conditions[?(@.type==\"Valid\")].status", 1),
        column("Namespaces", "integer", ".status.namespacesMatched", 1),
        column("Description", "string", ".spec.description", 1),
        column("Age", "date", ".metadata.creationTimestamp", 0),
    ]);
    let schema = with_spec(&json!({"spec": spec, "status": structural::<ProfileStatus>()}));
    let version = json!({"subresources": {"status": {}}, "additionalPrinterColumns": columns, "schema": schema});
    definition(names, scope, version)
}

fn column(name: &str, kind: &str, path: &str, priority: i32) -> Value {
    json!({"name": name, "type": kind, "jsonPath": path, "priority": priority})
}

/// Returns the schema of an object with these properties, of which only `spec` is required.
fn with_spec(properties: &Value) -> Value {
    json!({"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": properties}})
}

/// Returns the schema of `T`, with the given validation rules.
fn validated<T: schemars::JsonSchema>(rules: Value) -> Value {
    let mut schema = structural::<T>();
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-kubernetes-validations".to_owned(), rules);
    }
    schema
}

/// Returns the CRD of the trust probe: an object that only has a name.
fn injection_trust_probe() -> Result<CustomResourceDefinition, serde_json::Error> {
    let names = json!({
        "kind": InjectionTrustProbe::KIND,
        "listKind": "InjectionTrustProbeList",
        "plural": trust_probe::PLURAL,
        "singular": "injectiontrustprobe",
    });
    let schema = json!({
        "type": "object",
        "description": "Created by the controller, only by dry run, to find out which CA an API server trusts.",
    });
    definition(&names, "Cluster", json!({"schema": {"openAPIV3Schema": schema}}))
}

/// Returns a CRD in Pillion's API group with one version. `version` must contain the schema.
fn definition(names: &Value, scope: &str, mut version: Value) -> Result<CustomResourceDefinition, serde_json::Error> {
    if let Some(version) = version.as_object_mut() {
        version.extend([("served".to_owned(), true.into()), ("storage".to_owned(), true.into())]);
        version.insert("name".to_owned(), names::VERSION.into());
    }
    let plural = names.get("plural").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", names::GROUP)},
        "spec": {"group": names::GROUP, "scope": scope, "names": names, "versions": [version]},
    }))
}

/// Returns the structural schema of `T`, without references, `$schema` and title.
fn structural<T: schemars::JsonSchema>() -> Value {
    let schema = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(kube::core::schema::StructuralSchemaRewriter)
        .with_transform(kube::core::schema::OptionalEnum)
        .into_generator()
        .into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    tidy(&mut schema);
    schema
}

/// Removes the titles and null defaults, which only make the CRD larger, and the formats of unsigned integers.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("title").is_some_and(Value::is_string) {
                fields.remove("title");
            }
            // OpenAPI has no formats for unsigned integers, and kubectl warns about them.
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                fields.remove("format");
            }
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Client-side apply copies the whole object into an annotation, and Kubernetes limits all annotations of an object
    /// to 256 KiB in total. 64 KiB leaves space for other annotations and for growth.
    const LIMIT: usize = 64 * 1024;

    #[test]
    fn crds_fit_into_client_side_apply() {
        for definition in definitions().unwrap() {
            let size = serde_json::to_string(&definition).unwrap().len();
            assert!(size < LIMIT, "{:?} is {size} bytes", definition.metadata.name);
        }
    }

    #[test]
    fn schema_has_no_references_or_nulls() {
        for definition in definitions().unwrap() {
            let text = serde_json::to_string(&definition).unwrap();
            for forbidden in ["$ref", "$schema", "anyOf", "oneOf", "\"null\"", ":null"] {
                assert!(!text.contains(forbidden), "{forbidden} in {text}");
            }
        }
    }

    #[test]
    fn only_namespaced_kind_rejects_platform_fields() {
        let [cluster, namespaced, ..] = definitions().unwrap().map(|d| serde_json::to_string(&d).unwrap());
        assert!(!cluster.contains("!has(self.namespaceSelector)"));
        assert!(namespaced.contains("!has(self.namespaceSelector)"));
    }
}
