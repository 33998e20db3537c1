//! Bad inputs, each with its expected result, in process and over a TLS socket.
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

mod connections;
mod pods;
mod requests;
mod table;
