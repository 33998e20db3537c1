//! Tests parameters, from the definition to the resolved value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::*;
use crate::expression::Scope;

#[derive(Default)]
struct Object {
    labels: BTreeMap<&'static str, &'static str>,
    annotations: BTreeMap<&'static str, &'static str>,
}

impl Metadata for Object {
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        self.labels.get(key).map(|value| Cow::Borrowed(*value))
    }
    fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        self.annotations.get(key).map(|value| Cow::Borrowed(*value))
    }
    fn entries(&self) -> usize {
        self.labels.len() + self.annotations.len()
    }
    fn annotations_below<'m>(&'m self, prefix: &'m str) -> Box<dyn Iterator<Item = (Cow<'m, str>, Cow<'m, str>)> + 'm> {
        let below = self.annotations.iter();
        Box::new(
            below.filter_map(move |(key, value)| {
                Some((Cow::Borrowed(key.strip_prefix(prefix)?), Cow::Borrowed(*value)))
            }),
        )
    }
}

fn annotated(annotations: &[(&'static str, &'static str)]) -> Object {
    Object { annotations: annotations.iter().copied().collect(), ..Object::default() }
}

fn parameter(mut text: Json) -> Parameter {
    text["name"] = json!("p");
    compile("spec.parameters[0]", &serde_json::from_value(text).unwrap(), &Scope::new()).unwrap()
}

fn diagnostics(mut text: Json) -> Vec<String> {
    text["name"] = json!("p");
    let diagnostics = compile("p", &serde_json::from_value(text).unwrap(), &Scope::new()).unwrap_err();
    diagnostics.iter().map(ToString::to_string).collect()
}

fn value(text: Json, annotation: &'static str) -> Result<Json, String> {
    let mut text = text;
    text["annotation"] = json!("a");
    text["sources"] = json!(["Pod"]);
    let pod = annotated(&[("a", annotation)]);
    let sources = Sources { pod: &pod, service_account: Ok(None), namespace: &Object::default() };
    let resolved =
        resolve(&parameter(text), sources, &mut Meter::new()).map_err(|invalid| String::from(invalid.message))?;
    Ok(resolved.value.unwrap().unwrap())
}

#[test]
fn parses_text_by_type() {
    for (text, annotation, expected) in [
        (json!({"type": "string"}), " as it is\n\"}", json!(" as it is\n\"}")),
        (json!({"type": "integer"}), " 42 ", json!(42)),
        (json!({"type": "number"}), "1.5", json!(1.5)),
        (json!({"type": "boolean"}), "T", json!(true)),
        (json!({"type": "boolean"}), "off", json!(false)),
        (json!({"type": "quantity"}), "1.5Gi", json!("1.5Gi")),
        (json!({"type": "duration"}), "1h30m", json!("1h30m")),
        (json!({"type": "list"}), " a, b ,,c", json!(["a", "b", "c"])),
        (json!({"type": "list"}), "", json!([])),
        (json!({"type": "list", "items": {"type": "integer"}}), "1,2", json!([1, 2])),
        (json!({"type": "list", "format": "JSON"}), "[{\"a\":1}]", json!([{"a": 1}])),
        (json!({"type": "map"}), "a=1, b=x=y", json!({"a": "1", "b": "x=y"})),
        (json!({"type": "map", "format": "JSON"}), "{\"a\":\"1\"}", json!({"a": "1"})),
        (json!({"type": "object"}), "{\"a\":[1]}", json!({"a": [1]})),
        (json!({"type": "object", "format": "YAML"}), "a: [1]\nb: x", json!({"a": [1], "b": "x"})),
    ] {
        assert_eq!(value(text.clone(), annotation), Ok(expected), "{text} {annotation:?}");
    }
}

