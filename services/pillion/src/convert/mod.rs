//! `pillion convert`: converts the configuration of other injectors to profiles.
//!
//! * [`from`]: the conversions. They do not access files.
//!
//! The commands read files into documents, and report errors with their positions.

pub(crate) mod from;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};

use self::from::{Converted, Document, Remark, morvencao, opentelemetry, sidecarset, tumblr};
use crate::exit::Exit;
use crate::load::yaml::{self, Content, Node};
use crate::load::{self, Problem, Source};
use crate::output::{self, Format};

/// Arguments of `pillion convert`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConvertArgs {
    #[command(subcommand)]
    command: ConvertCommand,
}

#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
enum ConvertCommand {
    /// Convert configurations of k8s-sidecar-injector (files, or keys of ConfigMaps) to profiles.
    ///
    /// The profiles extend the shipped profile sidecar-config, which is in profiles/tumblr.
    Tumblr(TumblrArgs),
    /// Convert Instrumentation resources of the OpenTelemetry operator to profiles.
    ///
    /// For each resource and language, the output has a cluster profile, which extends the shipped profile in
    /// profiles/otel-*, and a profile in the resource's own namespace, which extends this cluster profile.
    Opentelemetry(OpentelemetryArgs),
    /// Convert configurations of morvencao's sidecar injector (files, or keys of ConfigMaps) to profiles.
    Morvencao(MorvencaoArgs),
    /// Convert SidecarSet resources of OpenKruise to profiles.
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
    /// The namespace of resources that do not set one.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,
}

/// Arguments of `pillion convert morvencao`.
#[derive(Clone, Debug, Args)]
struct MorvencaoArgs {
    #[command(flatten)]
    from: FromArgs,
    /// The prefix of the annotations.
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
    /// The prefix of the annotations.
    #[arg(long, value_name = "PREFIX", default_value = tumblr::PREFIX)]
    prefix: String,
}

/// The files to convert, and the output format.
#[derive(Clone, Debug, Args)]
struct FromArgs {
    /// Files, and folders of files; "-" for standard input. May be given several times.
    #[arg(short, long = "filename", required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
}

/// Runs the conversion, and prints the profiles if there are no errors.
pub(crate) fn run(args: ConvertArgs) -> anyhow::Result<Exit> {
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
    ) -> anyhow::Result<Exit> {
        let documents = match Documents::read(&self.files, wanted) {
            Ok(documents) => documents,
            Err(problems) => {
                output::problems(&problems)?;
                return Ok(Exit::Failure);
            }
        };
        let Converted { profiles, notes } = match convert(documents.all()) {
            Ok(converted) => converted,
            Err(faults) => {
                output::problems(&documents.problems(&faults))?;
                return Ok(Exit::Failure);
            }
        };
        let notes: Vec<_> = documents.problems(&notes).into_iter().map(Problem::into_warning).collect();
        output::problems(&notes)?;
        output::print(&output::objects(&profiles, self.output)?)?;
        Ok(Exit::findings(!notes.is_empty()))
    }
}

/// The maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The maximum nesting depth of lists.
const MAX_LISTS: usize = 8;

/// The kind of Kubernetes objects that a conversion reads. It also reads documents that are not Kubernetes objects.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// `ConfigMap`s, whose keys contain the documents.
    ConfigMaps,
    /// Objects of this kind.
    Kind(&'static str),
}

/// All documents with their positions.
struct Documents {
    wanted: Wanted,
    all: Vec<Document>,
    /// The source and the syntax tree of each document.
    places: Vec<(Arc<Source>, Node)>,
    problems: Vec<Problem>,
}

impl Documents {
    /// Reads all files at these paths.
    ///
    /// # Errors
    /// All problems. For example, a file is unreadable, too large or not YAML, or a path contains nothing to convert.
    fn read(paths: &[PathBuf], wanted: Wanted) -> Result<Self, Vec<Problem>> {
        let mut read = Self { wanted, all: Vec::new(), places: Vec::new(), problems: Vec::new() };
        for path in paths {
            let before = (read.all.len(), read.problems.len());
            if path.as_os_str() == "-" {
                let mut text = String::new();
                match io::stdin().take(MAX_FILE_BYTES + 1).read_to_string(&mut text) {
                    Ok(size) => read.sized("<stdin>".to_owned(), size as u64, || Ok(text)),
                    Err(error) => read.cannot("<stdin>", &error),
                }
            } else {
                match load::files(path) {
                    Ok(files) => files.iter().for_each(|file| read.file(file)),
                    Err(error) => read.cannot(&path.display().to_string(), &error),
                }
            }
            if (read.all.len(), read.problems.len()) == before {
                let message = match wanted {
                    Wanted::ConfigMaps => "contains neither a ConfigMap nor a configuration".to_owned(),
                    Wanted::Kind(kind) => format!("contains no {kind}"),
                };
                read.problems.push(Problem::whole(path.display().to_string(), message));
            }
        }
        if read.problems.is_empty() { Ok(read) } else { Err(read.problems) }
    }

