//! Tests on a real cluster with one node, from the installation to a full outage. The real helm installs the real chart
//! with an image of the real program. A real kubelet starts and probes the program, and Services have real addresses.
//!
//! `just node` builds the parts of a cluster, and then runs these tests. `PILLION_IMAGE` names the archive of an image
//! to test instead of the program that was built for the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and print their measurements")]

mod creations;
mod failures;
mod image_volumes;
mod in_place;
mod install;
mod platform;
mod quickstart;
mod recovery;
mod rollouts;
mod tenant;
mod uninstall;
mod upgrade;
