//! What the chart has of the rest of the repository, and what its page says of its values: neither drifts.
//! `PILLION_WRITE=1` (`just chart`) writes both anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::chart::profiles::source;
use crate::chart::{chart, documents, repository, shipped};

/// What the chart has of the rest of the repository, by its path in the chart.
fn copies() -> BTreeMap<PathBuf, String> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut copies = BTreeMap::new();
    for folder in shipped() {
        copies.insert(PathBuf::from(format!("files/profiles/{folder}.yaml")), read(&source(&folder)));
    }
    let crds = assert_cmd::Command::new(env!("CARGO_BIN_EXE_pillion")).arg("crds").output().unwrap();
    copies.insert("crds/pillion.dev.yaml".into(), String::from_utf8(crds.stdout).unwrap());
    for (from, extension, to) in
        [("dashboards", "json", "files/dashboards"), ("dashboards/rules", "yaml", "files/rules")]
    {
        let Ok(files) = fs::read_dir(repository().join(from)) else { continue };
        for file in files.map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|found| found == extension) {
                copies.insert(Path::new(to).join(file.file_name().unwrap()), read(&file));
            }
        }
    }
    copies
}

/// The files below a folder of the chart.
fn files(folder: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, into);
        } else {
            into.insert(entry.strip_prefix(chart()).unwrap().to_owned());
        }
    }
}

#[test]
fn the_copies_are_those_of_the_repository() {
    let copies = copies();
    let mut found = BTreeSet::new();
    for folder in ["files", "crds"] {
        files(&chart().join(folder), &mut found);
    }
    if std::env::var_os("PILLION_WRITE").is_some() {
        for file in found.iter().filter(|file| !copies.contains_key(*file)) {
            fs::remove_file(chart().join(file)).unwrap();
        }
        for (file, text) in &copies {
            let path = chart().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        return;
    }
    assert_eq!(found, copies.keys().cloned().collect(), "run: just chart");
    for (file, text) in copies {
        assert!(fs::read_to_string(chart().join(&file)).unwrap() == text, "{}: run: just chart", file.display());
    }
}

/// The keys that are described, with their descriptions: a comment that begins with `# --` stands above each.
fn described(values: &str) -> Vec<(String, String)> {
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::<(usize, String)>::new(), None::<String>);
    for line in values.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some(text) = bare.strip_prefix("# -- ") {
            comment = Some(text.to_owned());
        } else if let (Some(text), Some(comment)) = (bare.strip_prefix("# "), &mut comment) {
            write!(comment, " {text}").unwrap();
        } else if let Some((key, _)) = bare.split_once(':').filter(|(key, _)| key.chars().all(char::is_alphanumeric)) {
            path.retain(|(above, _)| *above < indent);
            path.push((indent, key.to_owned()));
            if let Some(comment) = comment.take() {
                rows.push((path.iter().map(|(_, key)| &**key).collect::<Vec<_>>().join("."), comment));
            }
        }
    }
    rows
}

/// The paths of all values that are no maps with keys.
fn leaves(value: &Json, path: &str, into: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                leaves(value, format!("{path}.{key}").trim_start_matches('.'), into);
            }
        }
        None => into.push(path.to_owned()),
    }
}

#[test]
fn the_page_has_every_value_and_the_schema_too() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values = documents(&text).remove(0);
    let rows = described(&text);
    let mut all = Vec::new();
    leaves(&values, "", &mut all);
    let schema: Json = serde_json::from_slice(&fs::read(chart().join("values.schema.json")).unwrap()).unwrap();
    for leaf in all {
        let is_under = |row: &str| leaf == row || leaf.strip_prefix(row).is_some_and(|rest| rest.starts_with('.'));
        assert!(rows.iter().any(|(row, _)| is_under(row)), "{leaf} has no description in values.yaml");
    }
    let mut table = "\n| key | default | what it is |\n|---|---|---|\n".to_owned();
    for (row, description) in rows {
        let pointer = format!("/{}", row.replace('.', "/"));
        let value = values.pointer(&pointer).unwrap_or_else(|| panic!("{row} is no value"));
        let schema_of = format!("/properties/{}", row.replace('.', "/properties/"));
        assert!(schema.pointer(&schema_of).is_some(), "{row} is not in values.schema.json");
        writeln!(table, "| `{row}` | `{value}` | {} |", description.replace('|', "\\|")).unwrap();
    }
    table.push('\n');
    let file = chart().join("README.md");
    let page = fs::read_to_string(&file).unwrap();
    let (begin, end) = ("<!-- values -->\n", "<!-- end of values -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let expected = format!("{before}{begin}{table}{end}{after}");
    if std::env::var_os("PILLION_WRITE").is_some() {
        fs::write(&file, expected).unwrap();
    } else {
        assert!(page == expected, "charts/pillion/README.md is out of date: run: just chart");
    }
}
