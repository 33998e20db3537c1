//! Pillion's API: the custom resources, and every name that stands on the wire.
//!
//! Nothing here does I/O or decides anything; the crate is what the other crates, and anybody who writes profiles by a
//! program, agree on.
//!
//! * [`names`]: the API group, labels, annotations, paths and defaults.
//! * [`profile`]: the text of an injection profile, as its author writes it.
//! * [`parameter`]: one part of it, what others may set.
//! * [`selector`]: Kubernetes' label selector, with its matching.
//! * [`kinds`]: the two kinds that carry a profile.
//! * [`crd`]: their `CustomResourceDefinition`s.
//! * [`webhook_configuration`]: what the API server has to be told to call the webhook.

pub mod crd;
pub mod kinds;
pub mod names;
pub mod parameter;
pub mod profile;
pub mod selector;
pub mod webhook_configuration;

pub use kinds::{ClusterInjectionProfile, InjectionProfile};
pub use profile::ProfileSpec;
