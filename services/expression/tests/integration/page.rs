//! Tests docs/expressions.md: its examples are correct, and it describes all functions.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use pillion_expression::{Outcome, signatures};
use serde_json::Value as Json;

use crate::Environment;

const PAGE: &str = include_str!("../../../../docs/expressions.md");

fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    PAGE.split("\n```").skip(1).step_by(2).filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

#[test]
fn examples_of_page_have_stated_results() {
    let environment = Environment::new(serde_json::from_str(blocks("json").next().unwrap()).unwrap());
    let mut wrong = String::new();
    let mut count = 0;
    for line in blocks("cel").flat_map(str::lines) {
        count += 1;
        let (source, expected) = line.rsplit_once("// ").unwrap_or_else(|| panic!("{line} has no result"));
        let found = match environment.run(source) {
            Ok(Outcome::Value(value)) => format!("=> {value}"),
            Ok(Outcome::Absent) => "=> absent".to_owned(),
            Err(error) => format!("error: {error}"),
        };
        let expected = match expected.strip_prefix("=> ").filter(|result| *result != "absent") {
            Some(result) => format!("=> {}", serde_json::from_str::<Json>(result).unwrap()),
            None => expected.to_owned(),
        };
        if found != expected {
            writeln!(wrong, "{}\n  expected {expected}\n  found    {found}", source.trim()).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 120, "{count} examples");
}

#[test]
fn page_describes_every_function() {
    let examples: String = blocks("cel").collect();
    let mut missing = BTreeSet::new();
    for signature in signatures() {
        let name = signature.split('(').next().unwrap();
        let name = name.rsplit('.').next().unwrap();
        if !PAGE.contains(&format!("`{signature}`")) {
            missing.insert(format!("{signature} is not described"));
        }
        if !examples.contains(&format!("{name}(")) {
            missing.insert(format!("{signature} has no example"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
