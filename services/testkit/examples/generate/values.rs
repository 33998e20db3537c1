//! Generates the table of the chart's values, and the descriptions in their schema, from the comments in `values.yaml`.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

/// Returns a Markdown table of all values in `text`, the content of `values.yaml`.
///
/// # Errors
/// A value has no description, or a description has no value.
pub(crate) fn table(text: &str) -> Result<String> {
    let values: Json = serde_saphyr::from_str(text).context("cannot parse values.yaml")?;
    let rows = described(text)?;
    let mut all = Vec::new();
    collect_paths(&values, "", &mut all);
    for path_of_value in all {
        let is_under = |row: &str| {
            path_of_value == row || path_of_value.strip_prefix(row).is_some_and(|rest| rest.starts_with('.'))
        };
        ensure!(rows.iter().any(|(row, _)| is_under(row)), "{path_of_value} has no description in values.yaml");
    }
    let mut table = "| key | default | what it is |\n|---|---|---|\n".to_owned();
    for (row, description) in rows {
        let value = values.pointer(&format!("/{}", row.replace('.', "/")));
        let value = value.with_context(|| format!("values.yaml describes {row}, which is not a value"))?;
        let default = value.to_string().replace('|', "\\|");
        writeln!(table, "| `{row}` | `{default}` | {} |", description.replace('|', "\\|"))?;
    }
    Ok(table)
}

/// Returns the JSON schema of the values with the descriptions in `text`, the content of `values.yaml`.
///
/// # Errors
/// The schema lacks a described value; the error names it.
pub(crate) fn schema(text: &str, schema: &str) -> Result<String> {
    let mut schema: Json = serde_json::from_str(schema).context("cannot parse values.schema.json")?;
    for (row, description) in described(text)? {
        let path = format!("/properties/{}", row.replace('.', "/properties/"));
        let property = schema.pointer_mut(&path).and_then(Json::as_object_mut);
        let property =
            property.with_context(|| format!("values.yaml describes {row}, which the schema does not have"))?;
        property.insert("description".to_owned(), description.into());
    }
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}

/// Returns each described key with its description, a comment above the key that starts with `# --`.
fn described(values: &str) -> Result<Vec<(String, String)>> {
    let (mut rows, mut path, mut comment) = (Vec::new(), Vec::<(usize, String)>::new(), None::<String>);
    for line in values.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some(text) = bare.strip_prefix("# -- ") {
            comment = Some(text.to_owned());
        } else if let (Some(text), Some(comment)) = (bare.strip_prefix("# "), &mut comment) {
            write!(comment, " {text}")?;
        } else if let Some((key, _)) = bare.split_once(':').filter(|(key, _)| key.chars().all(char::is_alphanumeric)) {
            path.retain(|(above, _)| *above < indent);
            path.push((indent, key.to_owned()));
            if let Some(comment) = comment.take() {
                rows.push((path.iter().map(|(_, key)| &**key).collect::<Vec<_>>().join("."), comment));
            }
        }
    }
    Ok(rows)
}

/// Adds the paths of all values below `value` to `into`, except those of non-empty maps.
fn collect_paths(value: &Json, path: &str, into: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                collect_paths(value, format!("{path}.{key}").trim_start_matches('.'), into);
            }
        }
        None => into.push(path.to_owned()),
    }
}
