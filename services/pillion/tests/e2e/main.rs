//! The whole system on real parts: pods are created through a real kube-apiserver, which calls replicas of the real
//! binary by Service, as it does in production.
//!
//! Each test has a control plane of its own, in namespaces of its own (see `pillion_testkit`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]

mod api_loss;
mod bad_inputs;
mod cold_start;
mod crashes;
mod direct;
mod export;
mod export_functions;
mod failures;
mod fresh_namespaces;
mod injection;
mod load;
mod lookups;
mod mtls;
mod overlay;
mod profiles;
mod reinvocation;
mod rig;
mod rolling;
mod validation;
