//! Formats the announcement of `dev`: its services, and shell commands to try them.

use std::ffi::OsStr;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pillion_api::names::{MUTATE_PATH, PROFILES_ANNOTATION};
use pillion_api::profile::Activation;
use pillion_engine::profile::{CompiledProfile, ProfileName};
use pillion_engine::snapshot::ProfileSet;

use super::namespaces::FailureModes;
use super::profile_files::Loaded;
use super::sample::{Folder, Sample};

/// A shell command that extracts and decodes the patch of a response, with standard tools.
const DECODE: &str = r#"sed -n 's/.*"patch":"\([^"]*\)".*/\1/p' | base64 -d"#;

/// The facts that `dev` announces.
pub(crate) struct Service<'s> {
    pub(crate) address: SocketAddr,
    pub(crate) metrics_address: SocketAddr,
    /// Whether the metrics port serves the playground.
    pub(crate) has_playground: bool,
    pub(crate) profiles: &'s ProfileSet,
    pub(crate) paths: &'s [PathBuf],
    /// The library folder, if only one of its profiles is served.
    pub(crate) library: Option<&'s Path>,
    pub(crate) namespaces: &'s FailureModes,
    pub(crate) folder: &'s Folder,
    pub(crate) sample: &'s Sample,
    /// The path or name of this program in commands.
    pub(crate) program: &'s Path,
}

impl Service<'_> {
    /// Formats the announcement.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let (url, metrics) = (self.url(), reachable(self.metrics_address));
        writeln!(text, "Serving {url}")?;
        writeln!(text, "Metrics http://{metrics}/metrics")?;
        if self.has_playground {
            writeln!(text, "Playground http://{metrics}/")?;
        } else {
            writeln!(text, "No playground: {metrics} (--metrics-listen) is reachable from other machines")?;
        }
        writeln!(text, "\nProfiles (reloaded when a file changes)")?;
        for path in self.paths {
            writeln!(text, "  from {}", path.display())?;
        }
        if let Some(library) = self.library.map(Path::display) {
            writeln!(text, "  others in {library}: --profile {library}/NAME; all at once: --profile {library}")?;
        }
        for profile in self.profiles.iter() {
            writeln!(text, "  {} ({}): {}", profile.name(), profile.revision(), request_hint(profile))?;
        }
        if self.profiles.is_empty() {
            writeln!(text, "  none")?;
        }
        writeln!(text, "\nNamespaces")?;
        for (name, failure_mode) in self.namespaces {
            let failure_mode = failure_mode.map_or("not opted in", |failure_mode| failure_mode.label_value());
            writeln!(text, "  {name}: {failure_mode}")?;
        }
        let is_served = |name: &ProfileName| {
            name.namespace.as_deref().is_none_or(|namespace| self.namespaces.contains_key(namespace))
        };
        if let Some(name) = self.profiles.iter().map(|profile| profile.name()).find(|name| !is_served(name)) {
            let namespace = name.namespace.as_deref().unwrap_or_default();
            writeln!(
                text,
                "  not {namespace}, to which profile {name} applies; to add it: --namespace {namespace}=enabled"
            )?;
        }
        if !self.sample.injected {
            writeln!(text, "\nNo profile matches a plain pod in these namespaces, so the sample is not injected.")?;
        }
        writeln!(
            text,
            "\nTry a request, and decode its patch (the part before the first | prints the whole response)"
        )?;
        writeln!(text, "  {}", self.curl(&url))?;
        writeln!(text, "Show the resulting pod")?;
        writeln!(text, "  {}", self.inject())?;
        Ok(())
    }

    fn url(&self) -> String {
        format!("https://{}{MUTATE_PATH}", reachable(self.address))
    }

    fn curl(&self, url: &str) -> String {
        let (ca, review) = (quoted(&self.folder.ca()), quoted(&self.folder.review()));
        format!("curl -sS --cacert {ca} -H 'content-type: application/json' --data @{review} {url} | {DECODE}")
    }

    fn inject(&self) -> String {
        let profiles = self.paths.iter().map(|path| format!("-p {}", quoted(path)));
        let words: Vec<_> = profiles.chain([format!("-f {}", quoted(&self.folder.pod()))]).collect();
        format!("{} inject {}", quoted(self.program), words.join(" "))
    }
}

