//! `pillion reference` (hidden): prints the tables of flags and keys in `docs/configuration.md`, between the comments
//! that mark their positions.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgAction, Command};

use crate::config::{ControllerPolicy, WebhookPolicy, read};
use crate::{exits, output};

/// Prints all tables.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut program = exits::command();
    program.build();
    let mut text = String::new();
    for (name, table) in [
        ("flags", flags(&program, "webhook")?),
        ("keys", read::table::<WebhookPolicy>()),
        ("controller flags", flags(&program, "controller")?),
        ("controller keys", read::table::<ControllerPolicy>()),
    ] {
        write!(text, "<!-- {name} -->\n\n{table}\n<!-- end of {name} -->\n")?;
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the table of a command's flags with their environment variables.
fn flags(program: &Command, command: &str) -> anyhow::Result<String> {
    let command = program.find_subcommand(command).with_context(|| format!("there is no command {command}"))?;
    let mut table = "| flag | environment | default | meaning |\n|---|---|---|---|\n".to_owned();
    for argument in command.get_arguments() {
        let Some(long) = argument.get_long().filter(|long| !["help", "version"].contains(long)) else { continue };
        let value = match (argument.get_action(), argument.get_value_names()) {
            (ArgAction::SetTrue, _) | (_, None) => String::new(),
            (_, Some(names)) => format!(" {}", names.join(" ")),
        };
        let code = |text: String| if text.is_empty() { text } else { format!("`{text}`") };
        let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let default = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>();
        let default = if value.is_empty() { String::new() } else { default.join(" ") };
        let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
        let help = help.with_context(|| format!("--{long} has no help"))?;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        writeln!(table, "| `--{long}{value}` | {} | {} | {help} |", code(variable), code(default))?;
    }
    Ok(table)
}
