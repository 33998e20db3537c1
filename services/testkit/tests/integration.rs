//! Tests of the test harness, and of the repository's modules and releases. Compares the engine's merge with a real API
//! server.

mod control_plane;
mod dist;
mod isolation;
mod modules;
mod oracle;
mod replica;
mod retry;
mod versions;
mod webhook;
