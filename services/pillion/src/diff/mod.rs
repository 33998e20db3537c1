//! `pillion diff`: shows what changed profiles would do, without doing it.
//!
//! * [`cluster`]: to running pods, workload by workload. It writes nothing.
//! * [`files`]: to the pods of manifests, comparing the old profiles with the new ones.
//! * [`report`]: prints differences for people and programs.
//!
//! Both render the same pod twice with the same engine, so changes by the API server or others never show as a
//! difference.

mod cluster;
mod files;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::report::Compared;
use crate::args;
use crate::args::ClusterArgs;
use crate::config::ConfigArg;
use crate::load::Problem;
use crate::output::{self, Form};

/// Exit code: there is a difference.
const DIFFERS: u8 = 1;
/// Exit code: the comparison failed.
const WRONG: u8 = 2;

/// Arguments of `pillion diff`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DiffArgs {
    /// The changed profiles: files, and folders of files. May be given several times.
    #[arg(short, long = "profile", value_name = "PATH", required = true)]
    profiles: Vec<PathBuf>,
    /// Manifests to compare with instead of the pods that run, "-" for standard input. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE", requires = "against")]
    files: Vec<PathBuf>,
    /// The profiles as they were, for manifests. May be given several times.
    #[arg(long, value_name = "PATH", requires = "files")]
    against: Vec<PathBuf>,
    /// The pods of this namespace; without it, of all that are opted in. Of manifests: the namespace of objects that do not
    /// name one.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Namespace objects, whose labels and annotations count for manifests.
    #[arg(long, value_name = "FILE", requires = "files")]
    namespace_file: Option<PathBuf>,
    /// How the result is printed.
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    at: ClusterArgs,
}

/// Why the comparison failed.
enum Fault {
    /// Problems in files.
    Problems(Vec<Problem>),
    /// Any other error.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Prints the differences. Exit code 1: there are some; 2: the comparison failed.
pub(crate) fn run(args: DiffArgs) -> anyhow::Result<ExitCode> {
    let output = args.output;
    let compared = if args.files.is_empty() {
        args::block_on(async { Ok(cluster::compare(args).await) })?
    } else {
        files::compare(&args)
    };
    let compared = match compared {
        Ok(compared) => compared,
        Err(Fault::Problems(problems)) => {
            output::problems(&problems)?;
            return Ok(ExitCode::from(WRONG));
        }
        Err(Fault::Other(error)) => {
            output::error(&error)?;
            return Ok(ExitCode::from(WRONG));
        }
    };
    output.print(|| report::text(&compared), || report::value(&compared))?;
    if output == Form::Text {
        output::tell(&report::summary(&compared))?;
    }
    let differs = compared.iter().any(Compared::differs);
    Ok(if differs { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
}