#[test]
fn error_names_expected_type() {
    let endless: &'static str = format!("{}h", "9".repeat(400)).leak();
    for (text, annotation, expected) in [
        (json!({"type": "integer"}), "4.2", "a: expected a whole number, found \"4.2\""),
        (json!({"type": "integer"}), "99999999999999999999", "a whole number"),
        (json!({"type": "number"}), "NaN", "expected a number"),
        (json!({"type": "boolean"}), "maybe", "true or false"),
        (json!({"type": "quantity"}), "1Q", "a quantity"),
        (json!({"type": "duration"}), "5", "a duration"),
        (json!({"type": "map"}), "novalue", "key=value"),
        (json!({"type": "map", "format": "JSON"}), "{\"a\":1}", "a map with string values"),
        (json!({"type": "object"}), "[", "not JSON"),
        (json!({"type": "object"}), "[]", "an object"),
        (json!({"type": "list", "items": {"type": "string", "pattern": "^[a-z]+$"}}), "ok,N0", "does not match"),
        (json!({"type": "string", "enum": ["a", "b"]}), "c", "\"c\" is not one of \"a\", \"b\""),
        (json!({"type": "string", "pattern": "^x"}), "yx", "does not match \"^x\""),
        (json!({"type": "boolean", "pattern": "^(true|false)$"}), "yes", "\"yes\" does not match"),
        (json!({"type": "integer", "pattern": "^[1-9]"}), "007", "\"007\" does not match"),
        (json!({"type": "number", "pattern": "^[0-9.]+$"}), "1e3", "\"1e3\" does not match"),
        (json!({"type": "boolean", "pattern": "^(true|false)$"}), " true ", "\" true \" does not match"),
        (json!({"type": "number", "pattern": "^[0-9]+$"}), "5 ", "\"5 \" does not match"),
        (json!({"type": "string", "pattern": "^[a-z]+$"}), " a", "\" a\" does not match"),
        (
            json!({"type": "list", "items": {"type": "boolean", "pattern": "^(true|false)$"}}),
            "true, yes",
            "\"yes\" does not",
        ),
        (json!({"type": "integer", "maxLength": 2}), "100", "3 bytes exceed the maximum of 2"),
        (json!({"type": "quantity"}), "1e3Ki", "a quantity"),
        (json!({"type": "quantity", "maximum": "1Gi"}), "10E", "\"10E\" is more than \"1Gi\""),
        (json!({"type": "quantity", "maximum": "1Gi"}), "170141183460.9E", "is more than \"1Gi\""),
        (json!({"type": "duration"}), endless, "a duration"),
        (json!({"type": "string", "maxLength": 2}), "abc", "3 bytes exceed the maximum of 2"),
        (json!({"type": "integer", "minimum": 5}), "4", "4 is less than 5"),
        (json!({"type": "quantity", "maximum": "1Gi"}), "2Gi", "\"2Gi\" is more than \"1Gi\""),
        (json!({"type": "quantity", "minimum": "100m"}), "99999u", "\"99999u\" is less than \"100m\""),
        (json!({"type": "quantity", "minimum": 0}), "-1", "\"-1\" is less than 0"),
    ] {
        let message = value(text.clone(), annotation).unwrap_err();
        assert!(message.contains(expected), "{message:?} do not contain {expected:?}");
        assert!(message.starts_with("a: "), "{message}");
    }
}

