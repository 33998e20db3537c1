//! The command line: all commands with their arguments and exit codes. Generates the help, the manual pages, the
//! completions, and the tables of flags and keys in the documentation.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::certs::CertsArgs;
use crate::config::{ControllerPolicy, PolicyFile, WebhookPolicy, settings};
use crate::convert::ConvertArgs;
use crate::crds::CrdsArgs;
use crate::diff::DiffArgs;
use crate::doctor::DoctorArgs;
use crate::explain::ExplainArgs;
use crate::export::ExportArgs;
use crate::inject::InjectArgs;
use crate::lint::LintArgs;
use crate::output;
use crate::profiles::ProfilesArgs;
use crate::rollout::RolloutArgs;
use crate::serve::controller::ControllerArgs;
use crate::serve::dev::DevArgs;
use crate::serve::webhook::WebhookArgs;
use crate::status::StatusArgs;
use crate::telemetry::logs::LogArgs;
use crate::test::TestArgs;
use crate::uninject::UninjectArgs;
use crate::uninstall::UninstallArgs;

/// One sidecar injector for a whole Kubernetes cluster.
///
/// Injection profiles define what is added to which pods. Namespaces opt in by the label
/// pillion.dev/injection=enabled, required or held.
///
/// To try it without a cluster: pillion dev
#[derive(Debug, Parser)]
#[command(name = "pillion", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) logs: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command of `pillion`.
#[derive(Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) enum Command {
    /// Serve admission reviews: the webhook, as it runs in a cluster.
    Webhook(WebhookArgs),
    /// Rotate certificates, and reconcile webhook configurations, revisions and profile status. Several run, one leads.
    Controller(ControllerArgs),
    /// Show the progress of the certificate rotation, or request one.
    Certs(CertsArgs),
    /// Serve profiles from files, without a cluster, and reload them when they change.
    Dev(DevArgs),
    /// Inject into the pods of manifests on this machine, without a cluster.
    Inject(InjectArgs),
    /// Explain why a pod is injected or not: pillion explain pod/web -n shop
    Explain(ExplainArgs),
    /// Find problems of Pillion in a cluster, and suggest remedies.
    Doctor(DoctorArgs),
    /// Remove injected parts from manifests, by the injection record of their pods.
    Uninject(UninjectArgs),
    /// Show what changed profiles would do to running pods or to manifests, without doing it.
    Diff(DiffArgs),
    /// Check profiles.
    Lint(LintArgs),
    /// Run the test cases of profiles: pillion test profiles
    Test(TestArgs),
    /// Show the accepted revisions of a profile in a cluster, and roll back to one.
    Profiles(ProfilesArgs),
    /// Export profiles as Kubernetes' own admission policies, as far as these can express them.
    Export(ExportArgs),
    /// Convert the configuration of other injectors into profiles.
    Convert(ConvertArgs),
    /// Remove the webhook configurations of a release permanently, before it is deleted.
    ///
    /// No pod is injected from then on. To undo it: set webhooks: armed in the release's ConfigMap.
    Uninstall(UninstallArgs),
    /// Summarize the installation, and list pods that differ from their profiles, with reasons.
    /// It reads from the API server, so no part of Pillion has to run.
    Status(StatusArgs),
    /// List workloads whose pods lack a profile or carry an older revision, and restart them.
    ///
    /// Nothing is restarted without --apply.
    Rollout(RolloutArgs),
    /// Print the custom resource definitions: pillion crds | kubectl apply -f -
    Crds(CrdsArgs),
    /// Write manual pages: pillion man /usr/local/share/man/man1
    Man(ManArgs),
    /// Print the tables of docs/configuration.md.
    #[command(hide = true)]
    Reference,
    /// Print completions for a shell: pillion completions bash > /etc/bash_completion.d/pillion
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The exit codes of a command besides success. 2 is also the code of a command line that cannot be parsed.
type Exits = &'static [(u8, &'static str)];

const WRONG: (u8, &str) = (1, "something is wrong, and standard error says what");
const LEFT_OUT: (u8, &str) = (3, "something was left out, and standard error says what");
const CONVERT: Exits = &[WRONG, LEFT_OUT];

/// All commands without subcommands, with their exit codes.
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
pub(crate) fn command() -> clap::Command {
    with_exit_codes(Arguments::command(), "")
}

fn with_exit_codes(command: clap::Command, path: &str) -> clap::Command {
    let command = match COMMANDS.iter().find(|(known, _)| *known == path) {
        Some((_, exits)) => command.after_long_help(exit_codes(exits)),
        None => command,
    };
    command.mut_subcommands(|below| {
        let name = below.get_name();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        with_exit_codes(below, &path)
    })
}

