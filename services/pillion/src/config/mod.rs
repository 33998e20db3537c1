//! The policy file: strict settings of the platform for decisions, read again when the file changes.
//!
//! Flags and the environment describe the process: addresses, files, collector. The file describes how requests are
//! handled. An unknown key or a value out of range is rejected with its line.
//!
//! * [`policy`]: the webhook's file as types, with defaults.
//! * [`controller`]: the controller's file.
//! * [`settings`]: the table of all keys: type, range, whether a change needs a restart, meaning. It checks ranges,
//!   finds changes, and generates `docs/configuration.md`.
//! * [`rules`]: constraints between keys.
//! * [`units`]: durations and sizes.
//! * [`read`]: reads a file into a policy; flags take precedence.
//! * [`follow`]: reloads the file at run time.

pub(crate) mod controller;
pub(crate) mod follow;
#[cfg(test)]
mod page;
pub(crate) mod policy;
pub(crate) mod read;
mod rules;
pub(crate) mod settings;
mod units;

pub(crate) use self::controller::ControllerPolicy;
pub(crate) use self::policy::WebhookPolicy;
pub(crate) use self::read::{ConfigArg, Overrides};
