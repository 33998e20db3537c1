//! The platform team's first day and a full outage, on a real cluster of one node: the real chart by the real helm,
//! an image of the real program, a kubelet that starts and probes it, and Services with addresses of their own.
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