/// Defaults, and the items of JSON and YAML lists, are typed values. The pattern is checked against their JSON text.
#[test]
fn pattern_bounds_defaults_and_items() {
    let boolean = json!({"type": "boolean", "pattern": "^(yes|no)$"});
    let port = json!({"type": "integer", "pattern": "^[1-9][0-9]{3}$"});
    let with = |kind: &Json, field: &str, value: Json| {
        let mut kind = kind.clone();
        kind[field] = value;
        kind
    };
    for (kind, default, expected) in [
        (&boolean, json!(true), "p.default: \"true\" does not match"),
        (&port, json!(1), "p.default: \"1\" does not match"),
        (&json!({"type": "number", "pattern": "^[0-9]+$"}), json!(1.5), "p.default: \"1.5\" does not match"),
        (&json!({"type": "list", "items": port}), json!([8080, 1]), "p.default: \"1\" does not match"),
        (&json!({"type": "integer", "maxLength": 2}), json!(100), "p.default: 3 bytes exceed the maximum of 2"),
        (&json!({"type": "integer", "enum": [1, 2]}), json!(3), "p.default: 3 is not one of 1, 2"),
        (&json!({"type": "quantity", "pattern": "^[0-9]+m$"}), json!(1), "p.default: \"1\" does not match"),
    ] {
        let found = diagnostics(with(kind, "default", default));
        assert!(
            found.iter().any(|diagnostic| diagnostic.starts_with(expected)),
            "{found:?} do not contain {expected:?}"
        );
    }
    parameter(with(&port, "default", json!(8080)));
    parameter(with(&json!({"type": "number", "enum": [1, 2.5]}), "default", json!(1)));

    for format in ["JSON", "YAML"] {
        let list = |items: &Json| json!({"type": "list", "format": format, "items": items});
        assert_eq!(value(list(&port), "[8080]"), Ok(json!([8080])));
        for (items, text, expected) in [
            (&port, "[8080, 1]", "\"1\" does not match"),
            (&boolean, "[true]", "\"true\" does not match"),
            (&json!({"type": "boolean", "enum": [true]}), "[false]", "false is not one of true"),
        ] {
            let message = value(list(items), text).unwrap_err();
            assert!(message.contains(expected), "{message:?} do not contain {expected:?}");
        }
    }
    // A parsed value is checked against its original text, including spaces.
    assert_eq!(value(boolean.clone(), "yes"), Ok(json!(true)));
    assert_eq!(value(json!({"type": "list", "items": boolean}), " yes , no"), Ok(json!([true, false])));
    assert_eq!(value(json!({"type": "boolean", "pattern": "^ true $"}), " true "), Ok(json!(true)));
    assert_eq!(value(json!({"type": "number", "enum": [1, 2.5]}), "1"), Ok(json!(1.0)));
}

#[test]
fn checks_trimmed_quantity() {
    let text = json!({"type": "quantity", "pattern": "^[0-9]+Mi$", "maximum": "512Mi", "clamp": true});
    assert_eq!(value(text.clone(), " 64Mi "), Ok(json!("64Mi")));
    assert_eq!(value(text.clone(), "1Gi"), Ok(json!("512Mi")));
    assert!(value(text, "1k").unwrap_err().contains("\"1k\" does not match"));
    for (written, larger) in [("1.5k", "1501"), ("2e3", "2001"), ("100m", "0.2"), ("1Gi", "1.1Gi"), ("-1", "0")] {
        let text = json!({"type": "quantity", "maximum": written});
        assert_eq!(value(text.clone(), written), Ok(json!(written)));
        assert!(value(text, larger).unwrap_err().contains("is more than"), "{written} {larger}");
    }
}

#[test]
fn clamps_number_if_declared() {
    let text = json!({"type": "integer", "minimum": 600, "maximum": 86400, "clamp": true});
    assert_eq!(value(text.clone(), "1"), Ok(json!(600)));
    assert_eq!(value(text.clone(), "100000"), Ok(json!(86400)));
    assert_eq!(value(text, "700"), Ok(json!(700)));
    let text = json!({"type": "duration", "maximum": "1m", "clamp": true});
    assert_eq!(value(text, "1h"), Ok(json!("1m")));
}

#[test]
fn empty_value_counts_or_is_skipped() {
    let text = |empty: &str| {
        let mut text =
            parameter(json!({"type": "list", "annotation": ["new", "old"], "sources": ["Pod", "Namespace"]}));
        text.empty = serde_json::from_value(json!(empty)).unwrap();
        text
    };
    let namespace = annotated(&[("new", "namespace")]);
    for (empty, pod, value) in [
        ("Counts", &[("new", "")][..], json!([])),
        ("Absent", &[("new", "")], json!(["namespace"])),
        ("Absent", &[("new", " "), ("old", "pod")], json!(["pod"])),
        ("Counts", &[("new", ""), ("old", "pod")], json!([])),
    ] {
        let pod = annotated(pod);
        let from = Sources { pod: &pod, service_account: Ok(None), namespace: &namespace };
        assert_eq!(resolve(&text(empty), from, &mut Meter::new()).unwrap().value.unwrap(), Some(value), "{empty}");
    }
}

