//! Tests of the test harness, and of the merge against a real API server.

mod control_plane;
mod dist;
mod isolation;
mod modules;
mod oracle;
mod replica;
mod retry;
mod versions;
mod webhook;
