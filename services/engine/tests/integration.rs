//! The engine through its public interface.

mod allocations;
mod between;
mod captured;
mod cases;
mod common;
mod directives;
mod expressions;
mod fuzz;
mod large;
mod peers;
mod properties;
mod stalls;
mod untouched;
mod work;
