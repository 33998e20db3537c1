//! Reads, validates and runs the profiles and test cases of a folder.
//!
//! Each YAML document of a file of test cases is one case, except profiles, which are available to all cases of their
//! file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pillion_api::names::GROUP;
use pillion_cases::{Aspect, Case, Profiles, Unusable, Verdict};

use super::folders::Group;
use super::update::Update;
use crate::load::yaml::Node;
use crate::load::{self, Problem, Source, Written, typed, yaml};

/// A folder of profiles, and the results of its test cases.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) folder: PathBuf,
    /// The names of the folder's profiles.
    pub(super) profiles: Vec<String>,
    pub(super) cases: Vec<Outcome>,
    /// Problems of the folder's profiles, and of its files of test cases.
    pub(super) problems: Vec<Problem>,
    /// Warnings about the folder's profiles.
    pub(super) warnings: Vec<Problem>,
}

/// The result of a test case.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) line: usize,
    /// The verdict, or why the case cannot be run.
    pub(super) verdict: Result<Box<Verdict>, Unusable>,
    /// The update of the expected result. `None` if the result need not or cannot be updated.
    pub(super) update: Option<Update>,
}

impl Outcome {
    pub(super) fn passes(&self) -> bool {
        self.verdict.as_ref().is_ok_and(|verdict| verdict.passes())
    }

    /// Returns the differences, or why the case cannot be run; empty if the case passes.
    pub(super) fn failures(&self) -> Vec<String> {
        match &self.verdict {
            Err(unusable) => vec![unusable.to_string()],
            Ok(verdict) => verdict.differences.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Suite {
    pub(super) fn passes(&self) -> bool {
        self.problems.is_empty() && self.cases.iter().all(Outcome::passes)
    }

    pub(super) fn failed(&self) -> usize {
        self.cases.iter().filter(|case| !case.passes()).count()
    }
}

/// Runs the test cases of a group's folders.
pub(super) fn run(group: &Group, filter: Option<&str>) -> Vec<Suite> {
    let paths: Vec<PathBuf> = group.all.iter().cloned().collect();
    let loaded = load::profiles_with_texts(&paths);
    let suites = group.tested.iter().map(|(folder, chosen)| {
        let own = names_of_files(folder);
        let of_folder = |problems: &[Problem]| -> Vec<Problem> {
            problems.iter().filter(|problem| own.contains(&problem.source.name)).cloned().collect()
        };
        // A sibling folder, such as a copy, may contain a profile of the same name. The folder's own profile is the one
        // to test.
        let paths = own_first(folder, &paths);
        let again = (!of_folder(&loaded.problems).is_empty()).then(|| load::profiles_with_texts(&paths));
        let loaded = again.as_ref().unwrap_or(&loaded);
        let written = &loaded.texts;
        let (mine, others): (Vec<_>, Vec<_>) = written.iter().cloned().partition(|profile| own.contains(&profile.file));
        let mut suite = Suite {
            folder: folder.clone(),
            profiles: mine.iter().map(|profile| profile.name.to_string()).collect(),
            cases: Vec::new(),
            problems: of_folder(&loaded.problems),
            warnings: of_folder(&loaded.warnings),
        };
        let profiles = profiles(mine.clone(), others.clone());
        for file in chosen.of(folder) {
            suite.file(&file, filter, &profiles, || {
                // The profiles in the file itself are compiled together with the profiles of the folders.
                let together = load::profiles_with_texts(&[paths.clone(), vec![file.clone()]].concat());
                let name = file.display().to_string();
                let more = together.texts.into_iter().filter(|profile| profile.file == name);
                let problems = together.problems.into_iter().filter(|problem| problem.source.name == name);
                (self::profiles(mine.iter().cloned().chain(more), others.clone()), problems.collect())
            });
        }
        suite
    });
    suites.collect()
}

/// Returns the paths with this folder first.
fn own_first(folder: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
    let others = paths.iter().filter(|path| *path != folder).cloned();
    std::iter::once(folder.to_owned()).chain(others).collect()
}

fn profiles(own: impl IntoIterator<Item = Written>, others: impl IntoIterator<Item = Written>) -> Profiles {
    let pair = |written: Written| (written.name, written.spec);
    Profiles::new(own.into_iter().map(pair)).with_others(others.into_iter().map(pair))
}

/// Returns the names under which problems of a folder's files are reported. They include the name of the folder, which
/// is used if the folder is unreadable.
fn names_of_files(folder: &Path) -> Vec<String> {
    let files = load::files(folder).unwrap_or_default();
    files.iter().map(PathBuf::as_path).chain([folder]).map(|path| path.display().to_string()).collect()
}

impl Suite {
    /// Runs the cases of a file. `with_its_own` returns all profiles, for a file that itself contains profiles.
    fn file(
        &mut self,
        file: &Path,
        filter: Option<&str>,
        profiles: &Profiles,
        with_its_own: impl FnOnce() -> (Profiles, Vec<Problem>),
    ) {
        let name = file.display().to_string();
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => return self.problems.push(Problem::whole(name, format!("cannot be read: {error}"))),
        };
        let source = Arc::new(Source::new(name, text));
        let documents = match yaml::documents(&source.text) {
            Ok(documents) => documents,
            Err(fault) => return self.problems.push(Problem::syntax(&source, fault)),
        };
        let (own, cases): (Vec<&Node>, Vec<&Node>) = documents.iter().partition(|document| is_profile(document));
        let extended = (!own.is_empty()).then(with_its_own);
        let profiles = match extended {
            Some((extended, problems)) => {
                self.problems.extend(problems);
                &{ extended }
            }
            None => profiles,
        };
        for document in cases {
            match typed::read::<Case>(&source, document, "") {
                Err(problem) => self.problems.push(problem),
                Ok(case) if filter.is_some_and(|filter| !has(&case.name, filter)) => {}
                Ok(case) => self.cases.push(Outcome {
                    update: update(&case, document, profiles),
                    line: Problem::at(&source, document.span.clone(), "").position().map_or(1, |(line, _)| line),
                    file: source.name.clone(),
                    verdict: pillion_cases::run(&case, profiles).map(Box::new),
                    name: case.name,
                }),
            }
        }
    }
}

/// Returns the update that makes the expected result of a case equal the actual one. `None` if the case has no `result`
/// but other expectations, if the object is denied, if the case cannot be run, or if the result already matches.
fn update(case: &Case, document: &Node, profiles: &Profiles) -> Option<Update> {
    let key = document.entry("result").map(|entry| entry.key_span.start);
    if key.is_none() && case.expects_something() {
        return None;
    }
    // A case without expectations is run as if it expected a result.
    let asked = Case { result: case.result.clone().or_else(|| Some(serde_json::Value::Null)), ..case.clone() };
    let verdict = pillion_cases::run(&asked, profiles).ok()?;
    let is_other = verdict.differences.iter().any(|difference| difference.aspect == Aspect::Object);
    let mut object = verdict.object;
    if let Some(members) = object.as_object_mut()
        && members.get("metadata").and_then(serde_json::Value::as_object).is_some_and(serde_json::Map::is_empty)
    {
        // Removes empty metadata, which the case's author did not write.
        members.shift_remove("metadata");
    }
    (is_other && verdict.denied.is_none()).then(|| Update { object, key, begin: document.span.start })
}

fn is_profile(document: &Node) -> bool {
    document.text("apiVersion").is_some_and(|version| version.split('/').next() == Some(GROUP))
}

fn has(name: &str, filter: &str) -> bool {
    name.to_lowercase().contains(&filter.to_lowercase())
}
