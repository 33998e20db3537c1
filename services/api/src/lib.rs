//! Pillion's API: the custom resources, and all names that other programs use.
//!
//! The crate does no I/O and makes no decisions. The other crates use it, and so can programs that write profiles.
//!
//! * [`labelled!`]: defines enums with a fixed string for each value.
//! * [`names`]: API group, labels, annotations, paths and failure modes.
//! * [`selector`]: Kubernetes label selectors, and how they match.
//! * [`parameter`]: a parameter of a profile.
//! * [`profile`]: an injection profile as its author writes it.
//! * [`revision`]: an accepted version of a profile. Revisions are immutable.
//! * [`kinds`]: the two kinds of profiles and the two kinds of revisions.
//! * [`trust_probe`]: the kind for dry runs that prove which CA an API server trusts.
//! * [`crd`]: the `CustomResourceDefinition`s of these kinds.
//! * [`opt_in`]: the labels with which namespaces opt in.
//! * [`held`]: the admission policies that make pods of `held` namespaces wait.
//! * [`safety_net`]: the admission policy that injects into pods of `enabled` namespaces while no replica answers.
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
pub mod safety_net;
pub mod webhook_configuration;

pub use kinds::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
pub use profile::ProfileSpec;
pub use revision::RevisionSpec;
