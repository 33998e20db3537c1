//! The parts that tests are made of, and the merge compared with a real API server.

mod control_plane;
mod dist;
mod isolation;
mod modules;
mod oracle;
mod replica;
mod retry;
mod webhook;
