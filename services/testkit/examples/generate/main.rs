//! Writes the generated files that need this repository's Rust code: dashboards, tables in documents, the table of pod
//! fields, descriptions in the schema of the chart's values, and the seeds of the fuzz corpus. `tools/generate.sh` runs
//! this program, and writes the other generated files.

mod corpus;
mod pod_schema;
#[path = "../../../engine/tests/fuzz/targets.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "this program uses only the sample inputs of the fuzz targets"
)]
mod targets;
mod values;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use pillion_engine::decision::Reason;
use pillion_testkit::dashboards::Source;

/// Writes generated files below the current folder, which must be the repository's root.
#[derive(Debug, Parser)]
struct Arguments {
    /// The OpenAPI v3 document of the core API group, version `v1`.
    #[arg(long, value_name = "FILE")]
    openapi: PathBuf,
    /// A file with the output of `pillion reference configuration`.
    #[arg(long, value_name = "FILE")]
    configuration: PathBuf,
    /// A file with the output of `pillion reference cli`.
    #[arg(long, value_name = "FILE")]
    cli: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    dashboards()?;
    corpus::write(Path::new("fuzz/corpus"))?;
    let schema = pod_schema::table(&read(&arguments.openapi)?)?;
    write("services/engine/src/profile/pod_schema.txt", schema)?;

    let values = read("charts/pillion/values.yaml")?;
    let schema = "charts/pillion/values.schema.json";
    write(schema, values::schema(&values, &read(schema)?)?)?;
    replace_tables("charts/pillion/README.md", &section("values", &values::table(&values)?))?;
    replace_tables("docs/configuration.md", &read(&arguments.configuration)?)?;
    replace_tables("docs/cli.md", &read(&arguments.cli)?)?;
    replace_tables("docs/metrics.md", &section("reasons", &reasons()?))
}

/// Reads a text file. Errors name the file.
fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file unless its content is unchanged, because a newer modification time would recompile the crates that
/// include the file. Errors name the file.
fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
    let (path, content) = (path.as_ref(), content.as_ref());
    if fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Renders each dashboard from its source.
fn dashboards() -> Result<()> {
    for entry in fs::read_dir("dashboards/source").context("cannot list dashboards/source")? {
        let source = entry?.path();
        let name = source.file_stem().and_then(|name| name.to_str()).context("a dashboard file has no name")?;
        let dashboard = Source::read(&read(&source)?).with_context(|| source.display().to_string())?.render(name);
        write(format!("dashboards/{name}.json"), serde_json::to_string_pretty(&dashboard)? + "\n")?;
    }
    Ok(())
}

/// Returns a Markdown table of all reasons of decisions.
fn reasons() -> Result<String> {
    let mut table = "| Reason | Meaning |\n|---|---|\n".to_owned();
    for reason in Reason::ALL {
        writeln!(table, "| `{reason}` | {} |", reason.sentence())?;
    }
    Ok(table)
}

/// Wraps a table in the comments that mark its position in a document.
fn section(name: &str, table: &str) -> String {
    format!("<!-- {name} -->\n\n{table}\n<!-- end of {name} -->\n")
}

/// For each section in `sections`, replaces the section of the document that has the same name.
fn replace_tables(document: &str, mut sections: &str) -> Result<()> {
    let mut text = read(document)?;
    while let Some(name) =
        sections.strip_prefix("<!-- ").and_then(|rest| rest.split_once(" -->\n")).map(|(name, _)| name)
    {
        let end = format!("<!-- end of {name} -->\n");
        let length = sections.find(&end).with_context(|| format!("the section {name:?} has no end"))? + end.len();
        let (section, rest) = sections.split_at(length);
        let from = text.find(&format!("<!-- {name} -->\n"));
        let to = text.find(&end).map(|to| to + end.len());
        let (from, to) = from.zip(to).with_context(|| format!("{document} has no section {name:?}"))?;
        text.replace_range(from..to, section);
        sections = rest;
    }
    anyhow::ensure!(sections.is_empty(), "expected a section for {document}, found {sections:?}");
    write(document, text)
}
