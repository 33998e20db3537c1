//! Tests the controller through its public interface.

mod leader;
mod memory;
mod rotation_model;
mod silent;
