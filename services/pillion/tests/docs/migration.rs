//! The pages for those who come from another injector: each shipped profile that does an injector's work is reached from one
//! of them, each page from the first, and what a table calls a parameter is one.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::root;

/// Rows of the table of shipped profiles that take nobody's place.
const OF_NOBODY: [&str; 1] = ["what a platform team writes next"];

/// Rows of the README's table: what profiles are there instead of, and their folders.
fn shipped() -> Vec<(String, Vec<String>)> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("## The shipped profiles").expect("the README has a table of shipped profiles");
    let rows =
        rest.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    rows.map(|(instead_of, profiles)| (instead_of.to_owned(), folders(profiles)))
        .filter(|(_, folders)| !folders.is_empty())
        .collect()
}

/// The folders of profiles that a text has links to.
fn folders(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let below = targets.filter_map(|target| target.trim_start_matches("../").strip_prefix("profiles/"));
    below.filter_map(|path| Some(path.split('/').next()?.to_owned())).collect()
}

/// The pages but the first, each with its text.
fn pages() -> Vec<(PathBuf, String)> {
    let paths = fs::read_dir(root().join("docs/migration")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = paths.filter(|path| !path.ends_with("README.md")).collect();
    pages.sort();
    pages.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn every_profile_that_does_an_injectors_work_is_reached_from_a_page() {
    let reached: BTreeSet<_> = pages().iter().flat_map(|(_, text)| folders(text)).collect();
    let shipped = shipped();
    for row in OF_NOBODY {
        assert!(shipped.iter().any(|(instead_of, _)| instead_of == row), "the README has no row {row:?}");
    }
    let replacing: Vec<_> = shipped.into_iter().filter(|(row, _)| !OF_NOBODY.contains(&row.as_str())).collect();
    assert!(replacing.len() > 4, "{replacing:?}");
    for (instead_of, profiles) in replacing {
        for profile in profiles {
            assert!(
                reached.contains(&profile),
                "{instead_of}: no page of docs/migration has a link to profiles/{profile}"
            );
        }
    }
}

#[test]
fn the_first_page_leads_to_all_others() {
    let first = fs::read_to_string(root().join("docs/migration/README.md")).unwrap();
    for (path, _) in pages() {
        let link = format!("]({})", path.file_name().unwrap().to_str().unwrap());
        assert!(first.contains(&link), "docs/migration/README.md has no link to {}", path.display());
    }
}

/// What stands in backquotes in the last column of tables that call it `parameter`.
fn parameters(text: &str) -> Vec<String> {
    let mut is_of_parameters = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            is_of_parameters &= line.starts_with('|');
            continue;
        };
        let last = row.rsplit(" | ").next().unwrap_or_default();
        if last == "parameter" {
            is_of_parameters = true;
        } else if is_of_parameters {
            found.extend(last.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

#[test]
fn what_a_table_calls_a_parameter_is_one() {
    let mut count = 0;
    for (path, text) in pages() {
        let profiles: BTreeSet<_> = folders(&text).into_iter().collect();
        let texts = profiles.iter().map(|name| {
            let file = root().join("profiles").join(name).join("profile.yaml");
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        });
        let declared = texts.collect::<Vec<_>>().join("\n");
        for name in parameters(&text) {
            count += 1;
            let is_declared = [", ", "}", "\n"].iter().any(|end| declared.contains(&format!("name: {name}{end}")));
            assert!(is_declared, "{}: none of {profiles:?} has a parameter {name}", path.display());
        }
    }
    assert!(count > 50, "only {count} parameters were found");
}
