//! YAML in the text of annotations, as Kubernetes reads it and within bounds.

use serde_json::Value as Json;

/// Reads a text.
///
/// # Errors
/// What is wrong with it, on one line.
pub(crate) fn parse(text: &str) -> Result<Json, String> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let message = error.to_string();
        format!("the text is not YAML: {}", message.lines().next().unwrap_or_default())
    })
}

/// An alias may not make much of little.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_events: 40_000,
            max_nodes: 20_000,
            max_depth: 64,
        },
    }
}
