//! Pillion's one program: the webhook, and the commands that show what it does without a cluster.
//!
//! The command line becomes values ([`args`]), and each command is a module that takes its own.

mod args;
mod causes;
mod certs;
mod config;
mod crds;
mod creation;
mod export;
mod inject;
mod lint;
mod load;
mod output;
mod profiles;
mod serve;
mod status;
mod telemetry;
mod uninstall;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Arguments, Command};
use crate::telemetry::Telemetry;

fn main() -> ExitCode {
    // Before anything else: with no provider, or two, the first connection would be a panic. Err says that there is one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("error: {}", causes::told(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { logs, command } = arguments;
    match command {
        Command::Webhook(args) => serve::webhook::run(args, &logs),
        Command::Controller(args) => serve::controller::run(args, &logs),
        Command::Dev(args) => serve::dev::run(args, &logs),
        Command::Certs(args) => Telemetry::logs(&logs).and_then(|()| certs::run(args)),
        Command::Inject(args) => Telemetry::logs(&logs).and_then(|()| inject::run(args)),
        Command::Lint(args) => Telemetry::logs(&logs).and_then(|()| lint::run(args)),
        Command::Profiles(args) => Telemetry::logs(&logs).and_then(|()| profiles::run(args)),
        Command::Export(args) => Telemetry::logs(&logs).and_then(|()| export::run(args)),
        Command::Uninstall(args) => uninstall::run(args),
        Command::Status(args) => Telemetry::logs(&logs).and_then(|()| status::run(args)),
        Command::Crds(args) => crds::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "pillion", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}
