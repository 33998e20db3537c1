//! Writes a whole release into one folder: enough to install, check and rebuild it without a network.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::archive::{Archive, gzip};
use crate::binary::{Architecture, architecture_of_static};
use crate::build::{Runtime, runtime, target};
use crate::image::{self, Image, ImageMetadata, archive};
use crate::licences::third_party;
use crate::linked::Linked;
use crate::sbom::sbom;
use crate::source::{Source, bytes, output};

mod folder;

use folder::Folder;

/// How the name of the archive of the source ends.
const SOURCE: &str = "-source.tar.gz";

/// What a release is made from.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The checkout.
    pub source: Source,
    /// The static programs, one for each platform.
    pub programs: Vec<PathBuf>,
    /// Registry and repository of the image.
    pub repository: String,
    /// The program `helm`.
    pub helm: PathBuf,
}

/// Writes a release into a folder, in the place of one that is there. The names of its files.
///
/// # Errors
/// If a part is missing or is not what it should be, or the folder has something else in it.
pub fn make(parts: &Parts, folder: &Path) -> anyhow::Result<Vec<String>> {
    let Parts { source, programs, repository, helm } = parts;
    let mut files = Folder::empty(folder)?;
    let name = |rest: &str| format!("pillion-{}{rest}", source.version);

    let built = programs.iter().map(|path| Built::read(source, path)).collect::<anyhow::Result<Vec<_>>>()?;
    let first = built.first().context("a release needs a program")?;
    let licences = licences(source, &built, &first.runtime)?;
    for (path, text) in &licences {
        files.write(path, text)?;
    }

    let metadata = metadata(source, repository);
    let mut images = Vec::new();
    for each in &built {
        let platform = format!("-linux-{}", each.architecture.name());
        let bill = sbom(source, each.architecture, &each.program, &each.linked, &each.runtime)?;
        files.write(&name(&format!("{platform}.cdx.json")), &bill)?;
        let beside = |prefix: &str| {
            let text = |archive: Archive, (path, text): (&String, &String)| {
                archive.file(&format!("{prefix}licences/{path}"), text.as_bytes())
            };
            licences.iter().fold(Archive::new(), text).file(&format!("{prefix}pillion.cdx.json"), bill.as_bytes())
        };
        let image = Image::new(&metadata, &each.program, beside(""))?;
        let single = archive(&metadata, std::slice::from_ref(&image))?;
        files.write(&name(&format!("{platform}-image.tar")), single.bytes)?;
        images.push(image);
        let top = name(&platform);
        let archive = beside(&format!("{top}/")).program(&format!("{top}/pillion"), each.program.clone());
        files.write(&name(&format!("{platform}.tar.gz")), archive.tar_gz(source.time)?)?;
    }
    // Of one platform it is the same image: then it is only asked for its digest.
    let image = archive(&metadata, &images)?;
    if images.len() > 1 {
        files.write(&name("-image.tar"), &image.bytes)?;
    }

    let chart = chart(source, helm, folder)?;
    files.add(&chart)?;
    let definitions = fs::read(source.root.join("charts/pillion/crds/pillion.dev.yaml"))?;
    files.write(&name("-crds.yaml"), definitions)?;
    files.write(&name("-manifests.yaml"), manifests(helm, &folder.join(&chart), repository)?)?;
    for part in ["dashboards", "deploy", "profiles"] {
        let top = name(&format!("-{part}"));
        let archive = Archive::new().tree(&top, &source.root.join(part))?;
        files.write(&format!("{top}.tar.gz"), archive.tar_gz(source.time)?)?;
    }
    if let Some(packed) = packed_source(source)? {
        files.write(&name(SOURCE), packed)?;
    }
    files.write("CHANGELOG.md", fs::read(source.root.join("CHANGELOG.md")).context("cannot read CHANGELOG.md")?)?;
    let platforms: Vec<_> = built.iter().map(|each| each.architecture.name()).collect();
    files.write("README.md", readme(source, repository, &image.digest, &platforms))?;
    files.end()
}

