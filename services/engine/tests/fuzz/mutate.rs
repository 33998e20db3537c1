//! A simple mutator for tests. It changes inputs as bytes or, if they are JSON, as JSON. All changes depend on a seed,
//! so runs are reproducible without a fuzzer.

use serde_json::{Map, Value as Json, json};

use crate::fuzz::targets::SEPARATOR;

/// Strings that have a special meaning in the tested code.
const WORDS: &[&str] = &[
    "$when",
    "$forEach",
    "$value",
    "$conflict",
    "$join",
    "$position",
    "existing",
    "$prune",
    "restartPolicy",
    "Merge",
    "Keep",
    "Replace",
    "Fail",
    "First",
    "Last",
    "before",
    "after",
    "separator",
    "key",
    "prepend",
    "format",
    "valueFrom",
    "Compose",
    "JSON",
    "Auto",
    "name",
    "env",
    "value",
    "containers",
    "initContainers",
    "volumes",
    "volumeMounts",
    "ports",
    "containerPort",
    "protocol",
    "mountPath",
    "restartPolicy",
    "Always",
    "livenessProbe",
    "httpGet",
    "exec",
    "metadata",
    "annotations",
    "labels",
    "spec",
    "managedFields",
    "fieldsV1",
    "f:metadata",
    "f:annotations",
    "f:pillion.dev/injected",
    "pillion.dev/injected",
    "k:{\"name\":\"app\"}",
    "app",
    "istio-proxy",
    "setup",
    "A",
    "B",
    "~0",
    "~1",
    "~2",
    "/",
    "//",
    "/spec/containers/app/env/A",
    "/spec/containers/istio-proxy",
    "/..",
    "$(A)",
    "$$(A)",
    "$(",
    "${",
    "}",
    "${params.a}",
    "${existing}",
    "${object}",
    "null",
    "true",
    "false",
    "1e400",
    "-0",
    "0.1",
    "9223372036854775808",
    "\\u0000",
    "\\ud800",
    "\u{e9}",
    "\"",
    "\\",
    "{",
    "[",
    "]",
    ",",
    ":",
    "&a",
    "*a",
    "!!str",
    "<<: ",
    "object",
    "containers.map(c, c.name)",
    ".?a",
    "[?0]",
    ".orValue('')",
    ".filter(x, true)",
    ".matches('a*')",
    "toJson(object)",
    "parseJson('{}')",
    "quantity('1Gi')",
    "duration('1h')",
    "jitter(1, 2)",
    "omit()",
    " + ",
    " ? ",
    "'''",
    "r'",
    "b'",
    "-9223372036854775808",
    "0x",
    "1u",
    "istio",
    "sidecar.istio.io/inject",
    "version",
    "profiles",
    "profile",
    "added",
    "replaced",
    "revision",
    "mesh",
    "vault",
];

/// A seeded random number generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    pub(crate) fn of<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        &list[self.below(list.len())]
    }
}

/// Returns a random input from the corpus with one to four random changes.
pub(crate) fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = random.of(corpus).clone();
    let other = random.of(corpus);
    for _ in 0..=random.below(4) {
        input = match random.below(4) {
            0 => changed_bytes(input, other, random),
            _ => changed_json(&input, other, random).unwrap_or_else(|| changed_bytes(input, other, random)),
        };
        input.truncate(64 * 1024);
    }
    input
}

fn changed_bytes(mut input: Vec<u8>, other: &[u8], random: &mut Random) -> Vec<u8> {
    let at = random.below(input.len() + 1);
    let end = (at + random.below(12)).min(input.len());
    match random.below(6) {
        0 => drop(input.drain(at..end)),
        1 => {
            let word = random.of(WORDS);
            input.splice(at..at, word.bytes());
        }
        2 => {
            let word = random.of(WORDS);
            input.splice(at..end, word.bytes());
        }
        3 => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(80)).min(other.len());
            input.splice(at..end, other[from..to].iter().copied());
        }
        4 => {
            let piece = input[at..end].to_vec();
            let place = random.below(input.len() + 1);
            input.splice(place..place, piece);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
    input
}

