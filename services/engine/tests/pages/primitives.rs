//! docs/primitives.md: every row is there, and what it names shows it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{File, files};

const PAGE: &str = include_str!("../../../../docs/primitives.md");

/// What a row has instead of a case where a profile cannot say it.
const NOT: &str = "[not](profiles.md#not-expressible-and-why)";

/// How many rows each table has, by its letter.
const TABLES: [(&str, usize); 10] =
    [("A", 19), ("B", 17), ("C", 20), ("D", 6), ("E", 11), ("F", 10), ("G", 14), ("H", 7), ("I", 8), ("J", 7)];

/// The rows of all tables: which it is, how it is written, and what shows it.
fn rows() -> Vec<(&'static str, &'static str, &'static str)> {
    let rows = PAGE.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let is_row = cells.len() == 5 && cells[0].len() > 1 && cells[0].as_bytes()[1].is_ascii_digit();
        is_row.then(|| (cells[0], cells[3], cells[4]))
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
fn every_row_is_there_and_is_shown() {
    let names: Vec<_> = rows().into_iter().map(|(name, ..)| name.to_owned()).collect();
    let expected: Vec<_> =
        TABLES.iter().flat_map(|(letter, rows)| (1..=*rows).map(move |row| format!("{letter}{row}"))).collect();
    assert_eq!(names, expected);
    let cases = |(name, file): (String, File)| {
        let name = name.split('#').next().unwrap().to_owned();
        file.cases.into_iter().map(move |case| (name.clone(), case.name))
    };
    let cases: BTreeSet<_> = ["cases", "primitives"].into_iter().flat_map(files).flat_map(cases).collect();
    let mut mentioned = BTreeSet::new();
    for (row, how, shown) in rows() {
        assert_eq!(shown.is_empty(), how.starts_with(NOT), "{row} is shown, or it is said why not");
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
    // What no row needs is a case of the engine, and stands there.
    let primitives = files("primitives").into_iter().flat_map(|(name, file)| {
        let name = name.split('#').next().unwrap().to_owned();
        file.cases.into_iter().map(move |case| (name.clone(), case.name)).collect::<Vec<_>>()
    });
    let unnamed: Vec<_> = primitives.filter(|case| !mentioned.contains(case)).collect();
    assert!(unnamed.is_empty(), "no row names {unnamed:#?}");
}