/// A program, and what it is made of.
struct Built {
    architecture: Architecture,
    program: Vec<u8>,
    linked: Linked,
    runtime: Runtime,
}

impl Built {
    fn read(source: &Source, path: &Path) -> anyhow::Result<Self> {
        let program = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let architecture = architecture_of_static(&program).with_context(|| path.display().to_string())?;
        let linked = Linked::of(&source.root, target(architecture))?;
        linked.ensure_complete(&program).with_context(|| path.display().to_string())?;
        Ok(Self { architecture, program, linked, runtime: runtime(architecture, &source.root)? })
    }
}

/// The files that a release and each of its archives have about licences.
fn licences(source: &Source, built: &[Built], runtime: &Runtime) -> anyhow::Result<BTreeMap<String, String>> {
    let linked: Vec<_> = built.iter().map(|each| each.linked.clone()).collect();
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    Ok([
        ("LICENSE".to_owned(), read(&source.root.join("LICENSE"))?),
        ("THIRD-PARTY-LICENCES.txt".to_owned(), third_party(source, &linked, runtime)?),
        ("RUST-STANDARD-LIBRARY.html".to_owned(), read(&runtime.rust_licences)?),
    ]
    .into())
}

fn metadata(source: &Source, repository: &str) -> ImageMetadata {
    let home = env!("CARGO_PKG_REPOSITORY");
    let mut labels: BTreeMap<String, String> = [
        ("title", "pillion"),
        ("description", "One sidecar injector for a whole Kubernetes cluster"),
        ("licenses", env!("CARGO_PKG_LICENSE")),
        ("source", home),
        ("url", home),
        ("version", &source.version),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    if let Some(revision) = &source.revision {
        labels.insert("revision".to_owned(), revision.clone());
    }
    ImageMetadata { repository: repository.to_owned(), tag: source.version.clone(), time: source.time, labels }
}

/// Packs the chart; the name of the package. It is packed from a copy whose files have the time of the release: helm keeps times,
/// and those in a checkout are of when it was made.
fn chart(source: &Source, helm: &Path, folder: &Path) -> anyhow::Result<String> {
    let copy = tempfile::tempdir().context("no folder for the chart")?;
    let chart = copy.path().join("pillion");
    let tree = Archive::new().tree("pillion", &source.root.join("charts/pillion"))?;
    tar::Archive::new(tree.tar(source.time)?.as_slice()).unpack(copy.path()).context("cannot copy the chart")?;
    let chart = chart.to_string_lossy().into_owned();
    let to = folder.to_string_lossy().into_owned();
    let version = source.version.as_str();
    let arguments = ["package", &chart, "--destination", &to, "--version", version, "--app-version", version];
    output(helm, &arguments, &source.root)?;
    Ok(format!("pillion-{version}.tgz"))
}

/// What the chart renders with nothing but defaults, for those who do not use Helm. Its jobs around upgrades and removal are
/// left out: nobody would start them at the right time.
fn manifests(helm: &Path, chart: &Path, repository: &str) -> anyhow::Result<String> {
    let chart = chart.to_string_lossy().into_owned();
    let image = format!("image.repository={repository}");
    let arguments = ["template", "pillion", &chart, "--namespace", "pillion-system", "--include-crds", "--no-hooks"];
    let arguments = [arguments.as_slice(), &["--set", &image]].concat();
    let rendered = output(helm, &arguments, Path::new("."))?;
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: pillion-system}\n";
    Ok(format!("# Pillion's chart with its default values: kubectl apply --server-side -f FILE\n{namespace}{rendered}"))
}

/// The source as it was committed; none of what differs from a commit.
fn packed_source(source: &Source) -> anyhow::Result<Option<Vec<u8>>> {
    if !source.is_a_commit() {
        return Ok(None);
    }
    let prefix = format!("--prefix=pillion-{}/", source.version);
    let packed = bytes("git", &["archive", "--format=tar", &prefix, "HEAD"], &source.root)?;
    gzip(&packed).map(Some)
}