/// Changes one of the JSON documents in an input. `None` if the input is not UTF-8, or if the selected part is not
/// JSON.
fn changed_json(input: &[u8], other: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(input).ok()?;
    let mut parts: Vec<String> = text.split(SEPARATOR).map(str::to_owned).collect();
    let place = random.below(parts.len());
    let part = &mut parts[place];
    let mut json: Json = serde_json::from_str(part).ok()?;
    let others = std::str::from_utf8(other).ok().into_iter().flat_map(|other| other.split(SEPARATOR));
    let others: Vec<Json> = others.filter_map(|other| serde_json::from_str(other).ok()).collect();
    // The replacement is a value of the other input, a string, a simple value, or another value of the same document.
    let replacement = match random.below(4) {
        0 if !others.is_empty() => {
            let donor = random.of(&others).clone();
            picked(&donor, random).clone()
        }
        1 => json!(*random.of(WORDS)),
        2 => random
            .of(&[
                json!(null),
                json!({}),
                json!([]),
                json!(""),
                json!(1),
                json!(true),
                json!([[]]),
                json!([{}]),
                json!(1e300),
            ])
            .clone(),
        _ => picked(&json.clone(), random).clone(),
    };
    let chosen = picked_mut(&mut json, random);
    match chosen {
        Json::Object(members) => change_map(members, replacement, random),
        Json::Array(items) => change_list(items, replacement, random),
        leaf => *leaf = replacement,
    }
    *part = json.to_string();
    Some(parts.join(SEPARATOR).into_bytes())
}

fn change_map(members: &mut Map<String, Json>, value: Json, random: &mut Random) {
    let keys: Vec<String> = members.keys().cloned().collect();
    match random.below(4) {
        0 if !keys.is_empty() => drop(members.remove(random.of(&keys))),
        1 if !keys.is_empty() => {
            let removed = members.remove(random.of(&keys)).unwrap_or_default();
            members.insert((*random.of(WORDS)).to_owned(), removed);
        }
        2 if !keys.is_empty() => drop(members.insert(random.of(&keys).clone(), value)),
        _ => drop(members.insert((*random.of(WORDS)).to_owned(), value)),
    }
}

fn change_list(items: &mut Vec<Json>, value: Json, random: &mut Random) {
    let at = random.below(items.len() + 1);
    match random.below(5) {
        0 if at < items.len() => drop(items.remove(at)),
        1 if at < items.len() => items.push(items[at].clone()),
        2 if at < items.len() => {
            let other = random.below(items.len());
            items.swap(at, other);
        }
        3 if at < items.len() => items[at] = value,
        _ => items.insert(at, value),
    }
}

/// Returns the number of values in a JSON value, including itself.
fn count(json: &Json) -> usize {
    match json {
        Json::Object(members) => 1 + members.values().map(count).sum::<usize>(),
        Json::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        _ => 1,
    }
}

fn picked<'j>(json: &'j Json, random: &mut Random) -> &'j Json {
    let mut left = random.below(count(json));
    let mut waiting = vec![json];
    while let Some(next) = waiting.pop() {
        if left == 0 {
            return next;
        }
        left -= 1;
        match next {
            Json::Object(members) => waiting.extend(members.values()),
            Json::Array(items) => waiting.extend(items),
            _ => {}
        }
    }
    json
}

fn picked_mut<'j>(json: &'j mut Json, random: &mut Random) -> &'j mut Json {
    let mut left = random.below(count(json));
    let mut at = json;
    while left > 0 {
        left -= 1;
        let children: Vec<&mut Json> = match at {
            Json::Object(members) => members.values_mut().collect(),
            Json::Array(items) => items.iter_mut().collect(),
            leaf => return leaf,
        };
        let mut next = None;
        for child in children {
            let size = count(child);
            if left < size {
                next = Some(child);
                break;
            }
            left -= size;
        }
        match next {
            Some(child) => at = child,
            None => unreachable!("the number is below the count"),
        }
    }
    at
}
