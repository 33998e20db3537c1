//! A difference from the expected result, with its place.

use std::fmt;

use serde::Serialize;
use serde_json::Value as Json;

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Aspect {
    /// The object behind it.
    Object,
    /// A variable of a container.
    Env,
    /// Whether it is refused, and how.
    Denied,
    /// What the author is told.
    Told,
    /// Why a profile was applied or not.
    Reason,
    /// The object when it is given to the webhook once more.
    SecondPass,
    /// The object once what was injected is taken out again.
    Undone,
    /// The object without the API server's word on who wrote what, as the command line sees it.
    CommandLine,
}

/// One place where something is not as it was expected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What differs.
    pub aspect: Aspect,
    /// Where in it: `spec.containers[app].image`; empty for all of it.
    pub path: String,
    /// What is there; `None` if nothing is.
    pub found: Option<Json>,
    /// What should be; `None` if nothing should.
    pub expected: Option<Json>,
}

impl Aspect {
    /// What is said before the place, in words.
    const fn words(self) -> &'static str {
        match self {
            Self::Object => "",
            Self::Env => "variable ",
            Self::Denied => "refusal ",
            Self::Told => "what the author is told ",
            Self::Reason => "reason of ",
            Self::SecondPass => "a second pass changes ",
            Self::Undone => "uninjected it is not what it was: ",
            Self::CommandLine => "without managedFields it is different: ",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = format!("{}{}", self.aspect.words(), self.path);
        let place = if place.is_empty() { "the object" } else { place.trim_end() };
        writeln!(formatter, "{place}")?;
        write_value(formatter, "expected", self.expected.as_ref())?;
        formatter.write_str("\n")?;
        write_value(formatter, "found", self.found.as_ref())
    }
}

/// A value on one line, or a text of several lines as it reads.
fn write_value(formatter: &mut fmt::Formatter<'_>, what: &str, value: Option<&Json>) -> fmt::Result {
    write!(formatter, "  {what:<8}  ")?;
    match value {
        None => formatter.write_str("(nothing)"),
        Some(Json::String(text)) if text.contains('\n') && !text.contains('\r') => {
            formatter.write_str("|")?;
            text.lines().try_for_each(|line| write!(formatter, "\n            {line}"))
        }
        Some(value) => write!(formatter, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_reads_as_what_was_expected_and_what_was_found() {
        let difference = |found, expected| Difference {
            aspect: Aspect::Object,
            path: "spec.containers[app].image".to_owned(),
            found,
            expected,
        };
        assert_eq!(
            difference(Some(json!("a:1")), Some(json!("a:2"))).to_string(),
            "spec.containers[app].image\n  expected  \"a:2\"\n  found     \"a:1\""
        );
        assert_eq!(
            difference(None, Some(json!("one\ntwo\n"))).to_string(),
            "spec.containers[app].image\n  expected  |\n            one\n            two\n  found     (nothing)"
        );
    }
}
