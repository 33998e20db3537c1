//! docs/primitives.md: each row names existing cases and tests, and each case of `primitives` has a row.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{File, files};

const PAGE: &str = include_str!("../../../../docs/primitives.md");

/// The rows of all tables: the primitive's number, and the cases and tests that show it.
fn rows() -> Vec<(&'static str, &'static str)> {
    let rows = PAGE.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let is_row = cells.len() == 5 && cells[0].len() > 1 && cells[0].as_bytes()[1].is_ascii_digit();
        is_row.then(|| (cells[0], cells[4]))
    });
    rows.collect()
}

/// Whether a test of this name stands in a file of the repository.
fn is_test(file: &str, name: &str) -> bool {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.contains(&format!("fn {name}("))
}

#[test]
fn rows_name_existing_cases_and_tests() {
    let cases = |(name, file): (String, File)| {
        let name = name.split('#').next().unwrap().to_owned();
        file.cases.into_iter().map(move |case| (name.clone(), case.name))
    };
    let cases: BTreeSet<_> = ["cases", "primitives"].into_iter().flat_map(files).flat_map(cases).collect();
    let mut mentioned = BTreeSet::new();
    for (row, shown) in rows() {
        for shown in shown.split(';').map(str::trim).filter(|shown| !shown.is_empty()) {
            let (file, name) = shown.strip_prefix('`').and_then(|shown| shown.split_once("` ")).unwrap_or_else(|| {
                panic!("{row}: expected a file and a case or test, found {shown:?}");
            });
            if file.contains('/') {
                assert!(is_test(file, name), "{row}: {file} has no test {name}");
            } else {
                let case = (file.to_owned(), name.to_owned());
                assert!(cases.contains(&case), "{row}: {file} has no case {name:?}");
                mentioned.insert(case);
            }
        }
    }
    // A case that no row needs belongs to the engine's own cases.
    let primitives = files("primitives").into_iter().flat_map(|(name, file)| {
        let name = name.split('#').next().unwrap().to_owned();
        file.cases.into_iter().map(move |case| (name.clone(), case.name)).collect::<Vec<_>>()
    });
    let unnamed: Vec<_> = primitives.filter(|case| !mentioned.contains(case)).collect();
    assert!(unnamed.is_empty(), "no row names {unnamed:#?}");
}