fn readme(source: &Source, repository: &str, digest: &str, platforms: &[&str]) -> String {
    let (version, revision) = (&source.version, source.revision.as_deref().unwrap_or("unknown"));
    let file = match platforms {
        [platform] => format!("pillion-{version}-linux-{platform}-image.tar"),
        _ => format!("pillion-{version}-image.tar"),
    };
    // What names no registry needs one to be pulled from.
    let is_qualified = image::qualified(repository) == repository;
    let registry = if is_qualified { repository.to_owned() } else { format!("registry.example.com/{repository}") };
    // It names the files that are there, and no others.
    let has_source = source.is_a_commit();
    let lines = include_str!("release/readme.md").lines().filter(|line| has_source || !line.contains(SOURCE));
    lines
        .fold(String::new(), |page, line| page + line + "\n")
        .replace("{registry}", &registry)
        .replace("{version}", version)
        .replace("{revision}", revision)
        .replace("{repository}", repository)
        .replace("{digest}", digest)
        .replace("{image}", &file)
        .replace("{platform}", platforms.first().copied().unwrap_or_default())
        .replace("{platforms}", &platforms.join(", "))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn source(root: &Path, revision: Option<&str>) -> Source {
        let revision = revision.map(ToOwned::to_owned);
        Source { root: root.to_owned(), version: "1.2.3".to_owned(), revision, time: 1_700_000_000 }
    }

    #[test]
    fn the_source_of_a_commit_is_packed_as_it_was_committed() {
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
            output("git", &[author.as_slice(), arguments].concat(), folder.path()).unwrap()
        };
        git(&["init", "--quiet"]);
        fs::write(folder.path().join("file"), "committed").unwrap();
        git(&["add", "file"]);
        git(&["commit", "--quiet", "--no-verify", "--message", "one"]);
        fs::write(folder.path().join("other"), "not committed").unwrap();

        assert!(packed_source(&source(folder.path(), Some("0a-dirty"))).unwrap().is_none());
        assert!(packed_source(&source(folder.path(), None)).unwrap().is_none());
        let packed = packed_source(&source(folder.path(), Some("0a"))).unwrap().unwrap();
        let mut seen = Vec::new();
        for entry in tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice())).entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, mut text) = (entry.path().unwrap().display().to_string(), String::new());
            entry.read_to_string(&mut text).unwrap();
            // git begins with the commit's name.
            if !path.contains("pax_global_header") {
                seen.push((path, text));
            }
        }
        let expected = [("pillion-1.2.3/", ""), ("pillion-1.2.3/file", "committed")];
        assert_eq!(seen, expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
    }

    #[test]
    fn the_page_names_the_files_that_are_there_and_no_others() {
        let page = |revision, platforms: &[&str]| {
            readme(&source(Path::new("."), revision), "registry.example.com/pillion", "sha256:0a", platforms)
        };
        let of_a_commit = page(Some("0a"), &["amd64", "arm64"]);
        assert!(of_a_commit.contains("`pillion-1.2.3-source.tar.gz`"), "{of_a_commit}");
        assert!(of_a_commit.contains("import pillion-1.2.3-linux-amd64-image.tar"), "{of_a_commit}");
        assert!(of_a_commit.contains("oci-archive:pillion-1.2.3-image.tar"), "{of_a_commit}");
        let dirty = page(Some("0a-dirty"), &["arm64"]);
        assert!(!dirty.contains("source.tar.gz") && !dirty.contains("amd64"), "{dirty}");
        assert!(dirty.contains("import pillion-1.2.3-linux-arm64-image.tar"), "{dirty}");
        for page in [of_a_commit, dirty] {
            assert!(!page.contains('{'), "a placeholder is left in {page}");
        }
    }
}
