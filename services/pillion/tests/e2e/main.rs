//! The whole system on real parts: pods are created through a real kube-apiserver, which calls replicas of the real
//! binary by Service, as it does in production.
//!
//! Each test has a control plane of its own, in namespaces of its own (see `pillion_testkit`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail by panicking, as tests do")]

mod api_loss;
mod audit;
mod bad_inputs;
mod break_glass;
mod cold_start;
mod configuration;
mod crashes;
mod direct;
mod export;
mod export_functions;
mod failures;
mod fresh_namespaces;
mod held;
mod injection;
mod load;
mod lookups;
mod managed;
mod mtls;
mod overlay;
mod profiles;
mod rbac;
mod reinvocation;
mod revisions;
mod rig;
mod rolling;
mod rotation;
mod serving_secret;
mod validation;
