//! Formats an error with its causes, each once.
//!
//! Some libraries repeat the cause in the error's own text and also return it as the source, so a plain chain would
//! print it twice.

/// Formats an error with its causes on one line. Skips causes that an outer message already contains.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(cause.trim_end()) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let error = anyhow!("no such file").context("cannot read a.yaml: no such file").context("cannot start");
        assert_eq!(told(&error), "cannot start: cannot read a.yaml: no such file");
        assert_eq!(told(&anyhow!("b").context("a")), "a: b");
        assert_eq!(told(&anyhow!("alone")), "alone");
    }
}