fn exit_codes(exits: Exits) -> String {
    let mut text = "Exit codes:\n  0  success".to_owned();
    for (code, meaning) in exits {
        // Writing to a string never fails.
        let _ = write!(text, "\n  {code}  {meaning}");
    }
    text
}

/// Arguments of `pillion man`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages, one for each command. It is created if necessary. Without it, the page of pillion
    /// itself is printed.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// `pillion man`: writes all pages, or prints the page of `pillion` itself.
pub(crate) fn write_manual(args: ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
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

/// `pillion completions`: prints the completions for a shell.
pub(crate) fn print_completions(shell: Shell) -> anyhow::Result<ExitCode> {
    // Generated into a buffer: clap's writer panics if the output is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "pillion", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// `pillion reference` (hidden): prints the tables of flags and keys in `docs/configuration.md`, between the comments
/// that mark their positions.
pub(crate) fn print_reference() -> anyhow::Result<ExitCode> {
    let mut program = command();
    program.build();
    let mut text = String::new();
    for (name, table) in [
        ("flags", flags(&program, "webhook")?),
        ("keys", settings::table(WebhookPolicy::settings())),
        ("controller flags", flags(&program, "controller")?),
        ("controller keys", settings::table(ControllerPolicy::settings())),
    ] {
        write!(text, "<!-- {name} -->\n\n{table}\n<!-- end of {name} -->\n")?;
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the table of a command's flags with their environment variables.
fn flags(program: &clap::Command, command: &str) -> anyhow::Result<String> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory;
    use pillion_api::names::InjectionLevel;

    use super::*;
    use crate::telemetry::logs::LogFormat;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn webhook_requires_certificate() {
        let Command::Webhook(args) = parse("pillion webhook --tls-cert c.pem --tls-key k.pem").unwrap().command else {
            panic!("another command")
        };
        let files = (args.certificate.tls_cert, args.certificate.tls_key);
        assert_eq!(files, (Some("c.pem".into()), Some("k.pem".into())));
        assert_eq!(args.listen.to_string(), "0.0.0.0:8443");
        assert_eq!(args.metrics_listen.to_string(), "0.0.0.0:9090");
        assert_eq!(args.kubeconfig, None);
        assert_eq!(args.traces.otlp_endpoint, None);

        for (line, expected) in [
            ("pillion webhook --tls-cert c.pem", "--tls-key"),
            ("pillion webhook --tls-key k.pem", "--tls-cert"),
            ("pillion webhook", "--serving-secret"),
            ("pillion webhook --serving-secret a/b --tls-cert c --tls-key k", "cannot be used with"),
            ("pillion webhook --serving-secret a/b/c", "[NAMESPACE/]NAME"),
            ("pillion webhook --server-name a.b.svc --tls-cert c --tls-key k", "cannot be used with"),
            ("pillion webhook --check-config --server-name a.b.svc", "--serving-secret"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        parse("pillion webhook --serving-secret pillion-serving").unwrap();
        parse("pillion webhook --serving-secret a/b --server-name b.a.svc,b.a.svc.cluster.local").unwrap();
        parse("pillion webhook --check-config").unwrap();
    }

    #[test]
    fn webhook_flags_are_parsed() {
        let line = "pillion --log-format json webhook --kubeconfig k --tls-cert c --tls-key k --listen [::]:0 \
                    --metrics-listen 127.0.0.1:1 --otlp-endpoint http://c:4317 --trace-ratio 1 --log-level debug";
        let arguments = parse(line).unwrap();
        assert_eq!((arguments.logs.log_format, arguments.logs.log_level.as_deref()), (LogFormat::Json, Some("debug")));
        let Command::Webhook(args) = arguments.command else { panic!("another command") };
        assert_eq!(args.listen.to_string(), "[::]:0");
        assert_eq!(args.traces.otlp_endpoint.as_deref(), Some("http://c:4317"));
    }

    #[test]
    fn dev_needs_no_flags() {
        let Command::Dev(args) = parse("pillion dev").unwrap().command else { panic!("another command") };
        assert_eq!(args.listen.to_string(), "127.0.0.1:8443");
        assert!(args.profiles.is_empty() && args.namespaces.is_empty());

        let line = "pillion dev --profiles a --profiles b --namespace shop=required --namespace till=held";
        let Command::Dev(args) = parse(line).unwrap().command else { panic!("another command") };
        assert_eq!(args.profiles, [PathBuf::from("a"), PathBuf::from("b")]);
        let levels: Vec<_> = args.namespaces.iter().map(|namespace| (&*namespace.name, namespace.level)).collect();
        assert_eq!(levels, [("shop", InjectionLevel::Required), ("till", InjectionLevel::Held)]);
    }

    #[test]
    fn errors_state_expected_values() {
        for (line, expected) in [
            ("pillion dev --namespace shop", "NAME=LEVEL"),
            ("pillion dev --namespace shop=maybe", "enabled, required or held"),
            ("pillion dev --namespace =held", "NAME=LEVEL"),
            ("pillion dev --listen 8443", "--listen"),
            ("pillion dev --otlp-endpoint collector:4317", "http://"),
            ("pillion dev --otlp-endpoint https://", "http://"),
            ("pillion dev --trace-ratio 2", "from 0 to 1"),
            ("pillion --log-format xml crds", "text, json"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    /// Collects all Markdown files below a directory.
    fn documents(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                documents(&entry, into);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                into.push(entry);
            }
        }
    }

    #[test]
    fn documented_commands_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for folder in ["charts", "dashboards", "deploy", "docs", "load-tests", "profiles"] {
            documents(&root.join(folder), &mut pages);
        }
        let mut count = 0;
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let (mut is_shell, mut commands) = (false, Vec::new());
            for line in text.lines().map(str::trim) {
                if let Some(language) = line.strip_prefix("```") {
                    is_shell = language == "sh";
                } else if is_shell {
                    commands.push(line.split(" #").next().unwrap());
                }
            }
            let commands = commands.iter().flat_map(|line| line.split(['|', '>'])).map(str::trim);
            for command in commands.filter(|command| command.starts_with("pillion ")) {
                count += 1;
                parse(command).unwrap_or_else(|error| panic!("{}: {command}: {error}", page.display()));
            }
        }
        assert!(count > 100, "found {count} commands");
    }

    /// The documentation of all commands.
    const CLI_PAGE: &str = include_str!("../../../docs/cli.md");

    /// Collects the paths of all visible commands without subcommands.
    fn leaves(command: &clap::Command, path: &str, all: &mut BTreeSet<String>) {
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
    fn exit_codes_are_in_help_and_documentation() {
        let mut found = BTreeSet::new();
        leaves(&Arguments::command(), "", &mut found);
        let known: BTreeSet<_> = COMMANDS.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(found, known);

        // A row: `| `pillion diff` | purpose | 1: meaning; 2: meaning |`
        let rows = CLI_PAGE.lines().filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("| `pillion ")?.trim_end_matches(" |").split(" | ").collect();
            let [path, _, exits] = cells.as_slice() else { panic!("three columns: {line}") };
            Some((path.trim_end_matches('`').to_owned(), (*exits).to_owned()))
        });
        let rows: Vec<_> = rows.collect();
        let expected = COMMANDS.iter().map(|(path, exits)| {
            let codes = exits.iter().map(|(code, meaning)| format!("{code}: {meaning}"));
            ((*path).to_owned(), codes.collect::<Vec<_>>().join("; "))
        });
        assert_eq!(rows, expected.collect::<Vec<_>>());
    }

    #[test]
    fn help_lists_exit_codes() {
        let mut command = command();
        let diff = command.find_subcommand_mut("diff").unwrap().render_long_help().to_string();
        assert!(diff.contains("Exit codes:\n  0  success\n  1  something would be different\n  2  "), "{diff}");
        let convert = command.find_subcommand_mut("convert").unwrap();
        let tumblr = convert.find_subcommand_mut("tumblr").unwrap().render_long_help().to_string();
        assert!(tumblr.contains("  3  something was left out"), "{tumblr}");
    }

    #[test]
    fn documented_flags_exist() {
        fn flags(command: &clap::Command, all: &mut BTreeSet<String>) {
            all.extend(command.get_arguments().filter_map(|one| Some(format!("--{}", one.get_long()?))));
            command.get_subcommands().for_each(|below| flags(below, all));
        }
        let mut known = BTreeSet::new();
        flags(&Arguments::command(), &mut known);
        let words = CLI_PAGE.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let of_page: BTreeSet<_> = words.filter(|word| word.starts_with("--") && word.len() > 3).collect();
        assert!(of_page.len() > 5, "{of_page:?}");
        for flag in of_page {
            assert!(known.contains(flag), "no command has {flag}");
        }
    }
}
