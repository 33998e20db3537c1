//! The command line: all commands with their arguments and exit codes. Generates the help, the manual pages, the
//! completions, and the tables of flags and keys in the documentation.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::args::CONNECTION;
use crate::certs::CertsArgs;
use crate::config::{ControllerPolicy, PolicyFile, WebhookPolicy, settings};
use crate::convert::ConvertArgs;
use crate::cost::CostArgs;
use crate::crds::CrdsArgs;
use crate::diff::DiffArgs;
use crate::doctor::DoctorArgs;
use crate::exit::Exit;
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
use crate::version::VersionArgs;

/// One sidecar injector for a whole Kubernetes cluster.
///
/// Injection profiles define what is added to which pods. Namespaces opt in with the label
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
    /// Run the webhook, which answers the admission reviews of a cluster.
    Webhook(WebhookArgs),
    /// Run the controller: rotate certificates, and reconcile webhook configurations, revisions and profile status.
    Controller(ControllerArgs),
    /// Request a rotation of the certificates; pillion status shows its progress.
    Certs(CertsArgs),
    /// Serve profiles from files, without a cluster, and reload them when they change.
    Dev(DevArgs),
    /// Inject into the pods of manifests on this machine, without a cluster.
    Inject(InjectArgs),
    /// Explain what Pillion did or would do to an object, and why: pillion explain pod/web -n shop
    Explain(ExplainArgs),
    /// Find configuration errors in a cluster, and suggest corrections.
    Doctor(DoctorArgs),
    /// Remove injected parts from manifests, using the injection records of the pods.
    Uninject(UninjectArgs),
    /// Show how changed profiles would affect running pods or manifests, without applying them.
    Diff(DiffArgs),
    /// Find errors in profiles, and show their positions in the files.
    Lint(LintArgs),
    /// Run the test cases of profiles: pillion test profiles
    Test(TestArgs),
    /// List and export the profiles of a cluster, show the revisions of one, and roll back to one of them.
    Profiles(ProfilesArgs),
    /// Export profiles as Kubernetes admission policies; parts that policies cannot express are left out.
    Export(ExportArgs),
    /// Convert the configuration of other injectors to profiles.
    Convert(ConvertArgs),
    /// Remove the webhook configurations and admission policies that the controller created, before you delete a
    /// release.
    ///
    /// The policies are those for held namespaces and for the safety net. After that, Pillion does not inject into
    /// pods. The controller creates the configurations and policies again only if you set webhooks: enabled in the
    /// release's ConfigMap.
    Uninstall(UninstallArgs),
    /// Show whether the installation works now, and which pods differ from their profiles.
    ///
    /// The command only reads from the API server, so it also works while no part of Pillion runs. It shows the
    /// replicas, the leader of the controllers, the kill switch, the certificates with their rotation, and the
    /// profiles.
    Status(StatusArgs),
    /// Show the CPU and memory that injection adds, and what they cost: per namespace, profile and container.
    ///
    /// The injection records of the pods name the added containers. The result is the difference between the requests of
    /// the pods with and without these containers. It does not include changes of the pod author's containers.
    Cost(CostArgs),
    /// List workloads whose pods lack a profile or have an older revision, and restart them.
    ///
    /// Without --apply, the command restarts nothing.
    Rollout(RolloutArgs),
    /// Print the custom resource definitions: pillion crds | kubectl apply -f -
    Crds(CrdsArgs),
    /// Write manual pages: pillion man /usr/local/share/man/man1
    Man(ManArgs),
    /// Print the generated parts of a documentation page.
    #[command(hide = true)]
    Reference {
        /// The page.
        #[arg(value_name = "PAGE")]
        page: Page,
    },
    /// Print the versions of this program and of the installation.
    Version(VersionArgs),
    /// Print completions for a shell: pillion completion bash > /etc/bash_completion.d/pillion
    Completion {
        /// The shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

/// All visible commands that run without a further subcommand, each with the meaning of exit code 1. `None` means that
/// the command never exits with code 1.
const COMMANDS: &[(&str, Option<&str>)] = &[
    ("certs rotate", Some("the rotation is not complete after --wait")),
    ("completion", None),
    ("controller", Some("--check-config found an error")),
    ("convert morvencao", Some(LEFT_OUT)),
    ("convert opentelemetry", Some(LEFT_OUT)),
    ("convert sidecarset", Some(LEFT_OUT)),
    ("convert tumblr", Some(LEFT_OUT)),
    ("cost", None),
    ("crds", None),
    ("dev", None),
    ("diff", Some("a pod would be different")),
    ("doctor", Some("a check found a problem")),
    (
        "explain",
        Some("the object is not, or would not be, injected as its profiles require; or there is an error or a warning"),
    ),
    ("export", Some(LEFT_OUT)),
    ("inject", Some("a pod is rejected, or a profile or manifest is invalid; nothing is printed")),
    ("lint", Some("a profile is invalid")),
    ("man", None),
    ("profiles export", Some("a profile was left out, because it has no such revision; the rest is printed")),
    ("profiles history", None),
    ("profiles list", None),
    ("profiles rollback", Some("the revision is not published after --wait")),
    ("rollout", Some("pods of a workload still differ from their profiles")),
    ("rollout pause", None),
    ("rollout plan", None),
    ("rollout resume", None),
    ("rollout status", Some("a rollout has failed, or still runs after the --timeout of --watch")),
    ("rollout undo", None),
    (
        "status",
        Some("the installation does not work, a pod differs from its profiles, or an injected container does not run"),
    ),
    ("test", Some("a test case fails or is invalid")),
    ("uninject", Some("a part could not be removed; the rest is printed")),
    ("uninstall", None),
    ("version", None),
    ("webhook", Some("--check-config found an error")),
];

const LEFT_OUT: &str = "a part was left out; the rest is printed";

/// The meaning of exit code 2, for all commands. Invalid command lines also exit with this code.
const FAILURE: &str = "the command failed; standard error shows the reason";

/// Returns the command line, with exit codes in the help of each command.
pub(crate) fn command() -> clap::Command {
    with_exit_codes(Arguments::command(), "")
}

/// Returns the command line as [`command`] does. If the executable is the kubectl plugin `kubectl-pillion`, usage lines
/// show `kubectl pillion`.
pub(crate) fn command_as_called(program: Option<&OsStr>) -> clap::Command {
    let name = program.and_then(|program| Path::new(program).file_stem()).and_then(OsStr::to_str);
    match name.and_then(|name| name.strip_prefix("kubectl-")) {
        Some(plugin) => command().bin_name(format!("kubectl {plugin}")),
        None => command(),
    }
}

fn with_exit_codes(command: clap::Command, path: &str) -> clap::Command {
    let command = match COMMANDS.iter().find(|(known, _)| *known == path) {
        Some((_, findings)) => command.after_long_help(exit_codes(*findings)),
        None => command,
    };
    command.mut_subcommands(|below| {
        let name = below.get_name();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        with_exit_codes(below, &path)
    })
}

/// Returns the exit codes with their meanings.
fn exits(findings: Option<&str>) -> impl Iterator<Item = (u8, &str)> {
    let findings = findings.map(|meaning| (Exit::Findings.code(), meaning));
    [(Exit::Success.code(), "success")].into_iter().chain(findings).chain([(Exit::Failure.code(), FAILURE)])
}

fn exit_codes(findings: Option<&str>) -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, meaning) in exits(findings) {
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
pub(crate) fn write_manual(args: ManArgs, command: clap::Command) -> anyhow::Result<Exit> {
    let Some(folder) = args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).context("cannot render the manual page")?;
        output::print(&String::from_utf8(page).context("the manual page is not UTF-8")?)?;
        return Ok(Exit::Success);
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    clap_mangen::generate_to(command, &folder)
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
    Ok(Exit::Success)
}

