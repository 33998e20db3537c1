//! Collects the licences of all linked crates with their texts, since most licences require the text beside the
//! program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::build::Runtime;
use crate::linked::{Crate, Linked};
use crate::source::Source;

/// How the names of files begin that have licences, or what licences want to be passed on.
const NAMES: [&str; 6] = ["licen", "copying", "copyright", "notice", "unlicense", "patents"];

/// The licence of the C library, whose text is in no crate.
const LGPL: &str = include_str!("../licences/LGPL-2.1.txt");

/// The texts of all that is in programs, those of two platforms in one.
///
/// # Errors
/// If a crate has no text, and none can be found for it; or if a file cannot be read.
pub fn third_party(source: &Source, linked: &[Linked], runtime: &Runtime) -> anyhow::Result<String> {
    let foreign: BTreeMap<_, _> = linked.iter().flat_map(Linked::foreign).map(|each| (each.key(), each)).collect();
    let foreign: Vec<&Crate> = foreign.into_values().collect();
    let apache = fs::read_to_string(source.root.join("LICENSE")).context("cannot read LICENSE")?;

    // Texts by what they say, each once, with who uses it; in the order of those users.
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for each in &foreign {
        for text in texts_for(each, &foreign, &apache)? {
            users.entry(text).or_default().insert(format!("{} {}", each.name, each.version));
        }
    }
    if runtime.glibc.is_some() {
        users.entry(tidied(LGPL)).or_default().insert("the GNU C Library".to_owned());
    }
    let mut texts: Vec<_> = users.into_iter().map(|(text, users)| (users, text)).collect();
    texts.sort();

    let mut page = head(source, runtime)?;
    for each in foreign {
        let repository = each.repository.as_deref().unwrap_or_default();
        writeln!(page, "  {} {}: {} {repository}", each.name, each.version, each.licence)?;
    }
    for (users, text) in texts {
        let users: Vec<_> = users.into_iter().collect();
        write!(page, "\n{}\n{}\n\n{text}\n", "=".repeat(120), wrapped(&users.join(", ")))?;
    }
    Ok(page)
}

fn head(source: &Source, runtime: &Runtime) -> anyhow::Result<String> {
    let mut head = String::new();
    writeln!(
        head,
        "Pillion {} is under the Apache License 2.0. Its program contains what is named here.\n",
        source.version
    )?;
    writeln!(
        head,
        "- The standard library of Rust {}, MIT OR Apache-2.0. Its licences and those of what",
        runtime.rust
    )?;
    writeln!(head, "  it is made of are in RUST-STANDARD-LIBRARY.html beside this file.")?;
    if let Some(version) = &runtime.glibc {
        writeln!(head, "- The GNU C Library {version}, LGPL-2.1-or-later, linked statically. Its source is at")?;
        writeln!(
            head,
            "  https://ftp.gnu.org/gnu/glibc/. Pillion's own source and the recipe of this program (`just dist`) are"
        )?;
        writeln!(
            head,
            "  published with it, so that whoever changes that library can link the program with it again."
        )?;
        writeln!(
            head,
            "- Parts of GCC's run-time library, GPL-3.0-or-later WITH GCC-exception-3.1, which asks nothing of programs."
        )?;
    }
    writeln!(head, "- These crates:\n")?;
    Ok(head)
}

/// The texts that a crate has; if none, those of another crate from the same repository; if none, that of its licence, where
/// that is the same for everybody.
fn texts_for(each: &Crate, all: &[&Crate], apache: &str) -> anyhow::Result<Vec<String>> {
    let own = texts_in(&each.folder)?;
    if !own.is_empty() {
        return Ok(own);
    }
    let is_sibling = |other: &&&Crate| other.repository.is_some() && other.repository == each.repository;
    for sibling in all.iter().filter(is_sibling).filter(|other| other.licence == each.licence) {
        let texts = texts_in(&sibling.folder)?;
        if !texts.is_empty() {
            return Ok(texts);
        }
    }
    if each.licence.split(" OR ").any(|licence| licence == "Apache-2.0") {
        return Ok(vec![tidied(apache)]);
    }
    bail!(
        "{} {} is under {:?} and has no file with its text; find the text and teach licences.rs about it",
        each.name,
        each.version,
        each.licence
    )
}

/// The licences in a folder and in those below it, of which some are named for what they hold.
fn texts_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for (path, is_below_licences) in files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_text = path.extension().is_none_or(|extension| extension != "rs");
        if is_text && (is_below_licences || NAMES.iter().any(|known| name.starts_with(known))) {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push(tidied(&String::from_utf8_lossy(&bytes)));
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

/// Files of a folder and one below, sorted; and whether the one below is a folder of licences.
fn files(folder: &Path) -> anyhow::Result<Vec<(std::path::PathBuf, bool)>> {
    let mut files = Vec::new();
    let list = |folder: &Path| -> anyhow::Result<Vec<_>> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        entries.map(|entry| Ok(entry?.path())).collect()
    };
    for path in list(folder)? {
        if path.is_dir() {
            let is_licences = path.file_name().is_some_and(|name| name.eq_ignore_ascii_case("licenses"));
            files.extend(list(&path)?.into_iter().filter(|file| file.is_file()).map(|file| (file, is_licences)));
        } else {
            files.push((path, false));
        }
    }
    files.sort();
    Ok(files)
}

/// A text without what differs for no reason between copies of it.
fn tidied(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = vec!["Used by:".to_owned()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 120 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_crate(name: &str, licence: &str, repository: &str, folder: &Path) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.to_owned(),
            repository: Some(repository.to_owned()),
            folder: folder.to_owned(),
            checksum: Some("0a".to_owned()),
        }
    }

    #[test]
    fn texts_are_those_of_the_folder_and_of_one_below() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("LICENSE-MIT", "the text  \r\nof MIT\n\n"),
            ("src/license.rs", "no licence"),
            ("LICENSES/ISC.txt", "of ISC"),
            ("vendored/COPYING", "of C"),
            ("README.md", "no licence"),
        ] {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        assert_eq!(texts_in(folder.path()).unwrap(), ["the text\nof MIT", "of ISC", "of C"]);
    }

    #[test]
    fn a_crate_without_a_text_has_that_of_its_repository_or_licence() {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(with.path().join("LICENSE"), "the repository's").unwrap();
        let sibling = a_crate("sibling", "MIT", "https://a", with.path());
        let same = a_crate("same", "MIT", "https://a", without.path());
        let other = a_crate("other", "MIT", "https://b", without.path());
        let apache = a_crate("apache", "MIT OR Apache-2.0", "https://b", without.path());
        let all = [&sibling, &same, &other, &apache];
        assert_eq!(texts_for(&same, &all, "apache").unwrap(), ["the repository's"]);
        assert_eq!(texts_for(&apache, &all, "apache").unwrap(), ["apache"]);
        assert!(texts_for(&other, &all, "apache").unwrap_err().to_string().contains("other 1.0.0"));
    }
}
