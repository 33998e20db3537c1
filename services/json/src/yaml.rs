//! Parses YAML in strings, such as annotations, the way that Kubernetes does, with limits on size and aliases.

use serde_json::Value as Json;

/// The maximum number of values in a YAML text. Values that are repeated by aliases are counted each time.
pub const MAXIMUM_NODES: usize = 20_000;

/// Parses a YAML text that contains one document.
///
/// # Errors
/// Fails if the text is not valid YAML or exceeds a limit. The error is a single line.
pub fn parse(text: &str) -> Result<Json, String> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let message = error.to_string();
        format!("the text is not YAML: {}", message.lines().next().unwrap_or_default())
    })
}

/// Returns the options of the parser. Their limits prevent a short text with aliases from expanding into a large
/// document.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_events: 40_000,
            max_nodes: MAXIMUM_NODES,
            max_depth: 64,
            max_recorded_anchor_events: 40_000,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn bounds_aliases() {
        assert_eq!(parse("a: &x [1]\nb: *x\n").unwrap(), serde_json::json!({"a": [1], "b": [1]}));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{},", level - 1).repeat(10);
            writeln!(bomb, "a{level}: &a{level} [{before}]").unwrap();
        }
        let start = Instant::now();
        assert!(parse(&bomb).is_err());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}