/// Formats the effect of changed files on one line; empty if there are only problems, because these are printed
/// separately.
pub(crate) fn change(loaded: &Loaded) -> String {
    let part = |what: &str, names: &[ProfileName]| {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let parts = [part("loaded", &loaded.changed), part("removed:", &loaded.gone), part("still active:", &loaded.kept)];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("Profiles: {}\n", parts.join("; ")) }
}

fn request_hint(profile: &CompiledProfile) -> String {
    let name = &profile.name().name;
    match profile.activation() {
        Activation::Always => "applies to every pod that its selectors match".to_owned(),
        Activation::Never => "other profiles extend it; it is never applied itself".to_owned(),
        Activation::Requested => {
            let mut text = format!("request it with annotation {PROFILES_ANNOTATION}: {name}");
            for key in profile.request_keys() {
                let word = profile.request_value().unwrap_or(name);
                let _ = write!(text, ", or {key}: {word:?}");
            }
            text
        }
    }
}

/// Returns the host and port at which a client on this machine reaches a server that listens at an address.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_loopback() || address.ip().is_unspecified() {
        format!("localhost:{}", address.port())
    } else {
        address.to_string()
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The name of the installed program.
const NAME: &str = "pillion";

/// Returns the path or name of this program for commands.
pub(crate) fn own_program() -> PathBuf {
    let Ok(program) = std::env::current_exe() else { return PathBuf::from(NAME) };
    called(program, std::env::var_os("PATH").as_deref())
}

/// Returns `pillion` if the first program with this name in the search path is this program, else this program's path.
fn called(program: PathBuf, search: Option<&OsStr>) -> PathBuf {
    let found = search.and_then(|search| {
        let candidates = std::env::split_paths(search).map(|folder| folder.join(NAME));
        candidates.into_iter().find(|candidate| candidate.is_file())
    });
    let same = |found: &Path| match (found.canonicalize(), program.canonicalize()) {
        (Ok(found), Ok(program)) => found == program,
        _ => false,
    };
    if found.as_deref().is_some_and(same) { PathBuf::from(NAME) } else { program }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_path_stays_one_shell_word() {
        assert_eq!(quoted(Path::new("/tmp/pillion-dev-x/ca.crt")), "/tmp/pillion-dev-x/ca.crt");
        assert_eq!(quoted(Path::new("/tmp/my files/it's")), r"'/tmp/my files/it'\''s'");
    }

    #[test]
    fn unspecified_address_is_printed_as_loopback() {
        for (address, expected) in [
            ("127.0.0.1:8443", "localhost:8443"),
            ("0.0.0.0:1", "localhost:1"),
            ("[::]:1", "localhost:1"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()), expected);
        }
    }

    #[test]
    fn change_is_printed_in_one_line() {
        let loaded = Loaded {
            changed: vec![ProfileName::cluster("a")],
            kept: vec![ProfileName::cluster("b")],
            ..Loaded::default()
        };
        assert_eq!(change(&loaded), "Profiles: loaded a; still active: b\n");
        assert_eq!(change(&Loaded::default()), "");
    }

    #[test]
    fn program_name_needs_path_unless_found() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
        for folder in [&ours, &others] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(NAME), "").unwrap();
        }
        let program = ours.join(NAME);
        let of = |folders: &[&Path]| called(program.clone(), Some(&std::env::join_paths(folders).unwrap()));
        assert_eq!(of(&[folder.path(), &ours, &others]), Path::new(NAME));
        assert_eq!(of(&[&others, &ours]), program, "the search path finds another program first");
        assert_eq!(of(&[folder.path()]), program);
        assert_eq!(called(program.clone(), None), program);
    }
}
