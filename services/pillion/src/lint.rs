//! `pillion lint`: compiles profiles as the controller does, and shows errors at their positions in the source.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::exit::Exit;
use crate::load::{self, Loaded, Problem};
use crate::output;

/// Arguments of `pillion lint`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LintArgs {
    /// Files with profiles, and folders of such files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable: the problems on standard error, each with an excerpt of the source.
    Text,
    /// Machine-readable: on standard output, a list of at most 100 objects with severity, file, line, column, path,
    /// message and help.
    Json,
    /// For GitHub Actions: the problems on standard output, as at most 100 annotations at their lines.
    Github,
}

/// Prints the problems and warnings, limited to [`output::MAX_PROBLEMS`]. Returns [`Exit::Failure`] if a path does not
/// exist, otherwise [`Exit::Findings`] if there are problems. Warnings do not affect the exit code.
pub(crate) fn run(args: LintArgs) -> anyhow::Result<Exit> {
    let LintArgs { paths, output: format } = args;
    let is_missing = paths.iter().any(|path| !path.exists());
    let Loaded { profiles, problems, warnings, .. } = load::profiles(&paths);
    let listed = || problems.iter().chain(&warnings).take(output::MAX_PROBLEMS);
    match format {
        Format::Text => {
            output::problems(&problems)?;
            output::problems(&warnings)?;
            let found = [counted(problems.len(), "problem"), counted(warnings.len(), "warning")];
            let found: Vec<_> = found.into_iter().flatten().collect();
            if !found.is_empty() {
                output::report(&found.join(", "))?;
            }
            if problems.is_empty() {
                let count = counted(profiles.len(), "profile").unwrap_or_default();
                output::print(&format!("ok: {count}\n"))?;
            }
        }
        Format::Json => {
            let all = listed().map(Problem::to_json).collect();
            output::print(&output::json(&serde_json::Value::Array(all))?)?;
        }
        Format::Github => output::print(&output::github_annotations(listed()))?,
    }
    Ok(if is_missing { Exit::Failure } else { Exit::findings(!problems.is_empty()) })
}

/// Formats a count; `None` for zero.
fn counted(count: usize, what: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    }
}
