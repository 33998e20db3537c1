//! `pillion lint`: reads profiles as the cluster would, and shows what is wrong with them in their own text.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::load;
use crate::output;

/// Arguments of `pillion lint`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LintArgs {
    /// Files with profiles, and folders of such files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Shows all problems; succeeds if there are none.
pub(crate) fn run(args: LintArgs) -> anyhow::Result<ExitCode> {
    let LintArgs { paths } = args;
    let loaded = load::profiles(&paths);
    output::problems(&loaded.problems)?;
    match (loaded.problems.len(), loaded.profiles.len()) {
        (0, 1) => output::print("ok: 1 profile\n")?,
        (0, profiles) => output::print(&format!("ok: {profiles} profiles\n"))?,
        (1, _) => output::tell("1 problem")?,
        (problems, _) => output::tell(&format!("{problems} problems"))?,
    }
    Ok(if loaded.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
