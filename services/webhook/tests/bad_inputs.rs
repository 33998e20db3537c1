//! Bad inputs, B1 to B70: each with what must come of it, in process and over a TLS socket. [`registry`] says of every
//! number where it is shown, and fails if one is missing.
//!
//! Whatever comes, nothing panics, no request stays in flight, no memory stays taken, the outcome is counted under a name
//! of a closed set, and the next good review is answered, on the same connection where the answer did not end it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test says what is wrong by panicking, also in its helpers"
)]

mod bodies;
mod connections;
mod pods;
mod profiles;
mod registry;
mod requests;
mod table;
