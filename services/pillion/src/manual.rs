//! `pillion man`: writes the manual pages of all commands.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};

use crate::output;

/// Arguments of `pillion man`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder to write a page for each command to; it is made if it is not there. Without it the page of pillion itself
    /// is printed.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Writes all pages, or prints the page of `pillion` itself.
pub(crate) fn run(args: ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    let Some(folder) = args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).context("the page cannot be made")?;
        output::print(&String::from_utf8(page).context("the page is no text")?)?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    clap_mangen::generate_to(command, &folder)
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
