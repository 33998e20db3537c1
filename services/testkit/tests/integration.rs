//! Tests of the harness, and the comparison of the merge with a real API server.

mod control_plane;
mod dist;
mod isolation;
mod modules;
mod oracle;
mod replica;
mod retry;
mod webhook;
