//! The fuzz targets, shared with the tests of the engine.

#[path = "../../services/engine/tests/fuzz/targets.rs"]
pub mod targets;
