//! Pillion's API: the custom resources, and every name that stands on the wire.
//!
//! Nothing here does I/O or decides anything; the crate is what the other crates, and anybody who writes profiles by a
//! program, agree on.
//!
//! * [`names`]: the API group, labels, annotations, paths and defaults.
//! * [`profile`]: the text of an injection profile, as its author writes it.
//! * [`parameter`]: one part of it, what others may set.
//! * [`selector`]: Kubernetes' label selector, with its matching.
//! * [`canary`]: the kind that proves whom an API server trusts.
//! * [`revision`]: one accepted text of a profile, which is never changed.
//! * [`kinds`]: the two kinds that carry a profile, and the two that carry a revision.
//! * [`crd`]: their `CustomResourceDefinition`s.
//! * [`opt_in`]: the labels by which namespaces opt in.
//! * [`held`]: the policies by which pods of `held` namespaces wait in the API server until they are decided about.
//! * [`webhook_configuration`]: what the API server has to be told to call the webhook.

pub mod names;
pub mod selector;
pub mod parameter;
pub mod profile;
pub mod revision;
pub mod kinds;
pub mod canary;
pub mod crd;
pub mod opt_in;
pub mod held;
pub mod webhook_configuration;

pub use kinds::{ClusterInjectionProfile, ClusterProfileRevision, InjectionProfile, ProfileRevision};
pub use profile::ProfileSpec;
pub use revision::RevisionSpec;