/// Labels have priority over annotations, and the service account is between the pod and the namespace. Empty values
/// are skipped.
#[test]
fn skips_empty_value_of_every_source() {
    let text = |merge: &str| {
        parameter(json!({"type": "list", "label": "l", "annotation": "a", "empty": "Absent", "merge": merge,
            "sources": ["Pod", "ServiceAccount", "Namespace"]}))
    };
    let labelled = |label, annotations: &[_]| Object { labels: [("l", label)].into(), ..annotated(annotations) };
    let nothing = Object::default();
    let resolved = |merge: &str, pod: &Object, account: &Object, namespace: &Object| {
        let from = Sources { pod, service_account: Ok(Some(account)), namespace };
        resolve(&text(merge), from, &mut Meter::new()).unwrap().value.unwrap()
    };
    let (account, namespace) = (annotated(&[("a", "account")]), annotated(&[("a", "namespace")]));
    let (empty, blank) = (labelled("", &[("a", " ")]), annotated(&[("a", "\t")]));
    let behind = labelled("", &[("a", "pod")]);
    assert_eq!(resolved("Replace", &behind, &account, &namespace), Some(json!(["pod"])));
    assert_eq!(resolved("Replace", &empty, &account, &namespace), Some(json!(["account"])));
    assert_eq!(resolved("Replace", &empty, &blank, &namespace), Some(json!(["namespace"])));
    assert_eq!(resolved("Replace", &empty, &blank, &nothing), None);
    assert_eq!(resolved("Merge", &empty, &account, &namespace), Some(json!(["account", "namespace"])));
    assert_eq!(resolved("Merge", &behind, &blank, &namespace), Some(json!(["pod", "namespace"])));
    let from = Sources { pod: &empty, service_account: Ok(Some(&account)), namespace: &namespace };
    let expected = [(Source::ServiceAccount, "a".into()), (Source::Namespace, "a".into())];
    assert_eq!(text("Merge").found_in(from), expected);
}

#[test]
fn most_specific_allowed_source_wins() {
    let text = |sources: Json| {
        let mut text =
            parameter(json!({"type": "string", "annotation": ["new", "old"], "label": "l", "sources": ["Pod"]}));
        text.sources = serde_json::from_value(sources).unwrap();
        text
    };
    let pod = annotated(&[("old", "pod")]);
    let account = annotated(&[("new", "account"), ("old", "no")]);
    let namespace = annotated(&[("new", "namespace")]);
    let empty = Object::default();
    let resolved = |sources: Json, pod: &Object| {
        let from = Sources { pod, service_account: Ok(Some(&account)), namespace: &namespace };
        resolve(&text(sources), from, &mut Meter::new()).unwrap().value.unwrap()
    };
    assert_eq!(resolved(json!(["Namespace", "ServiceAccount", "Pod"]), &pod), Some(json!("pod")));
    assert_eq!(resolved(json!(["Namespace", "ServiceAccount", "Pod"]), &empty), Some(json!("account")));
    assert_eq!(resolved(json!(["Namespace"]), &pod), Some(json!("namespace")));
    assert_eq!(resolved(json!(["Pod"]), &empty), None);
    let labelled = Object { labels: [("l", "label")].into(), ..annotated(&[("new", "annotation")]) };
    assert_eq!(resolved(json!(["Pod"]), &labelled), Some(json!("label")));
}

#[test]
fn merges_sources_if_declared() {
    let text = json!({"type": "map", "annotationPrefix": "x/", "sources": ["Pod", "Namespace"], "merge": "Merge"});
    let pod = annotated(&[("x/a", "pod"), ("y/z", "no")]);
    let namespace = annotated(&[("x/a", "namespace"), ("x/b", "namespace")]);
    let sources = Sources { pod: &pod, service_account: Ok(None), namespace: &namespace };
    let united = resolve(&parameter(text), sources, &mut Meter::new()).unwrap().value.unwrap();
    assert_eq!(united, Some(json!({"a": "pod", "b": "namespace"})));
}