/// `pillion completion`: prints the completions for a shell.
pub(crate) fn print_completion(shell: Shell) -> anyhow::Result<Exit> {
    // Generated into a buffer: clap's writer panics if the output is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "pillion", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(Exit::Success)
}

/// A page of the documentation with generated parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Page {
    /// `docs/configuration.md`: flags of the services, and keys of the policy files.
    Configuration,
    /// `docs/cli.md`: all commands.
    Cli,
}

/// `pillion reference` (hidden): prints the generated parts of a page, between the comments that mark their positions.
pub(crate) fn print_reference(page: Page) -> anyhow::Result<Exit> {
    output::print(&reference(page)?)?;
    Ok(Exit::Success)
}

fn reference(page: Page) -> anyhow::Result<String> {
    let mut program = command();
    program.build();
    let sections = match page {
        Page::Configuration => vec![
            ("flags", flags(&program, "webhook")?),
            ("keys", settings::table(WebhookPolicy::settings())),
            ("controller flags", flags(&program, "controller")?),
            ("controller keys", settings::table(ControllerPolicy::settings())),
        ],
        Page::Cli => vec![
            ("commands", commands(&program)?),
            ("connection flags", connection_flags(&program)?),
            ("reference", command_reference(&program)?),
        ],
    };
    let mut text = String::new();
    for (name, table) in sections {
        write!(text, "<!-- {name} -->\n\n{table}\n<!-- end of {name} -->\n")?;
    }
    Ok(text)
}

