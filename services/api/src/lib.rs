//! Pillion's API: the custom resources and every name on the wire.
//!
//! The crate does no I/O and makes no decisions. The other crates, and programs that write profiles, share it.
//!
//! * [`labelled!`]: defines enums whose values have fixed strings.
//! * [`names`]: API group, labels, annotations, paths and defaults.
//! * [`selector`]: Kubernetes' label selector, with its matching.
//! * [`parameter`]: a parameter of a profile.
//! * [`profile`]: an injection profile as its author writes it.
//! * [`revision`]: an accepted version of a profile, which never changes.
//! * [`kinds`]: the two kinds of profiles and the two kinds of revisions.
//! * [`trust_probe`]: the kind whose dry run proves which CA an API server trusts.
//! * [`crd`]: the `CustomResourceDefinition`s of these kinds.
//! * [`opt_in`]: the labels by which namespaces opt in.
//! * [`held`]: the admission policies that make pods of `held` namespaces wait.
//! * [`webhook_configuration`]: the webhook configurations.

mod labelled;
pub mod names;
pub mod selector;
pub mod parameter;
pub mod profile;
pub mod revision;
pub mod kinds;
pub mod trust_probe;
pub mod crd;
pub mod opt_in;
pub mod held;
pub mod webhook_configuration;

pub use kinds::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
pub use profile::ProfileSpec;
pub use revision::RevisionSpec;
