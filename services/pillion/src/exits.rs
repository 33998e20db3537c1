//! The exit codes of all commands. Help, manual pages and docs/cli.md use this table.
//!
//! 0 always means success. 2 is also the code of a command line that cannot be parsed.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use crate::cli::Arguments;

/// The exit codes of a command besides success.
type Exits = &'static [(u8, &'static str)];

const WRONG: (u8, &str) = (1, "something is wrong, and standard error says what");
const LEFT_OUT: (u8, &str) = (3, "something was left out, and standard error says what");
const CONVERT: Exits = &[WRONG, LEFT_OUT];

/// All commands without subcommands.
const COMMANDS: &[(&str, Exits)] = &[
    ("certs rotate", &[(1, "something is wrong, or the rotation is not done after --wait")]),
    ("certs status", &[WRONG]),
    ("completions", &[]),
    ("controller", &[WRONG]),
    ("convert morvencao", CONVERT),
    ("convert opentelemetry", CONVERT),
    ("convert sidecarset", CONVERT),
    ("convert tumblr", CONVERT),
    ("crds", &[WRONG]),
    ("dev", &[WRONG]),
    ("diff", &[(1, "something would be different"), (2, "it cannot be said what would be different")]),
    ("doctor", &[(1, "something keeps it from working"), (2, "it could not be looked for")]),
    ("explain", &[(1, "it is not, or would not be, as its profiles say"), (2, "the question could not be answered")]),
    ("export", &[WRONG, LEFT_OUT]),
    ("inject", &[(1, "something is wrong, or a pod is refused; nothing is printed")]),
    ("lint", &[(1, "a profile is wrong")]),
    ("man", &[WRONG]),
    ("profiles history", &[WRONG]),
    ("profiles rollback", &[(1, "something is wrong, or it is not published after --wait")]),
    ("rollout", &[(1, "a workload is stale still, or something is wrong")]),
    ("status", &[(1, "a pod is not as its profiles say, or something is wrong")]),
    ("test", &[(1, "a case is not as it says, or cannot be read"), (2, "there is nothing to test")]),
    ("uninject", &[WRONG, (3, "something could not be undone, and standard error says what")]),
    ("uninstall", &[WRONG]),
    ("webhook", &[WRONG]),
];

/// Returns the command line, with exit codes in the help of each command.
pub(crate) fn command() -> Command {
    told(Arguments::command(), "")
}

fn told(command: Command, path: &str) -> Command {
    let command = match COMMANDS.iter().find(|(known, _)| *known == path) {
        Some((_, exits)) => command.after_long_help(text(exits)),
        None => command,
    };
    command.mut_subcommands(|below| {
        let name = below.get_name();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        told(below, &path)
    })
}

fn text(exits: Exits) -> String {
    let mut text = "Exit codes:\n  0  success".to_owned();
    for (code, meaning) in exits {
        // Writing to a string never fails.
        let _ = write!(text, "\n  {code}  {meaning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The documentation of all commands.
    const PAGE: &str = include_str!("../../../docs/cli.md");

    /// Collects all documented commands without subcommands.
    fn leaves(command: &Command, path: &str, all: &mut BTreeSet<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()) {
            let path =
                if path.is_empty() { below.get_name().to_owned() } else { format!("{path} {}", below.get_name()) };
            if below.has_subcommands() {
                leaves(below, &path, all);
            } else {
                all.insert(path);
            }
        }
    }

    #[test]
    fn every_command_has_its_exit_codes_in_its_help_and_on_the_page() {
        let mut found = BTreeSet::new();
        leaves(&Arguments::command(), "", &mut found);
        let known: BTreeSet<_> = COMMANDS.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(found, known);

        // `| `pillion diff` | what it is for | 1: this; 2: that |`
        let rows = PAGE.lines().filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("| `pillion ")?.trim_end_matches(" |").split(" | ").collect();
            let [path, _, exits] = cells.as_slice() else { panic!("three columns: {line}") };
            Some((path.trim_end_matches('`').to_owned(), (*exits).to_owned()))
        });
        let rows: Vec<_> = rows.collect();
        let expected = COMMANDS.iter().map(|(path, exits)| {
            let told = exits.iter().map(|(code, meaning)| format!("{code}: {meaning}"));
            ((*path).to_owned(), told.collect::<Vec<_>>().join("; "))
        });
        assert_eq!(rows, expected.collect::<Vec<_>>());
    }

    #[test]
    fn help_says_what_an_exit_code_means() {
        let mut command = command();
        let diff = command.find_subcommand_mut("diff").unwrap().render_long_help().to_string();
        assert!(diff.contains("Exit codes:\n  0  success\n  1  something would be different\n  2  "), "{diff}");
        let convert = command.find_subcommand_mut("convert").unwrap();
        let tumblr = convert.find_subcommand_mut("tumblr").unwrap().render_long_help().to_string();
        assert!(tumblr.contains("  3  something was left out"), "{tumblr}");
    }

    #[test]
    fn every_flag_that_stands_on_the_page_is_one() {
        fn flags(command: &Command, all: &mut BTreeSet<String>) {
            all.extend(command.get_arguments().filter_map(|one| Some(format!("--{}", one.get_long()?))));
            command.get_subcommands().for_each(|below| flags(below, all));
        }
        let mut known = BTreeSet::new();
        flags(&Arguments::command(), &mut known);
        let words = PAGE.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let of_page: BTreeSet<_> = words.filter(|word| word.starts_with("--") && word.len() > 3).collect();
        assert!(of_page.len() > 5, "{of_page:?}");
        for flag in of_page {
            assert!(known.contains(flag), "no command has {flag}");
        }
    }
}
