//! The policy files of the webhook and the controller. The webhook reloads its file when it changes.
//!
//! Flags and the environment describe the process: addresses, files, collector. A policy file describes how requests
//! are handled. The error for an unknown key or a value out of range contains the line.
//!
//! * [`webhook`] and [`controller`]: the files as types, with ranges, defaults, meanings, and constraints between keys.
//! * [`metrics`]: the limits of metrics, in both files.
//! * [`settings`]: all keys of a file, read from its types. It generates the tables of `docs/configuration.md`.
//! * [`units`]: durations and sizes.
//! * [`read`]: reads a file into a policy; flags take precedence.
//! * [`follow`]: reloads the file at run time.

mod controller;
pub(crate) mod follow;
mod metrics;
pub(crate) mod read;
pub(crate) mod settings;
mod units;
mod webhook;

pub(crate) use self::controller::ControllerPolicy;
pub(crate) use self::metrics::MetricLimits;
pub(crate) use self::read::{ConfigArg, Overrides, PolicyFile};
pub(crate) use self::units::Time;
pub(crate) use self::webhook::WebhookPolicy;

#[cfg(test)]
mod tests;
