//! What the platform team does on the first day and on a bad night, on a real cluster of one node: the real chart by the real
//! helm, an image of the real program, kubelets that start and probe it, Services with addresses of their own.
//!
//! `just node` runs these tests: it first builds what a cluster is made of. `PILLION_IMAGE` names the archive of an image to test
//! instead of the program that was built for the tests.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it has measured"
)]

mod creations;
mod install;
mod platform;
mod processes;
mod recovery;
mod tenant;
mod uninstall;
mod upgrade;
