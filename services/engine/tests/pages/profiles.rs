//! docs/profiles.md: each example is a case. Its blocks are, in this order: `profile`s; once or more a `pod` with what is known
//! beside it (`namespace`, `facts`) before it, and its `result` and what its author is `told` behind it; what `others`
//! make of the result, and what it is `then`.

use serde_json::{Value as Json, json};

use super::{File, run, whole};

const PAGE: &str = include_str!("../../../../docs/profiles.md");

/// The fenced blocks: the words behind the fence, the line, and the text.
fn blocks() -> Vec<(&'static str, usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = PAGE.lines().enumerate();
    while let Some((line, text)) = lines.next() {
        let Some(words) = text.strip_prefix("```") else { continue };
        let body: Vec<_> = lines.by_ref().map(|(_, text)| text).take_while(|text| *text != "```").collect();
        blocks.push((words, line + 1, body.join("\n")));
    }
    blocks
}

/// An example of the page, as a file of cases.
#[derive(Default)]
struct Example {
    profiles: serde_json::Map<String, Json>,
    cluster: Json,
    /// What is known beside the next pod.
    facts: serde_json::Map<String, Json>,
    cases: Vec<Json>,
}

impl Example {
    fn profile(&mut self, profile: &Json) {
        let (name, spec) = match profile.get("spec") {
            Some(spec) => (profile["metadata"]["name"].as_str().unwrap(), spec.clone()),
            None => ("p", profile.clone()),
        };
        let mut spec = spec;
        if profile.get("spec").is_none() {
            spec.as_object_mut().unwrap().entry("activation").or_insert_with(|| "Always".into());
        }
        assert!(self.profiles.insert(name.to_owned(), spec).is_none(), "two profiles {name}");
    }

    /// Says something of the pod before.
    fn of_pod(&mut self, line: usize, name: &str, value: Json) {
        let case = self.cases.last_mut().unwrap_or_else(|| panic!("line {line}: there is no pod before it"));
        assert!(case.get(name).is_none(), "line {line}: the pod before it has a {name} already");
        case[name] = value;
    }

    fn file(self) -> File {
        for case in &self.cases {
            let shows = ["result", "told"].into_iter().any(|name| case.get(name).is_some());
            assert!(shows, "{}: nothing says what becomes of it", case["name"]);
        }
        let Self { profiles, cluster, cases, .. } = self;
        serde_json::from_value(whole(json!({"profiles": profiles, "cluster": cluster, "cases": cases}))).unwrap()
    }
}

/// The examples of the page.
fn examples() -> Vec<(String, File)> {
    let mut examples: Vec<(String, Example)> = Vec::new();
    for (words, line, text) in blocks() {
        let value = || -> Json { serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("line {line}: {error}")) };
        if words == "yaml profile" {
            // A profile behind a pod begins the next example.
            if examples.last().is_none_or(|(_, example)| !example.cases.is_empty()) {
                examples.push((format!("docs/profiles.md:{line}"), Example::default()));
            }
            examples.last_mut().unwrap().1.profile(&value());
            continue;
        }
        let (_, example) = examples.last_mut().unwrap_or_else(|| panic!("line {line}: there is no profile before it"));
        match words {
            "yaml namespace" => drop(example.facts.insert("namespace".to_owned(), value())),
            "yaml facts" => {
                let Json::Object(mut facts) = value() else { panic!("line {line}: facts are a map") };
                example.cluster = facts.remove("cluster").unwrap_or_default();
                example.facts.extend(facts);
            }
            "yaml pod" => {
                let mut case = Json::Object(std::mem::take(&mut example.facts));
                case["name"] = format!("line {line}").into();
                case["pod"] = value();
                example.cases.push(case);
            }
            "yaml result" => example.of_pod(line, "result", value()),
            "yaml others" => example.of_pod(line, "foreign", value()),
            "yaml then" => example.of_pod(line, "then", value()),
            "text told" => example.of_pod(line, "told", text.lines().collect::<Vec<_>>().into()),
            _ => panic!("line {line}: a block {words:?} is run by nothing"),
        }
    }
    examples.into_iter().map(|(name, example)| (name, example.file())).collect()
}

#[test]
fn every_example_is_as_it_says() {
    let count = run(&examples());
    assert!(count >= 20, "only {count} examples were found");
}