#[test]
fn joins_records_by_suffix() {
    let text = json!({"type": "records", "sources": ["Pod"], "fields": [
        {"name": "path", "annotationPrefix": "secret-", "opens": true},
        {"name": "perms", "annotationPrefix": "perms-"},
    ]});
    let pod = annotated(&[("secret-db", "kv/db"), ("perms-db", "0400"), ("secret-api", "kv/api"), ("perms-none", "x")]);
    let sources = Sources { pod: &pod, service_account: Ok(None), namespace: &Object::default() };
    let records = resolve(&parameter(text), sources, &mut Meter::new()).unwrap().value.unwrap();
    let expected = json!([{"key": "api", "path": "kv/api"}, {"key": "db", "path": "kv/db", "perms": "0400"}]);
    assert_eq!(records, Some(expected));
}

#[test]
fn compile_reports_mistakes() {
    for (text, expected) in [
        (json!({"type": "string", "pattern": "("}), "p.pattern"),
        (json!({"type": "string", "pattern": "(a{1000}){1000}"}), "p.pattern"),
        (json!({"type": "integer", "minimum": "x"}), "p.minimum"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "is empty"),
        (json!({"type": "integer", "default": "x"}), "p.default: expected a whole number"),
        (json!({"type": "string", "annotation": "a"}), "p.sources"),
        (json!({"type": "string", "sources": ["Pod"]}), "needs a key"),
        (json!({"type": "string", "annotationPrefix": "a", "sources": ["Pod"]}), "annotationPrefix must be a map"),
        (json!({"type": "records"}), "p.fields"),
        (json!({"type": "list", "items": {"type": "strng"}}), "p.items"),
        (
            json!({"type": "list", "pattern": "^a"}),
            "p.pattern: values of this type are not strings, so they cannot be checked this way (help: set it in items",
        ),
        (json!({"type": "map", "items": {"type": "string"}}), "p.items: only a list can have items"),
        (json!({"type": "list", "maxLength": 3}), "p.maxLength: values of this type are not strings"),
        (json!({"type": "map", "pattern": "^a"}), "(help: remove it, and check the value in matchConditions"),
        (json!({"type": "object", "maxLength": 3}), "p.maxLength"),
        (json!({"type": "list", "items": {"type": "list", "pattern": "^a"}}), "p.items.pattern"),
        (
            json!({"type": "integer", "empty": "Absent", "default": 1}),
            "p.empty: empty requires a single annotation or label",
        ),
        (json!({"type": "map", "annotationPrefix": "a", "sources": ["Pod"], "empty": "Counts"}), "p.empty"),
        (
            json!({"type": "records", "sources": ["Pod"], "empty": "Absent",
                "fields": [{"name": "path", "annotationPrefix": "a-", "opens": true}]}),
            "p.empty",
        ),
        (
            json!({"type": "list", "annotation": "a", "sources": ["Pod"], "items": {"type": "string", "empty": "Absent"}}),
            "p.items.empty",
        ),
        (json!({"type": "quantity", "minimum": "1e3Ki"}), "p.minimum: \"1e3Ki\" is not a valid range limit"),
    ] {
        let diagnostics = diagnostics(text.clone());
        assert!(
            diagnostics.iter().any(|diagnostic| diagnostic.contains(expected)),
            "{text}: {diagnostics:?} do not contain {expected:?}"
        );
    }
}

#[test]
fn reports_clamped_nested_items() {
    let rows = json!({"type": "list", "format": "JSON", "items": {"type": "list", "items": {"type": "integer", "maximum": 9}}});
    assert_eq!(value(rows.clone(), "[[1, 2], []]"), Ok(json!([[1, 2], []])));
    let message = value(rows.clone(), "[[1], [10]]").unwrap_err();
    assert!(message.contains("10 is more than 9"), "{message}");
    let mut clamped = rows;
    clamped["items"]["items"]["clamp"] = json!(true);
    clamped["annotation"] = json!("a");
    clamped["sources"] = json!(["Namespace"]);
    let namespace = annotated(&[("a", "[[1], [10]]")]);
    let sources = Sources { pod: &Object::default(), service_account: Ok(None), namespace: &namespace };
    let resolved = resolve(&parameter(clamped), sources, &mut Meter::new()).unwrap();
    assert_eq!(resolved.value, Ok(Some(json!([[1], [9]]))));
    let expected = "a of the namespace: [[1],[10]] is outside of the allowed range; [[1],[9]] is used";
    assert_eq!(resolved.moved, [expected.into()]);
}

