//! The policy file: what the platform says of how requests are answered, in one strict file that is read again when it
//! changes.
//!
//! Flags and the environment say what this process is: its addresses, its files, its collector. The file says what holds
//! for the requests. A key that is none is refused, and so is a value out of its range, each with its line.
//!
//! * [`policy`]: the file as types, with the defaults.
//! * [`controller`]: the controller's file.
//! * [`settings`]: the table of all keys: type, range, whether a change takes effect at once, meaning. Ranges are checked by
//!   it, changes are found by it, and `docs/configuration.md` is written from it.
//! * [`rules`]: what has to hold between several keys.
//! * [`units`]: durations and sizes.
//! * [`read`]: from a file to a policy, with flags that win over it.
//! * [`follow`]: the file while the program runs.

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