    /// Returns the documents, in the order of the files.
    fn all(&self) -> &[Document] {
        &self.all
    }

    /// Returns the remarks as problems with their positions.
    fn problems(&self, remarks: &[Remark]) -> Vec<Problem> {
        remarks.iter().map(|remark| self.problem(remark)).collect()
    }

    fn problem(&self, remark: &Remark) -> Problem {
        let Remark { document, path, message, help } = remark;
        let Some((source, node)) = self.places.get(*document) else { return Problem::whole("", message.as_str()) };
        let at = node.place_of_name(path);
        Problem::at(source, at, message.as_str()).of_field(path.as_str()).with_help(help.clone())
    }

    fn cannot(&mut self, name: &str, error: &io::Error) {
        self.problems.push(Problem::whole(name, format!("cannot be read: {error}")));
    }

    fn file(&mut self, file: &Path) {
        let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
        self.sized(file.display().to_string(), size, || fs::read_to_string(file));
    }

    /// Reads the source `name` of `size` bytes, unless it is too large.
    fn sized(&mut self, name: String, size: u64, text: impl FnOnce() -> io::Result<String>) {
        if size > MAX_FILE_BYTES {
            let message = format!("a file may have at most {MAX_FILE_BYTES} bytes");
            self.problems.push(Problem::whole(name, message).with_help("split it into several files".to_owned()));
            return;
        }
        match text() {
            Ok(text) => self.text(name, text),
            Err(error) => self.cannot(&name, &error),
        }
    }

    fn text(&mut self, name: String, text: String) {
        let source = Arc::new(Source::new(name, text));
        match yaml::documents(&source.text) {
            Ok(documents) => documents.into_iter().for_each(|document| self.document(&source, document, 0)),
            Err(fault) => self.problems.push(Problem::syntax(&source, fault)),
        }
    }

    /// Adds a document, or the items of a list. Objects of other kinds are ignored.
    fn document(&mut self, source: &Arc<Source>, document: Node, depth: usize) {
        match (document.text("apiVersion"), document.text("kind")) {
            (Some(_), Some("ConfigMap")) if matches!(self.wanted, Wanted::ConfigMaps) => {
                self.config_map(source, &document);
            }
            (Some(_), Some(kind)) if matches!(self.wanted, Wanted::Kind(wanted) if wanted == kind) => {
                self.push(source.name.clone(), source, document);
            }
            (Some(_), Some(_)) if depth < MAX_LISTS => {
                let items = document.get("items").map(Node::items).unwrap_or_default();
                for item in items {
                    self.document(source, item.clone(), depth + 1);
                }
            }
            (Some(_), Some(_)) => {}
            _ => self.push(source.name.clone(), source, document),
        }
    }

    /// Adds each key of a `ConfigMap` as a separate file, whose problems have positions in the key's value.
    fn config_map(&mut self, source: &Arc<Source>, object: &Node) {
        let name = object.get("metadata").and_then(|metadata| metadata.text("name")).unwrap_or("ConfigMap");
        for entry in object.get("binaryData").map(Node::entries).unwrap_or_default() {
            let problem = Problem::at(source, entry.key_span.clone(), "a configuration cannot be binary");
            self.problems.push(problem.of_field(format!("binaryData.{}", entry.key)));
        }
        for entry in object.get("data").map(Node::entries).unwrap_or_default() {
            let Content::Scalar(serde_json::Value::String(text)) = &entry.value.content else {
                let problem = Problem::at(source, entry.value.span.clone(), "expected a string");
                self.problems.push(problem.of_field(format!("data.{}", entry.key)));
                continue;
            };
            // The keys get paths in a folder below the path of the file, so that they can reference each other.
            let file = format!("{}/{name}/{}", source.name, entry.key);
            let inner = Arc::new(Source::new(file.clone(), text.clone()));
            match yaml::documents(&inner.text) {
                Ok(documents) => documents.into_iter().for_each(|node| self.push(file.clone(), &inner, node)),
                Err(fault) => self.problems.push(Problem::syntax(&inner, fault)),
            }
        }
    }

    fn push(&mut self, file: String, source: &Arc<Source>, node: Node) {
        self.all.push(Document { file, value: node.to_value() });
        self.places.push((Arc::clone(source), node));
    }
}
