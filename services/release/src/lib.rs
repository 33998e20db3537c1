//! What a release of Pillion consists of, and the program `dist` that makes it (`just dist`).
//!
//! Nothing here needs a container engine, a registry or the network: an image is a tar archive with four kinds of JSON in
//! it. Whoever makes a release of the same commit with the same compiler gets the same bytes: entries are sorted, times are
//! the commit's, owners are nobody.
//!
//! - [`archive`]: tar archives that come out the same every time.
//! - [`image`]: container images as an OCI layout in an archive, which containerd, Docker, Podman and skopeo take.
//! - [`binary`]: what a program is built for, and that it needs nothing beside itself.
//! - [`source`]: version, revision and time of what is released.
//! - [`build`]: how the program is built for a platform.
//! - [`linked`]: the crates that are in the program, as opposed to those that only build or test it.
//! - [`sbom`]: their list for machines (`CycloneDX`); [`licences`]: their licences for people.
//! - [`release`]: all of it, put into one folder.
//!
//! This crate is for building and testing only; nothing of it is in the product.

pub mod source;
pub mod archive;
pub mod binary;
pub mod image;
pub mod build;
pub mod linked;
pub mod sbom;
pub mod licences;
pub mod release;
