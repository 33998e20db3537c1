//! Lists the crates that are linked into the program: those of `Cargo.lock` without build and test dependencies. Cargo
//! resolves them for one package and one platform, since the lock file has the features of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::source::{cargo, output};

/// Where sources of crates are in the paths that a program tells, whatever folder cargo has for itself.
const REGISTRY: &[u8] = b"/registry/src/";

/// A crate's name and version.
pub type Key = (String, String);

/// A crate that is in the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crate {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// Under which licences it may be used, as an SPDX expression.
    pub licence: String,
    /// Where its source is kept.
    pub repository: Option<String>,
    /// The folder of its source on this machine.
    pub folder: PathBuf,
    /// The SHA-256 of its package in the registry; none of this repository's own crates.
    pub checksum: Option<String>,
}

impl Crate {
    /// Whether it is one of this repository's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }

    /// What it is told apart by.
    #[must_use]
    pub fn key(&self) -> Key {
        (self.name.clone(), self.version.clone())
    }
}

/// All that is in the program on one platform.
#[derive(Debug, Clone, Default)]
pub struct Linked {
    /// The crates.
    pub crates: BTreeMap<Key, Crate>,
    /// What each of them uses.
    pub dependencies: BTreeMap<Key, BTreeSet<Key>>,
}

impl Linked {
    /// Asks cargo what the program is made of on a platform.
    ///
    /// # Errors
    /// If cargo fails, or two of its answers do not fit.
    pub fn of(root: &Path, target: &str) -> anyhow::Result<Self> {
        let tree = ["tree", "--locked", "--package", "pillion", "--target", target, "--edges", "normal,no-proc-macro"];
        let tree = [tree.as_slice(), &["--prefix", "depth", "--format", " {p}"]].concat();
        let dependencies = dependencies(&output(cargo(), &tree, root)?)?;
        let metadata = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target];
        let metadata: Value = serde_json::from_str(&output(cargo(), &metadata, root)?)?;
        let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
        let checksums = checksums(&lock);
        let mut crates = BTreeMap::new();
        for package in metadata.get("packages").and_then(Value::as_array).context("cargo tells no packages")? {
            let described = described(package, &checksums)?;
            if dependencies.contains_key(&described.key()) {
                crates.insert(described.key(), described);
            }
        }
        if let Some((name, version)) = dependencies.keys().find(|key| !crates.contains_key(*key)) {
            bail!("cargo does not describe {name} {version}, which is in the program");
        }
        Ok(Self { crates, dependencies })
    }

    /// Fails if a program has code of a crate that is not among these. Panics tell where they were in the source, so most
    /// crates leave their name in what they become part of.
    ///
    /// # Errors
    /// If there is such a crate, with all their names; or the program names no crate at all, so that nothing can be said of it.
    pub fn ensure_complete(&self, program: &[u8]) -> anyhow::Result<()> {
        let known: BTreeSet<_> = self.crates.values().map(|each| format!("{}-{}", each.name, each.version)).collect();
        let named = crates_named_in(program);
        ensure!(
            !named.is_empty(),
            "the program names no crate, so what is in it cannot be checked: it was built from sources that are not in cargo's \
             registry, or without the places of panics; expected one that `just dist` has built"
        );
        let unknown: Vec<_> = named.into_iter().filter(|name| !known.contains(name)).collect();
        ensure!(
            unknown.is_empty(),
            "the program has code of crates that cargo does not tell of: {}",
            unknown.join(", ")
        );
        Ok(())
    }

    /// Those that are not this repository's own.
    pub fn foreign(&self) -> impl Iterator<Item = &Crate> {
        self.crates.values().filter(|each| !each.is_ours())
    }
}

/// Names and versions of crates, as in `serde-1.0.0`, from the paths of their sources.
fn crates_named_in(program: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = program;
    while let Some(position) = rest.windows(REGISTRY.len()).position(|window| window == REGISTRY) {
        rest = rest.get(position + REGISTRY.len()..).unwrap_or_default();
        // The registry's own folder, then the crate's.
        if let Some(name) = rest.split(|byte| *byte == b'/').nth(1) {
            names.extend(std::str::from_utf8(name).map(ToOwned::to_owned));
        }
    }
    names
}

