//! Tests installation and outages on a real cluster of one node: the real chart and helm, an image of the real program,
//! kubelets that start and probe it, and Services with real addresses.
//!
//! `just node` builds the parts of a cluster and runs these tests. `PILLION_IMAGE` names an image archive to test
//! instead of the program that was built for the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and print their measurements")]

mod creations;
mod install;
mod platform;
mod processes;
mod recovery;
mod tenant;
mod uninstall;
mod upgrade;
