//! Tests the engine through its public interface.

mod allocations;
mod attacks;
mod between;
mod captured;
mod cases;
mod common;
mod directives;
mod fuzz;
mod interference;
mod pod_resources;
mod properties;
mod stalls;
mod untouched;
mod validity;
mod work;
