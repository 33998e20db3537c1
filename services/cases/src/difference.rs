//! A difference from the expected result, with its path.

use std::fmt;

use serde::Serialize;
use serde_json::Value as Json;

/// The aspect of a result that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Aspect {
    /// The resulting object.
    Object,
    /// An environment variable of a container.
    Env,
    /// The denial: its presence, message and status code.
    Denied,
    /// The messages for the author.
    Message,
    /// The reason why a profile was applied or not.
    Reason,
    /// The object after a second call of the webhook.
    SecondPass,
    /// The object after the injection is undone.
    Undone,
    /// The result for the object without `managedFields`, as in `pillion inject`.
    CommandLine,
}

/// One path at which the result differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The aspect that differs.
    pub aspect: Aspect,
    /// The path within the aspect, such as `spec.containers[app].image`; empty if the aspect differs as a whole.
    pub path: String,
    /// The found value; `None` if it is absent.
    pub found: Option<Json>,
    /// The expected value; `None` if it must be absent.
    pub expected: Option<Json>,
}

impl Aspect {
    /// Returns the prefix of the path in messages.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Object => "",
            Self::Env => "variable ",
            Self::Denied => "denial ",
            Self::Message => "message to the author ",
            Self::Reason => "reason of ",
            Self::SecondPass => "a second pass changes ",
            Self::Undone => "after undoing the injection, the object differs: ",
            Self::CommandLine => "without managedFields, the result differs: ",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{}{}", self.aspect.prefix(), self.path);
        let title = if title.is_empty() { "the object" } else { title.trim_end() };
        writeln!(formatter, "{title}")?;
        write_value(formatter, "expected", self.expected.as_ref())?;
        formatter.write_str("\n")?;
        write_value(formatter, "found", self.found.as_ref())
    }
}

/// Writes a value as JSON on one line, or a multi-line string on several lines.
fn write_value(formatter: &mut fmt::Formatter<'_>, label: &str, value: Option<&Json>) -> fmt::Result {
    write!(formatter, "  {label:<8}  ")?;
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
    fn difference_shows_expected_and_found() {
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
