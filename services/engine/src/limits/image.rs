//! Image references as a container runtime reads them, and their prefixes.
//!
//! Short names are completed first (`nginx` is `docker.io/library/nginx`). Then a prefix is compared part by part: the
//! prefix `ghcr.io/team` matches `ghcr.io/team/tool` but not `ghcr.io/teammate/tool`. A string that runtimes reject is
//! never a reference, so unusual spellings cannot bypass the check.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The other name of the default registry.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";

/// The folder of names without a registry and a folder.
const DEFAULT_FOLDER: &str = "library";

/// The completed name of an image, without tag and digest: its registry, and the parts of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    registry: String,
    path: Vec<String>,
}

/// A registry with an optional path: `ghcr.io`, `registry.example.com:5000/team`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ImagePrefix(Name);

impl ImagePrefix {
    /// Whether an image has this prefix. An invalid reference never has it.
    #[must_use]
    pub fn holds(&self, image: &str) -> bool {
        let Self(Name { registry, path }) = self;
        Name::of_image(image).is_some_and(|name| name.registry == *registry && name.path.starts_with(path))
    }
}

impl TryFrom<String> for ImagePrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let expected =
            || format!("{text:?} is no registry: expected HOST or HOST/PATH without a tag, as in ghcr.io/team");
        let (registry, path) = match text.split_once('/') {
            Some((registry, path)) => (registry, path.strip_suffix('/').unwrap_or(path)),
            None => (text.as_str(), ""),
        };
        if !is_registry(registry) {
            return Err(expected());
        }
        let path: Vec<_> = if path.is_empty() { Vec::new() } else { path.split('/').map(str::to_owned).collect() };
        let registry = canonical(registry).filter(|_| path.iter().all(|part| is_part(part))).ok_or_else(expected)?;
        Ok(Self(Name { registry, path }))
    }
}

/// Writes the prefix in the notation that is parsed.
impl Serialize for ImagePrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for ImagePrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.registry)?;
        self.0.path.iter().try_for_each(|part| write!(formatter, "/{part}"))
    }
}

impl Name {
    /// Parses a reference; `None` if it is invalid.
    fn of_image(image: &str) -> Option<Self> {
        let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return None;
        }
        // A colon before the last slash precedes a port.
        let last = name.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match name.get(last..)?.split_once(':') {
            Some((base, tag)) => (name.get(..last + base.len())?, Some(tag)),
            None => (name, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return None;
        }
        let (registry, path) = match name.split_once('/') {
            Some((registry, path)) if is_registry(registry) => (canonical(registry)?, path),
            _ => (DEFAULT_REGISTRY.to_owned(), name),
        };
        let mut path: Vec<_> = path.split('/').map(str::to_owned).collect();
        if registry == DEFAULT_REGISTRY && path.len() == 1 {
            path.insert(0, DEFAULT_FOLDER.to_owned());
        }
        path.iter().all(|part| is_part(part)).then_some(Self { registry, path })
    }
}

/// Whether the first part of a name is a registry: it has a dot, a port or a capital letter, or is `localhost`.
/// Otherwise it is a folder of the default registry.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Returns a registry in lower case, with aliases resolved; `None` if it is not a valid host name.
fn canonical(registry: &str) -> Option<String> {
    let lower = registry.to_ascii_lowercase();
    let (host, port) = lower.split_once(':').map_or((lower.as_str(), None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !host.split('.').all(is_label) || port.is_some_and(|port| !is_port(port)) {
        return None;
    }
    Some(if lower == DEFAULT_REGISTRY_ALIAS { DEFAULT_REGISTRY.to_owned() } else { lower })
}

/// Whether a part of a path is valid: lower-case letters and digits, with separators only between them.
fn is_part(part: &str) -> bool {
    let is_separator = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = (part.bytes().next(), part.bytes().last());
    matches!(ends, (Some(first), Some(last)) if is_word(first) && is_word(last))
        && part.bytes().all(|byte| is_word(byte) || is_separator(byte))
        && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
        && tag.len() <= 128
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty()
            && algorithm.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_'))
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> ImagePrefix {
        ImagePrefix::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_prefix_holds_whole_parts_of_completed_names() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        for (text, image, expected) in [
            ("docker.io", "nginx", true),
            ("docker.io", "nginx:1.27", true),
            ("docker.io/library", "nginx", true),
            ("docker.io/library", "docker.io/nginx", true),
            ("index.docker.io/library", "nginx", true),
            ("docker.io/library", "index.docker.io/library/nginx", true),
            ("docker.io/library/nginx", "nginx", true),
            ("docker.io/library", "team/nginx", false),
            ("docker.io/team", "team/nginx", true),
            ("docker.io", "docker.io.evil.example/x", false),
            ("docker.io", "docker.io:5000/x", false),
            ("docker.io", "evil.example/docker.io/x", false),
            ("docker.io", "localhost/x", false),
            ("ghcr.io/team", "ghcr.io/team/tool:1", true),
            ("ghcr.io/team/", "ghcr.io/team/tool", true),
            ("ghcr.io/team", "ghcr.io/team", true),
            ("ghcr.io/team", "ghcr.io/teammate/tool", false),
            ("ghcr.io/team", "ghcr.io/Team/tool", false),
            ("ghcr.io/team", "GHCR.IO/team/tool", true),
            ("GHCR.io/team", "ghcr.io/team/tool", true),
            ("ghcr.io", "ghcr.io./team/tool", false),
            ("MYHOST/team", "MyHost/team/tool", true),
            ("MYHOST/team", "myhost/team/tool", false),
            ("ghcr.io", "ghcr.io:443/team/tool", false),
            ("registry.example.com:5000/team", "registry.example.com:5000/team/a:1", true),
            ("registry.example.com:5000/team", "registry.example.com/team/a:5000", false),
            ("localhost:5000", "localhost:5000/a", true),
            ("ghcr.io/team", "ghcr.io/team/../evil/tool", false),
            ("ghcr.io/team", "ghcr.io/team//tool", false),
            ("ghcr.io/team", "ghcr.io/team/tool ", false),
            ("ghcr.io/team", " ghcr.io/team/tool", false),
            ("ghcr.io/team", "ghcr.io/team/tool@evil.example/x", false),
            ("ghcr.io/team", "user@ghcr.io/team/tool", false),
            ("ghcr.io/team", "https://ghcr.io/team/tool", false),
            ("ghcr.io/team", "ghcr.io\\team/tool", false),
            ("ghcr.io/team", "ɢhcr.io/team/tool", false),
            ("docker.io", "", false),
            ("docker.io", ":tag", false),
            ("docker.io", "nginx:", false),
        ] {
            assert_eq!(prefix(text).holds(image), expected, "{text} {image:?}");
        }
        for image in [format!("ghcr.io/team/tool@{digest}"), format!("ghcr.io/team/tool:1@{digest}")] {
            assert!(prefix("ghcr.io/team").holds(&image), "{image}");
            assert!(!prefix("ghcr.io/other").holds(&image), "{image}");
        }
    }

    #[test]
    fn a_prefix_says_its_registry() {
        for text in
            ["", "nginx", "team/nginx", "ghcr.io/team:1", "ghcr.io/*", "https://ghcr.io", "ghcr.io//a", ".", "a.b/C"]
        {
            let error = ImagePrefix::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains("expected HOST or HOST/PATH"), "{text:?}: {error}");
        }
        assert_eq!(prefix("index.docker.io/team/").to_string(), "docker.io/team");
    }
}
