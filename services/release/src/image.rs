//! Writes container images as files: an [OCI layout] in a tar archive, without a container engine.
//!
//! An archive for one platform also has the `manifest.json` of `docker save`, for Docker before version 25. An archive
//! for several platforms has an index, from which an importer takes its own.
//!
//! [OCI layout]: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::archive::{Archive, gzip, sha256};
use crate::binary::{Architecture, architecture_of_static};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const PLAIN_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The user and the group that the program runs as: nobody, by number, so that `runAsNonRoot` can be checked.
const USER: &str = "65532:65532";

/// What images of all platforms have in common.
#[derive(Debug, Clone)]
pub struct ImageMetadata {
    /// Registry and repository, as in `registry.example.com/platform/pillion`.
    pub repository: String,
    /// Its tag.
    pub tag: String,
    /// When its source was written, in seconds since 1970: the time of every file, and of the image.
    pub time: u64,
    /// `org.opencontainers.image.*`, without that prefix: labels of the image and annotations of its manifest.
    pub labels: BTreeMap<String, String>,
}

/// What an image of one platform is made of.
#[derive(Debug, Clone)]
pub struct Content {
    /// The processor that its programs are for.
    pub architecture: Architecture,
    /// The program that a container starts, by its path in it.
    pub entrypoint: String,
    /// Its files. The folders that they are in need not be named.
    pub files: Archive,
    /// How they are packed.
    pub packing: Packing,
}

/// How the files of an image are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As small as can be: for what is sent to others.
    Compressed,
    /// As they are: for what is read at once, on the same machine.
    Plain,
}

/// An image for one platform.
#[derive(Debug, Clone)]
pub struct Image {
    architecture: Architecture,
    blobs: BTreeMap<String, Vec<u8>>,
    manifest: Descriptor,
    config: Descriptor,
    layer: Descriptor,
}

impl Image {
    /// One that has a static program at `/pillion` and some files beside it.
    ///
    /// # Errors
    /// If the program is not static, or is for a processor that no image is made for.
    pub fn new(metadata: &ImageMetadata, program: &[u8], files: Archive) -> anyhow::Result<Self> {
        let architecture = architecture_of_static(program).context("the program cannot run in an image of its own")?;
        // A folder for whoever runs a command of the CLI; a replica's file system is read-only.
        let files = files.program("pillion", program).folder("tmp", 0o1777);
        let content = Content { architecture, entrypoint: "/pillion".to_owned(), files, packing: Packing::Compressed };
        Self::of(metadata, content)
    }

    /// One of any content.
    ///
    /// # Errors
    /// If a path is too long for an archive.
    pub fn of(metadata: &ImageMetadata, content: Content) -> anyhow::Result<Self> {
        let Content { architecture, entrypoint, files, packing } = content;
        let layer = files.with_folders().tar(metadata.time)?;
        let layer_digest = digest(&layer);
        let (media_type, layer) = match packing {
            Packing::Compressed => (COMPRESSED_LAYER, gzip(&layer)?),
            Packing::Plain => (PLAIN_LAYER, layer),
        };
        let created = timestamp(metadata.time)?;
        let labels = labels(metadata, &created);

        let mut blobs = Blobs::default();
        let config = json!({
            "created": created,
            "architecture": architecture.name(),
            "os": "linux",
            "config": {
                "User": USER,
                "Env": ["PATH=/"],
                "Entrypoint": [entrypoint],
                "WorkingDir": "/",
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
            "history": [{"created": created, "created_by": "just dist"}],
        });
        let config = blobs.add(CONFIG, config.to_string().into_bytes());
        let layer = blobs.add(media_type, layer);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.json(),
            "layers": [layer.json()],
            "annotations": labels,
        });
        let manifest = blobs.add(MANIFEST, manifest.to_string().into_bytes());
        Ok(Self { architecture, blobs: blobs.0, manifest, config, layer })
    }

    /// The processor that it is for.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// What an index says of it.
    fn entry(&self) -> Map<String, Value> {
        let mut entry = self.manifest.json();
        entry.insert("platform".to_owned(), json!({"architecture": self.architecture.name(), "os": "linux"}));
        entry
    }
}

/// An image in an archive, and the digest by which it is asked for.
#[derive(Debug, Clone)]
pub struct ImageArchive {
    /// `sha256:...`, of the manifest or of the index of manifests.
    pub digest: String,
    /// The archive.
    pub bytes: Vec<u8>,
}

