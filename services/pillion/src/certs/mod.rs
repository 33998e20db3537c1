//! `pillion certs`: shows the state of the certificates' rotation, or requests a rotation.
//!
//! Both talk only to the API server, so they also work without a running controller.

mod rotate;
pub(crate) mod status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::rotate::RotateArgs;
use self::status::StatusArgs;
use crate::args::block_on;

/// Arguments of `pillion certs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CertsCommand {
    /// Ask the controller for a new certificate authority. No admission fails of it.
    Rotate(RotateArgs),
    /// Show how far the rotation is, and when what ends.
    Status(StatusArgs),
}

/// Runs the subcommand.
pub(crate) fn run(args: CertsArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        CertsCommand::Rotate(args) => block_on(rotate::run(args)),
        CertsCommand::Status(args) => block_on(status::run(args)),
    }
}
