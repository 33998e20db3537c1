//! Builds a release of Pillion: images, archives and bills of materials. The program `dist` uses it (`just dist`).
//!
//! The crate needs no container engine, registry or network: an image is a tar archive with four kinds of JSON. Two
//! builds of one commit with one compiler give the same bytes: entries are sorted, times are the commit's, and owners
//! are unset.
//!
//! - [`source`]: version, revision and time of the checkout.
//! - [`archive`]: reproducible tar archives.
//! - [`binary`]: the platform of a program, and a check that it is static.
//! - [`image`]: container images as an OCI layout in an archive, for containerd, Docker, Podman and skopeo.
//! - [`build`]: builds the program for a platform.
//! - [`linked`]: the crates that are linked into the program, without those that only build or test it.
//! - [`sbom`]: these crates as `CycloneDX`; [`licences`]: their licences as text.
//! - [`release`]: writes everything into one folder.
//!
//! Nothing of this crate is in the product.

pub mod source;
pub mod archive;
pub mod binary;
pub mod image;
pub mod build;
pub mod linked;
pub mod sbom;
pub mod licences;
pub mod release;
