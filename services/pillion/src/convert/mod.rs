//! `pillion convert`: converts the configuration of other injectors into profiles.
//!
//! * [`from`]: the conversions, which know nothing of files.
//! * [`documents`]: reads files into documents and reports errors with their positions.

mod documents;
pub(crate) mod from;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::documents::{Documents, Wanted};
use self::from::{Converted, Document, Remark, morvencao, opentelemetry, sidecarset, tumblr};
use crate::output::{self, Format};

/// The exit code of a conversion that omitted something.
const LEFT_OUT: u8 = 3;

/// Arguments of `pillion convert`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConvertArgs {
    #[command(subcommand)]
    command: ConvertCommand,
}

#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
enum ConvertCommand {
    /// Make a profile of each configuration of k8s-sidecar-injector: keys of ConfigMaps, and files.
    ///
    /// The profiles extend sidecar-config, which is in profiles/tumblr.
    Tumblr(TumblrArgs),
    /// Make profiles of Instrumentation resources of the OpenTelemetry operator.
    ///
    /// They extend those in profiles/otel-*: one for each resource and language, and one of the resource's own namespace that
    /// only extends that.
    Opentelemetry(OpentelemetryArgs),
    /// Make a profile of the configuration of morvencao's sidecar injector: keys of ConfigMaps, and files.
    Morvencao(MorvencaoArgs),
    /// Make profiles of SidecarSet resources of OpenKruise.
    Sidecarset(FromArgs),
}

/// Arguments of `pillion convert opentelemetry`.
#[derive(Clone, Debug, Args)]
struct OpentelemetryArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Languages to convert. May be given several times. Default: all.
    #[arg(long = "language", value_name = "LANGUAGE", value_parser = opentelemetry::LANGUAGE_NAMES)]
    languages: Vec<String>,
    /// The namespace of resources that do not say theirs.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,
}

/// Arguments of `pillion convert morvencao`.
#[derive(Clone, Debug, Args)]
struct MorvencaoArgs {
    #[command(flatten)]
    from: FromArgs,
    /// What the annotations begin with.
    #[arg(long, value_name = "PREFIX", default_value = morvencao::PREFIX)]
    prefix: String,
    /// The name of the profile.
    #[arg(long, value_name = "NAME", default_value = "sidecar")]
    name: String,
}

/// Arguments of `pillion convert tumblr`.
#[derive(Clone, Debug, Args)]
struct TumblrArgs {
    #[command(flatten)]
    from: FromArgs,
    /// What the annotations begin with.
    #[arg(long, value_name = "PREFIX", default_value = tumblr::PREFIX)]
    prefix: String,
}

/// What is converted, and how the result is printed.
#[derive(Clone, Debug, Args)]
struct FromArgs {
    /// Files, and folders of files; "-" for standard input. May be given several times.
    #[arg(short, long = "filename", required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// How the profiles are printed.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
}

/// Runs the conversion, and prints the profiles if there are no errors.
pub(crate) fn run(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ConvertCommand::Tumblr(TumblrArgs { from, prefix }) => {
            let options = tumblr::Options { prefix: prefix.trim_end_matches('/').to_owned() };
            from.convert(Wanted::ConfigMaps, |documents| tumblr::convert(documents, &options))
        }
        ConvertCommand::Opentelemetry(OpentelemetryArgs { from, languages, namespace }) => {
            let options = opentelemetry::Options { languages, namespace };
            from.convert(Wanted::Kind("Instrumentation"), |documents| opentelemetry::convert(documents, &options))
        }
        ConvertCommand::Morvencao(MorvencaoArgs { from, prefix, name }) => {
            let options = morvencao::Options { prefix: prefix.trim_end_matches('/').to_owned(), name };
            from.convert(Wanted::ConfigMaps, |documents| morvencao::convert(documents, &options))
        }
        ConvertCommand::Sidecarset(from) => from.convert(Wanted::Kind("SidecarSet"), sidecarset::convert),
    }
}

impl FromArgs {
    fn convert(
        &self,
        wanted: Wanted,
        convert: impl FnOnce(&[Document]) -> Result<Converted, Vec<Remark>>,
    ) -> anyhow::Result<ExitCode> {
        let documents = match Documents::read(&self.files, wanted) {
            Ok(documents) => documents,
            Err(problems) => {
                output::problems(&problems)?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let Converted { profiles, notes } = match convert(documents.all()) {
            Ok(converted) => converted,
            Err(faults) => {
                output::problems(&documents.problems(&faults))?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let notes: Vec<_> = documents.problems(&notes).into_iter().map(crate::load::Problem::harmless).collect();
        output::problems(&notes)?;
        output::print(&output::objects(&profiles, self.output)?)?;
        Ok(if notes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LEFT_OUT) })
    }
}
