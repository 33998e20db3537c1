//! Writes the seeds of the fuzz corpus: captured reviews, the engine's test cases, the expression examples and
//! injection records. Inputs that the fuzzer found are in the same folders and stay unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value as Json, json};

use crate::targets::{SEPARATOR, TARGETS, review, sample_pod};

/// The name and content of each seed.
type Seeds = Vec<(String, Vec<u8>)>;

/// Expressions that cover many operators and functions.
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

/// A profile that uses YAML features that JSON lacks.
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

/// Writes the seeds of each target to its folder.
pub(crate) fn write(corpus: &Path) -> Result<()> {
    for (target, _) in TARGETS {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        for (name, input) in seeds(target)? {
            crate::write(folder.join(name), input)?;
        }
    }
    Ok(())
}

/// Returns the seeds of a fuzz target.
fn seeds(target: &str) -> Result<Seeds> {
    Ok(match target {
        "review_bytes" => reviews()?,
        "profile_yaml" => {
            let specs = specs()?.into_iter().map(|(name, spec, _)| (name, spec.to_string().into_bytes()));
            specs.chain([("yaml".to_owned(), YAML.as_bytes().to_vec())]).collect()
        }
        "profile_and_pod" => profiles_and_pods()?,
        "expression" => {
            let named = EXPRESSIONS.iter().enumerate();
            named.map(|(number, text)| (format!("example-{number:02}"), text.as_bytes().to_vec())).collect()
        }
        "record" => records(),
        _ => anyhow::bail!("the target {target} has no seeds"),
    })
}

/// Returns all files in this folder below `services/engine/tests`. Each has its name without the extension, and its
/// content.
fn files(folder: &str) -> Result<Vec<(String, String)>> {
    let folder = Path::new("services/engine/tests").join(folder);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, crate::read(&path)?))
    };
    paths.into_iter().map(read).collect()
}

fn reviews() -> Result<Seeds> {
    let mut reviews = Vec::new();
    for (name, text) in files("reviews")? {
        let review = serde_json::from_str::<Json>(&text).with_context(|| name.clone())?.to_string().into_bytes();
        if review.len() < 16 * 1024 {
            reviews.push((name, review));
        }
    }
    reviews.push(("sample".into(), review(&sample_pod())));
    for (name, _, pods) in specs()? {
        if ["mesh", "vault"].iter().any(|known| name.starts_with(known)) {
            reviews.extend(pods.iter().enumerate().map(|(number, pod)| (format!("{name}-{number}"), review(pod))));
        }
    }
    Ok(reviews)
}

/// Returns the profiles of the engine's test cases: name, spec and pods.
fn specs() -> Result<Vec<(String, Json, Vec<Json>)>> {
    let mut specs = Vec::new();
    for (stem, text) in files("cases")? {
        let file: Json = serde_saphyr::from_str(&text).with_context(|| stem.clone())?;
        let cases = file.get("cases").and_then(Json::as_array).with_context(|| format!("{stem} has no cases"))?;
        let pods: Vec<_> = cases.iter().map(|case| case.get("pod").cloned().unwrap_or_default()).collect();
        for (name, spec) in
            file.get("profiles").and_then(Json::as_object).with_context(|| format!("{stem} has no profiles"))?
        {
            specs.push((format!("{stem}-{}", name.replace('/', "-")), spec.clone(), pods.clone()));
        }
    }
    Ok(specs)
}

fn profiles_and_pods() -> Result<Seeds> {
    let mut inputs = Vec::new();
    for (name, spec, pods) in specs()? {
        // Uses only the first pods of each profile, to keep the corpus small.
        for (number, pod) in pods.iter().enumerate().take(3) {
            inputs.push((format!("{name}-{number}"), format!("{spec}{SEPARATOR}{pod}").into_bytes()));
        }
    }
    Ok(inputs)
}

fn records() -> Seeds {
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
