//! Where the corpus comes from: captured reviews, the cases of the other tests, the examples of the language, and inputs
//! that once found something.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::fuzz::targets::{SEPARATOR, review, sample_pod};

/// Expressions of many kinds.
const EXPRESSIONS: &[&str] = &[
    "1 + 2 * 3 == 7",
    "object.metadata.annotations[?'example.com/list'].orValue('').split(',')",
    "containers.filter(c, c.name != 'x').map(c, c.name).join(',')",
    "firstOf([params.a, '', 'default'])",
    "merge({'a': 1}, {'b': [1, 2.5, true, null]})",
    "pairs(omitEmpty({'k': 'v', 'l': ''}))",
    "parsePairs('a=1,b=2').a",
    "toJson({'nested': [1, {'deep': 'er'}]})",
    "parseJson('{\"a\": [1, 2]}').a[1]",
    "parseYaml('a: {b: [1, &x 2, *x]}').a.b.size()",
    "image(container.image).registry",
    "dnsLabel('Some_Name ' + sha256('x'))",
    "short('a very long text that is cut', 12)",
    "quantity('1.5Gi').isGreaterThan(quantity('100Mi'))",
    "duration('1h30m') > duration('5m')",
    "params.d.all(x, x.matches('^[a-z]+$')) ? 'yes' : 'no'",
    "base64.encode(bytes('text'))",
    "'%s has %d'.format(['a', 1])",
    "r'\\d+' + \"quoted\" + '''three'''",
    "[1, 2, 3].exists_one(n, n > 2) && !('x' in params.d)",
    "item.?value.orValue('none') + string(index)",
    "toMap(params.d.map(n, [n, n.size()]))",
    "without(pick(object.metadata, ['labels', 'annotations']), ['labels'])",
    "prefixed(object.metadata.annotations, 'example.com/')",
    "jsonPatch({'a': 1}, [{'op': 'add', 'path': '/b', 'value': 2}])",
    "hasEnv(container, 'A', 'Z') || envIsRef(container, 'C') || hasMount(container, 'data')",
    "portNumber(container, 'http')",
    "numberedPorts(container.livenessProbe, container)",
    "jitter(1, 100)",
    "[[1, 2], [3]].flatten().distinct().sort().reverse()",
    "'abc'.replace('b', '').lowerAscii().substring(1)",
    "regex.replace('a1b2', '[0-9]', '<$0>')",
    "${toJson(params.e)} and ${params.b}",
];

/// A profile with what only YAML has.
const YAML: &str = r#"# a comment
activation: Always
parameters:
- {name: size, type: quantity, default: 1Gi, minimum: 1Mi, annotation: example.com/size, sources: [Pod]}
variables: [{name: long, expression: "params.size + ' of ' + string(containers.size())"}]
template:
  metadata: {annotations: &shared {example.com/a: "yes", 'example.com/b': |
        two
        lines
      }}
  spec:
    containers:
    - name: helper
      image: "helper:1"
      args: ["${variables.long}", 0x10, 1_000, ~, !!str 5, .inf, 2026-01-01]
      env: [{name: E, value: >-
          folded
          text}]
    volumes: [{name: v, emptyDir: {<<: {sizeLimit: 1Mi}}}]
"#;

/// The inputs of a target that are made, by the names of their files.
pub(crate) fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "review_bytes" => reviews(),
        "profile_yaml" => {
            let specs = specs().into_iter().map(|(name, spec, _)| (name, spec.to_string().into_bytes()));
            specs.chain([("yaml".to_owned(), YAML.as_bytes().to_vec())]).collect()
        }
        "profile_and_pod" => profiles_and_pods(),
        "expression" => {
            let named = EXPRESSIONS.iter().enumerate();
            named.map(|(number, text)| (format!("example-{number:02}"), text.as_bytes().to_vec())).collect()
        }
        "record" => records(),
        _ => Vec::new(),
    }
}

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn reviews() -> Vec<(String, Vec<u8>)> {
    let captured = sorted(&tests().join("reviews")).into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let review: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        (name, review.to_string().into_bytes())
    });
    let mut reviews: Vec<_> = captured.filter(|(_, review)| review.len() < 16 * 1024).collect();
    reviews.push(("sample".into(), review(&sample_pod())));
    for (name, _, pods) in specs() {
        if ["mesh", "vault"].iter().any(|known| name.starts_with(known)) {
            reviews.extend(pods.iter().enumerate().map(|(number, pod)| (format!("{name}-{number}"), review(pod))));
        }
    }
    reviews
}

/// The profiles of the other tests, each with its pods.
fn specs() -> Vec<(String, Json, Vec<Json>)> {
    let mut specs = Vec::new();
    for path in sorted(&tests().join("cases")) {
        let file: Json = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let pods: Vec<_> = file["cases"].as_array().unwrap().iter().map(|case| case["pod"].clone()).collect();
        for (name, spec) in file["profiles"].as_object().unwrap() {
            specs.push((format!("{stem}-{}", name.replace('/', "-")), spec.clone(), pods.clone()));
        }
    }
    specs
}

fn profiles_and_pods() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for (name, spec, pods) in specs() {
        // The first pods of each say enough; the corpus stays small.
        for (number, pod) in pods.iter().enumerate().take(3) {
            inputs.push((format!("{name}-{number}"), format!("{spec}{SEPARATOR}{pod}").into_bytes()));
        }
    }
    inputs
}

fn records() -> Vec<(String, Vec<u8>)> {
    let of = |profile: &str, added: Json, replaced: Json| json!({"version": 1, "profiles": [{"profile": profile, "revision": "1", "added": added, "replaced": replaced}]});
    let texts = [
        of("mesh", json!(["/spec/initContainers/istio-init", "/spec/containers/istio-proxy"]), json!([])),
        of("mesh", json!([]), json!([["/spec/containers/app/livenessProbe/httpGet", {"path": "/", "port": 1}]])),
        of("other", json!(["/spec/volumes/data", "/metadata/annotations/example.com~1list"]), json!([])),
        of(
            "mesh",
            json!(["", "/", "//", "/~2", "/spec/containers/x/../..", "/spec/containers/app/env/A/value/x"]),
            json!([["", 1], ["/spec", {}], ["/spec/containers", []]]),
        ),
        of("mesh", json!([1, null, {}]), json!([[], [1], ["/spec"], "x"])),
        json!({"version": 1, "profiles": {}}),
        json!({"version": 2, "profiles": []}),
        json!("text"),
    ];
    let named =
        json!([{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {"f:pillion.dev/injected": {}}}}}]);
    let managed =
        [String::new(), json!([{"manager": "m", "fieldsV1": {"f:metadata": {}}}]).to_string(), named.to_string()];
    let mut inputs = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        for (kind, managed) in managed.iter().enumerate() {
            inputs.push((format!("record-{number}-{kind}"), format!("{text}{SEPARATOR}{managed}").into_bytes()));
        }
    }
    inputs
}
