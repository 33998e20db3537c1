//! The policy files of the webhook and the controller. The webhook reloads its file when it changes.
//!
//! Flags and environment variables configure the process: its addresses, its files, and the collector of traces. A
//! policy file configures how requests are handled. Errors about unknown keys and values out of range contain the line.
//!
//! * [`webhook`] and [`controller`]: the types of the two files, with ranges, defaults, meanings, and constraints
//!   between keys.
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
