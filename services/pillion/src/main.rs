//! The program `pillion`: the webhook, the controller, and commands for users and pipelines.
//!
//! [`cli`] parses the command line. Most commands are modules with their arguments and a `run` function. The commands
//! share the modules that are declared before them.

// Shared by the commands.
mod exit;
mod finding;
mod load;
mod output;
mod difference;
mod workload;
mod trial;
mod running_pods;
mod telemetry;
mod config;
mod args;
mod installation;
mod availability;

// The commands.
mod crds;
mod convert;
mod export;
mod lint;
mod test;
mod inject;
mod uninject;
mod explain;
mod doctor;
mod certs;
mod status;
mod cost;
mod diff;
mod profiles;
mod rollout;
mod uninstall;
mod version;
mod serve;

// The command line.
mod cli;

use clap::FromArgMatches;

use crate::cli::{Arguments, Command};
use crate::exit::Exit;
use crate::telemetry::Telemetry;

fn main() -> Exit {
    // Must run first: the first connection would panic without exactly one provider. An error means that a provider is
    // already installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let matches = cli::command_as_called(std::env::args_os().next().as_deref()).get_matches();
    match Arguments::from_arg_matches(&matches).map_err(anyhow::Error::from).and_then(run) {
        Ok(code) => code,
        Err(error) => {
            // If standard error cannot be written, the error cannot be reported.
            let _ = output::error(&error);
            Exit::Failure
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let Arguments { logs, command } = arguments;
    match command {
        Command::Webhook(args) => serve::webhook::run(args, &logs),
        Command::Controller(args) => serve::controller::run(args, &logs),
        Command::Dev(args) => serve::dev::run(args, &logs),
        Command::Certs(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| certs::run(args)),
        Command::Inject(args) => Telemetry::logs(&logs).and_then(|()| inject::run(args)),
        Command::Explain(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| explain::run(args)),
        Command::Doctor(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| doctor::run(args)),
        Command::Uninject(args) => Telemetry::logs(&logs).and_then(|()| uninject::run(args)),
        Command::Diff(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| diff::run(args)),
        Command::Lint(args) => Telemetry::logs(&logs).and_then(|()| lint::run(args)),
        Command::Test(args) => Telemetry::logs(&logs).and_then(|()| test::run(args)),
        Command::Profiles(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| profiles::run(args)),
        Command::Export(args) => Telemetry::logs(&logs).and_then(|()| export::run(args)),
        Command::Convert(args) => Telemetry::logs(&logs).and_then(|()| convert::run(args)),
        Command::Uninstall(args) => uninstall::run(args),
        Command::Status(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| status::run(args)),
        Command::Cost(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| cost::run(args)),
        Command::Rollout(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| rollout::run(args)),
        Command::Crds(args) => crds::run(args),
        Command::Man(args) => cli::write_manual(args, cli::command()),
        Command::Reference { page } => cli::print_reference(page),
        Command::Version(args) => Telemetry::logs(&logs.for_interactive()).and_then(|()| version::run(args)),
        Command::Completion { shell } => cli::print_completion(shell),
    }
}