/// Returns the command with this path, such as `profiles list`.
fn find<'p>(program: &'p clap::Command, path: &str) -> anyhow::Result<&'p clap::Command> {
    let found = path.split(' ').try_fold(program, |command, name| command.find_subcommand(name));
    found.with_context(|| format!("there is no command {path}"))
}

/// Returns the first paragraph of a command's help, without a full stop.
fn about(command: &clap::Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Returns the table of all visible commands, with their purposes and the meaning of exit code 1.
fn commands(program: &clap::Command) -> anyhow::Result<String> {
    let mut table = "| command | purpose | exit code 1 |\n|---|---|---|\n".to_owned();
    for (path, findings) in COMMANDS {
        let about = about(find(program, path)?).replace('|', "\\|");
        writeln!(
            table,
            "| [`pillion {path}`](#pillion-{}) | {about} | {} |",
            path.replace(' ', "-"),
            findings.unwrap_or("-")
        )?;
    }
    Ok(table)
}

/// Returns the table of the connection flags, which all commands with an API server connection share.
fn connection_flags(program: &clap::Command) -> anyhow::Result<String> {
    let flags = find(program, "status")?.get_arguments().filter(|flag| flag.get_help_heading() == Some(CONNECTION));
    argument_table(flags)
}

/// Returns a section for each visible command: its help, its usage, and its arguments except the common ones. The
/// sections of `webhook` and `controller` refer to another page for the arguments.
fn command_reference(program: &clap::Command) -> anyhow::Result<String> {
    let mut text = String::new();
    for (path, _) in COMMANDS {
        let command = find(program, path)?;
        let usage = command.clone().render_usage().to_string();
        // A command that has both arguments and subcommands has two usage lines.
        let usage = usage.trim_start_matches("Usage: ").lines();
        let usage =
            usage.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n");
        let help = command.get_long_about().map_or_else(|| about(command), ToString::to_string);
        let help = help.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let help = help.collect::<Vec<_>>().join("\n\n");
        writeln!(text, "### `pillion {path}`\n\n{help}\n\n```text\n{usage}\n```\n")?;
        if ["webhook", "controller"].contains(path) {
            writeln!(text, "The page [configuration](configuration.md) lists the flags.\n")?;
            continue;
        }
        let is_common = |flag: &&Arg| flag.is_global_set() || flag.get_help_heading() == Some(CONNECTION);
        let is_builtin = |flag: &&Arg| ["help", "version"].contains(&flag.get_id().as_str());
        let mut own = command.get_arguments().filter(|flag| !is_common(flag) && !is_builtin(flag)).peekable();
        if own.peek().is_some() {
            writeln!(text, "{}", argument_table(own)?)?;
        }
        if command.get_arguments().any(|flag| flag.get_help_heading() == Some(CONNECTION)) {
            writeln!(text, "This command also accepts the [connection flags](#connection-flags).\n")?;
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}

/// Returns the table of arguments and flags.
fn argument_table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> anyhow::Result<String> {
    let mut table = "| flag | default | meaning |\n|---|---|---|\n".to_owned();
    for argument in arguments {
        let value = match (argument.get_action(), argument.get_value_names()) {
            (ArgAction::SetTrue, _) | (_, None) => String::new(),
            (_, Some(names)) => names.join(" "),
        };
        let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
        let name = match argument.get_long() {
            Some(long) => format!("{short}--{long} {value}"),
            None => value,
        };
        let default = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>();
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
        let default = if is_switch || default.is_empty() { String::new() } else { format!("`{}`", default.join(" ")) };
        let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
        let help = help.with_context(|| format!("{} has no help", argument.get_id()))?;
        // clap removes the full stop of a single sentence.
        let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').replace('|', "\\|");
        help.push('.');
        let values: Vec<_> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        if !is_switch && !values.is_empty() {
            write!(help, " One of {}.", values.join(", "))?;
        }
        if let Some(variable) = argument.get_env() {
            write!(help, " Environment: `{}`.", variable.to_string_lossy())?;
        }
        writeln!(table, "| `{}` | {default} | {help} |", name.trim_end())?;
    }
    Ok(table)
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
    use pillion_api::names::FailureMode;

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
            panic!("the line has another command")
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
        let Command::Webhook(args) = arguments.command else { panic!("the line has another command") };
        assert_eq!(args.listen.to_string(), "[::]:0");
        assert_eq!(args.traces.otlp_endpoint.as_deref(), Some("http://c:4317"));
    }

    #[test]
    fn rollout_runs_without_subcommand() {
        for line in [
            "pillion rollout",
            "pillion rollout -A --apply --in-place --timeout 2m",
            "pillion rollout status",
            "pillion rollout status -A -o wide",
            "pillion rollout status team-a/logger --watch --timeout 5m",
            "pillion rollout resume logger -n team-a",
        ] {
            let Command::Rollout(_) = parse(line).unwrap().command else { panic!("{line} has another command") };
        }
    }

    #[test]
    fn dev_needs_no_flags() {
        let Command::Dev(args) = parse("pillion dev").unwrap().command else { panic!("the line has another command") };
        assert_eq!(args.listen.to_string(), "127.0.0.1:8443");
        assert!(args.profiles.is_empty() && args.namespaces.is_empty());

        let line = "pillion dev -p a --profile b --namespace shop=required --namespace till=held";
        let Command::Dev(args) = parse(line).unwrap().command else { panic!("the line has another command") };
        assert_eq!(args.profiles, [PathBuf::from("a"), PathBuf::from("b")]);
        let levels: Vec<_> =
            args.namespaces.iter().map(|namespace| (&*namespace.name, namespace.failure_mode)).collect();
        assert_eq!(levels, [("shop", FailureMode::Required), ("till", FailureMode::Held)]);
    }

    #[test]
    fn errors_state_expected_values() {
        for (line, expected) in [
            ("pillion dev --namespace shop", "NAME=MODE"),
            ("pillion dev --namespace shop=maybe", "enabled, required or held"),
            ("pillion dev --namespace =held", "NAME=MODE"),
            ("pillion dev --listen 8443", "--listen"),
            ("pillion dev --otlp-endpoint collector:4317", "http://"),
            ("pillion dev --otlp-endpoint https://", "http://"),
            ("pillion dev --trace-ratio 2", "from 0 to 1"),
            ("pillion --log-format xml crds", "text, json"),
            ("pillion rollout --timeout 600", "expected a duration with a unit, such as 30s"),
            ("pillion certs rotate --wait 10", "expected a duration with a unit"),
            ("pillion status -n shop -A", "cannot be used with"),
            ("pillion rollout -n shop pause nginx", "cannot be used with"),
            ("pillion rollout status nginx -A", "cannot be used with"),
            ("pillion rollout status --timeout 5m", "--watch"),
            ("pillion rollout undo", "<NAME>"),
            ("pillion status --as-group mesh", "--as <USER>"),
            ("pillion lint -f github profiles", "-f"),
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

    /// Collects the paths of all visible commands that run without a further subcommand.
    fn leaves(command: &clap::Command, path: &str, all: &mut BTreeSet<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()) {
            let path =
                if path.is_empty() { below.get_name().to_owned() } else { format!("{path} {}", below.get_name()) };
            leaves(below, &path, all);
            if !below.is_subcommand_required_set() {
                all.insert(path);
            }
        }
    }

    #[test]
    fn every_command_has_exit_codes() {
        let mut found = BTreeSet::new();
        leaves(&Arguments::command(), "", &mut found);
        let known: BTreeSet<_> = COMMANDS.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(found, known);
    }

    #[test]
    fn page_has_generated_reference() {
        for section in reference(Page::Cli).unwrap().split_inclusive("<!-- end of ") {
            let (section, _) = section.split_once("\n<!-- end of ").unwrap_or((section, ""));
            let section = section.split_once("<!-- ").map_or(section, |(_, section)| section);
            assert!(CLI_PAGE.contains(section), "run `just generate`: docs/cli.md lacks\n{section}");
        }
    }

    #[test]
    fn help_lists_exit_codes() {
        let mut command = command();
        let diff = command.find_subcommand_mut("diff").unwrap().render_long_help().to_string();
        let codes = "Exit codes:\n  0  success\n  1  a pod would be different\n  2  the command failed; standard error";
        assert!(diff.contains(codes), "{diff}");
        let convert = command.find_subcommand_mut("convert").unwrap();
        let tumblr = convert.find_subcommand_mut("tumblr").unwrap().render_long_help().to_string();
        assert!(tumblr.contains("  1  a part was left out"), "{tumblr}");
        let crds = command.find_subcommand_mut("crds").unwrap().render_long_help().to_string();
        assert!(crds.contains("  0  success\n  2  the command failed"), "{crds}");
    }

    #[test]
    fn cluster_commands_have_connection_flags_of_kubectl() {
        let mut program = command();
        program.build();
        for path in [
            "certs rotate",
            "cost",
            "crds",
            "diff",
            "doctor",
            "explain",
            "profiles export",
            "profiles history",
            "profiles list",
            "profiles rollback",
            "rollout",
            "rollout pause",
            "rollout plan",
            "rollout resume",
            "rollout status",
            "rollout undo",
            "status",
            "uninstall",
            "version",
        ] {
            let flags: BTreeSet<_> = find(&program, path).unwrap().get_arguments().filter_map(Arg::get_long).collect();
            for flag in ["kubeconfig", "context", "as", "as-group", "request-timeout"] {
                assert!(flags.contains(flag), "pillion {path} has no --{flag}");
            }
        }
    }

    #[test]
    fn short_flags_have_one_meaning() {
        fn check(command: &clap::Command) {
            for flag in command.get_arguments() {
                let (Some(short), Some(long)) = (flag.get_short(), flag.get_long()) else { continue };
                let expected = match short {
                    'A' => "all-namespaces",
                    'f' => "filename",
                    'h' => "help",
                    'l' => "selector",
                    'n' => "namespace",
                    'o' => "output",
                    'p' => "profile",
                    'q' => "quiet",
                    'V' => "version",
                    other => panic!("{}: -{other} is not listed here", command.get_name()),
                };
                assert_eq!(long, expected, "-{short} of {}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Arguments::command());
    }

    #[test]
    fn plugin_of_kubectl_has_its_own_usage() {
        let usage = |program: &str| {
            let mut command = command_as_called(Some(OsStr::new(program)));
            command.build();
            find(&command, "profiles list").unwrap().clone().render_usage().to_string()
        };
        assert!(usage("/usr/bin/kubectl-pillion").starts_with("Usage: kubectl pillion profiles list"));
        assert!(usage("pillion").starts_with("Usage: pillion profiles list"));
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