#[test]
fn merges_records_by_key() {
    let text = json!({"type": "records", "sources": ["Pod", "ServiceAccount", "Namespace"], "merge": "Merge",
        "fields": [{"name": "path", "annotationPrefix": "secret-", "opens": true}]});
    let pod = annotated(&[("secret-db", "pod"), ("secret-", "without a key")]);
    let account = annotated(&[("secret-db", "account"), ("secret-api", "account")]);
    let namespace = annotated(&[("secret-ca", "namespace")]);
    let sources = Sources { pod: &pod, service_account: Ok(Some(&account)), namespace: &namespace };
    let expected =
        json!([{"key": "db", "path": "pod"}, {"key": "api", "path": "account"}, {"key": "ca", "path": "namespace"}]);
    assert_eq!(resolve(&parameter(text), sources, &mut Meter::new()).unwrap().value, Ok(Some(expected)));
}

/// The author of two annotations must not be able to block a replica with long lists.
#[test]
fn merges_long_lists_quickly() {
    let list = |first: usize| -> &'static str {
        (first..first + 30_000).map(|number| number.to_string()).collect::<Vec<_>>().join(",").leak()
    };
    let text = json!({"type": "list", "annotation": "a", "sources": ["Pod", "Namespace"], "merge": "Merge"});
    let (pod, namespace) = (annotated(&[("a", list(0))]), annotated(&[("a", list(10_000))]));
    let sources = Sources { pod: &pod, service_account: Ok(None), namespace: &namespace };
    let start = Instant::now();
    let united = resolve(&parameter(text), sources, &mut Meter::of(1 << 24)).unwrap().value.unwrap().unwrap();
    let taken = start.elapsed();
    assert_eq!((united.as_array().unwrap().len(), &united[39_999]), (40_000, &json!("39999")));
    assert!(taken < Duration::from_secs(2), "{taken:?}");
}

#[test]
fn records_need_opening_key() {
    let text = json!({"type": "records", "sources": ["Pod", "Namespace"],
        "fields": [{"name": "path", "annotationPrefix": "secret-", "opens": true}]});
    let pod = annotated(&[("secret-", "without a key")]);
    let namespace = annotated(&[("secret-ca", "namespace")]);
    let sources = Sources { pod: &pod, service_account: Ok(None), namespace: &namespace };
    let parameter = parameter(text);
    let expected = json!([{"key": "ca", "path": "namespace"}]);
    assert_eq!(resolve(&parameter, sources, &mut Meter::new()).unwrap().value, Ok(Some(expected)));
    assert_eq!(parameter.found_in(sources), [(Source::Namespace, "secret-*".into())]);
}

#[test]
fn compile_rejects_useless_records_and_formats() {
    let field = |name: &str, opens: bool| json!({"name": name, "annotationPrefix": "x-", "opens": opens});
    let records = |fields: Json| json!({"type": "records", "sources": ["Pod"], "fields": fields});
    for (text, expected) in [
        (records(json!([field("a", false)])), "no field opens a record"),
        (records(json!([field("key", true)])), "p.fields[0].name"),
        (records(json!([field("a", true), field("a", true)])), "is also used at fields[0]"),
        (json!({"type": "list", "format": "Pairs"}), "p.format"),
        (json!({"type": "object", "format": "CSV"}), "use one of JSON, YAML"),
        (json!({"type": "integer", "format": "JSON"}), "remove format"),
    ] {
        let diagnostics = diagnostics(text.clone());
        assert!(
            diagnostics.iter().any(|diagnostic| diagnostic.contains(expected)),
            "{text}: {diagnostics:?} do not contain {expected:?}"
        );
    }
}
