//! `pillion test`: runs the test cases of profiles. The engine handles each case like a request of the API server.
//!
//! * [`folders`]: finds the folders of profiles below the given paths.
//! * [`suite`]: reads and runs the profiles and cases of a folder.
//! * [`report`]: human-readable and JSON results; [`junit`]: results for CI servers.
//! * [`update`]: replaces expected results with actual ones.

mod folders;
mod junit;
mod report;
mod suite;
mod update;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use self::suite::Suite;
use crate::exit::Exit;
use crate::output;

/// Arguments of `pillion test`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TestArgs {
    /// Folders of profiles, folders that contain such folders, or single files of test cases.
    #[arg(value_name = "PATH", default_value = "profiles")]
    paths: Vec<PathBuf>,
    /// Run only test cases whose name contains this text, ignoring case.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write the actual results into failing test cases: replace `result`, or add it to test cases without
    /// expectations. Then run the test cases. Review the changes before you keep them.
    #[arg(long)]
    update: bool,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Human-readable: one line for each folder, and each failed test case with its differences.
    Text,
    /// One JSON object with folders, passed, failed and problems.
    Json,
    /// `JUnit` XML, for CI servers.
    Junit,
    /// For GitHub Actions: failures as annotations at their lines.
    Github,
}

/// Runs all test cases. Fails if there is nothing to test: a path does not exist or contains no folder of profiles, or
/// `--filter` selects no case.
pub(crate) fn run(args: TestArgs) -> anyhow::Result<Exit> {
    let TestArgs { paths, filter, update, output } = args;
    let groups = match folders::of(&paths) {
        Ok(groups) => groups,
        Err(problems) => {
            output::problems(&problems)?;
            return Ok(Exit::Failure);
        }
    };
    let run = || -> Vec<Suite> { groups.iter().flat_map(|group| suite::run(group, filter.as_deref())).collect() };
    let mut suites = run();
    if update && update_all(&suites)? {
        suites = run();
    }
    match output {
        Output::Text => {
            for suite in &suites {
                output::problems(&suite.problems)?;
                output::problems(&suite.warnings)?;
            }
            output::show(&report::text(&suites))?;
        }
        Output::Json => output::print(&output::json(&report::json(&suites))?)?,
        Output::Junit => output::print(&junit::xml(&suites))?,
        Output::Github => output::print(&report::github(&suites))?,
    }
    let ran = suites.iter().any(|suite| !suite.cases.is_empty());
    if let Some(filter) = filter.filter(|_| !ran) {
        output::report(&format!("no case has {filter:?} in its name"))?;
        return Ok(Exit::Failure);
    }
    Ok(Exit::findings(!suites.iter().all(Suite::passes)))
}

/// Updates the expected results of failing test cases, and adds results to test cases without expectations. Returns
/// whether any result changed.
fn update_all(suites: &[Suite]) -> anyhow::Result<bool> {
    let mut updates: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for case in suites.iter().flat_map(|suite| &suite.cases) {
        if let Some(update) = &case.update {
            updates.entry(case.file.clone()).or_default().push((case.name.clone(), update.clone()));
        }
    }
    let (written, left) = update::write(&updates)?;
    for left in left {
        output::report(&format!("not updated: {left}"))?;
    }
    if written > 0 {
        output::report(&format!("updated: {written} {}", if written == 1 { "case" } else { "cases" }))?;
    }
    Ok(written > 0)
}