/// Puts images of one name for different platforms into an archive.
///
/// # Errors
/// If there is none, or two for one platform.
pub fn archive(metadata: &ImageMetadata, images: &[Image]) -> anyhow::Result<ImageArchive> {
    let mut images: Vec<_> = images.iter().collect();
    images.sort_by_key(|image| image.architecture);
    ensure!(!images.is_empty(), "an archive needs an image");
    let distinct = images.windows(2).all(|pair| matches!(pair, [one, other] if one.architecture != other.architecture));
    ensure!(distinct, "two images are for the same platform");

    let mut blobs = Blobs(images.iter().flat_map(|image| image.blobs.clone()).collect());
    let mut layout = Archive::new().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let (digest, mut top) = if let [image] = images.as_slice() {
        layout = layout.file("manifest.json", docker_manifest(metadata, image));
        (image.manifest.digest.clone(), image.entry())
    } else {
        let manifests: Vec<_> = images.iter().map(|image| image.entry()).collect();
        let annotations = labels(metadata, &timestamp(metadata.time)?);
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations});
        let index = blobs.add(INDEX, index.to_string().into_bytes());
        (index.digest.clone(), index.json())
    };
    // By the first, containerd and Docker name what they import; by the second, skopeo and Podman find it.
    let names = json!({
        "io.containerd.image.name": format!("{}:{}", qualified(&metadata.repository), metadata.tag),
        "org.opencontainers.image.ref.name": metadata.tag,
    });
    top.insert("annotations".to_owned(), names);
    layout = layout.file("index.json", json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]}).to_string());
    for (digest, content) in blobs.0 {
        layout = layout.file(&blob_path(&digest), content);
    }
    Ok(ImageArchive { digest, bytes: layout.tar(metadata.time)? })
}

/// Content by its digest.
#[derive(Debug, Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Keeps it, and says where it is.
    fn add(&mut self, media_type: &'static str, content: Vec<u8>) -> Descriptor {
        let descriptor = Descriptor { media_type, digest: digest(&content), size: content.len() };
        self.0.insert(descriptor.digest.clone(), content);
        descriptor
    }
}

/// What some content is, and by what it is found and checked.
#[derive(Debug, Clone)]
struct Descriptor {
    media_type: &'static str,
    digest: String,
    size: usize,
}

impl Descriptor {
    fn json(&self) -> Map<String, Value> {
        let fields = [
            ("mediaType", Value::from(self.media_type)),
            ("digest", Value::from(self.digest.as_str())),
            ("size", Value::from(self.size)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn docker_manifest(metadata: &ImageMetadata, image: &Image) -> String {
    json!([{
        "Config": blob_path(&image.config.digest),
        "RepoTags": [format!("{}:{}", metadata.repository, metadata.tag)],
        "Layers": [blob_path(&image.layer.digest)],
    }])
    .to_string()
}

fn labels(metadata: &ImageMetadata, created: &str) -> BTreeMap<String, String> {
    let created = [("created".to_owned(), created.to_owned())];
    let all = metadata.labels.clone().into_iter().chain(created);
    all.map(|(key, value)| (format!("org.opencontainers.image.{key}"), value)).collect()
}

/// A repository as kubelets ask their runtime for it: what names no registry is Docker's.
#[must_use]
pub fn qualified(repository: &str) -> String {
    match repository.split_once('/') {
        None => format!("docker.io/library/{repository}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => repository.to_owned(),
        Some(_) => format!("docker.io/{repository}"),
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", sha256(content))
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// Seconds since 1970 as a time that people read, in UTC.
///
/// # Errors
/// If that is later than the year 9999.
pub fn timestamp(seconds: u64) -> anyhow::Result<String> {
    let seconds = i64::try_from(seconds).context("the time is too late")?;
    Ok(jiff::Timestamp::from_second(seconds).context("the time is too late")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_registry_is_the_one_that_kubelets_ask_for() {
        for (repository, expected) in [
            ("pillion", "docker.io/library/pillion"),
            ("platform/pillion", "docker.io/platform/pillion"),
            ("localhost/pillion", "localhost/pillion"),
            ("registry.example.com/pillion", "registry.example.com/pillion"),
            ("registry:5000/a/pillion", "registry:5000/a/pillion"),
        ] {
            assert_eq!(qualified(repository), expected);
        }
    }
}