/// Who uses what, from a tree whose lines begin with their depth. What stood before is not told again.
fn dependencies(tree: &str) -> anyhow::Result<BTreeMap<Key, BTreeSet<Key>>> {
    let mut dependencies: BTreeMap<Key, BTreeSet<Key>> = BTreeMap::new();
    let mut path: Vec<Key> = Vec::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let parts: Vec<_> = line.split_whitespace().collect();
        let [depth, name, version, ..] = parts.as_slice() else { bail!("cargo tree wrote {line:?}") };
        let depth: usize = depth.parse().with_context(|| format!("cargo tree wrote {line:?}"))?;
        let version = version.strip_prefix('v').with_context(|| format!("cargo tree wrote {line:?}"))?;
        let key = ((*name).to_owned(), version.to_owned());
        dependencies.entry(key.clone()).or_default();
        path.truncate(depth);
        if let Some(user) = path.last() {
            dependencies.entry(user.clone()).or_default().insert(key.clone());
        }
        path.push(key);
    }
    Ok(dependencies)
}

fn described(package: &Value, checksums: &BTreeMap<Key, String>) -> anyhow::Result<Crate> {
    let text = |field: &str| package.get(field).and_then(Value::as_str).map(ToOwned::to_owned);
    let (name, version) = text("name").zip(text("version")).context("cargo tells of a package without a name")?;
    let manifest = PathBuf::from(text("manifest_path").with_context(|| format!("cargo tells not where {name} is"))?);
    let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
    // Before SPDX expressions, a slash meant a choice.
    let licence = text("license").unwrap_or_default().replace(" / ", " OR ").replace('/', " OR ");
    let folder = manifest.parent().map(Path::to_owned).unwrap_or_default();
    Ok(Crate { name, version, licence, repository: text("repository"), folder, checksum })
}

/// The checksums that a lock file has, in the form in which cargo writes it.
fn checksums(lock: &str) -> BTreeMap<Key, String> {
    let value = |package: &str, field: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{field} = \"")));
        line.and_then(|rest| rest.strip_suffix('"')).map(ToOwned::to_owned)
    };
    let checksum = |package: &str| {
        let key = (value(package, "name")?, value(package, "version")?);
        Some((key, value(package, "checksum")?))
    };
    lock.split("[[package]]").filter_map(checksum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, version: &str) -> Key {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn a_tree_tells_who_uses_what() {
        let tree = "0 pillion v0.1.0 (/src)\n1 serde v1.0.1\n2 core v2.0.0\n1 kube v5.0.0\n2 serde v1.0.1 (*)\n";
        let dependencies = dependencies(tree).unwrap();
        assert_eq!(dependencies[&key("pillion", "0.1.0")], [key("serde", "1.0.1"), key("kube", "5.0.0")].into());
        assert_eq!(dependencies[&key("serde", "1.0.1")], [key("core", "2.0.0")].into());
        assert_eq!(dependencies[&key("kube", "5.0.0")], [key("serde", "1.0.1")].into());
        assert_eq!(dependencies.len(), 4);
        assert!(super::dependencies("0 pillion").unwrap_err().to_string().contains("pillion"));
    }

    #[test]
    fn a_program_tells_crates_that_are_missing() {
        let program =
            b"x/cargo/registry/src/index-0a/serde-1.0.1/src/lib.rs\0/home/a/.cargo/registry/src/index-0a/other-2.0.0/a.rs";
        assert_eq!(crates_named_in(program), ["serde-1.0.1".to_owned(), "other-2.0.0".to_owned()].into());
        let error = Linked::default().ensure_complete(program).unwrap_err().to_string();
        assert!(error.ends_with("other-2.0.0, serde-1.0.1"), "{error}");
        let error = Linked::default().ensure_complete(b"nothing").unwrap_err().to_string();
        assert!(error.starts_with("the program names no crate"), "{error}");
        let described = |name: &str, version: &str| Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: String::new(),
            repository: None,
            folder: PathBuf::new(),
            checksum: None,
        };
        let crates = [described("serde", "1.0.1"), described("other", "2.0.0")];
        let linked = Linked { crates: crates.map(|each| (each.key(), each)).into(), ..Linked::default() };
        assert!(linked.ensure_complete(program).is_ok());
    }

    #[test]
    fn a_lock_file_tells_checksums_of_what_is_not_ours() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.2.3\"\nsource = \"registry\"\nchecksum = \"0a\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksums(lock), [(key("a", "1.2.3"), "0a".to_owned())].into());
    }
}
