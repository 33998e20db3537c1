//! The platform team's first day and a full outage, on a real cluster of one node. The real helm installs the real
//! chart with an image of the real program. A real kubelet starts and probes it, and Services have real addresses.
//!
//! `just node` runs these tests, after it builds the parts of a cluster. `PILLION_IMAGE` names the archive of an
//! image to test instead of the program that was built for the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and print their measurements")]

mod creations;
mod install;
mod platform;
mod quickstart;
mod recovery;
mod tenant;
mod uninstall;
mod upgrade;
