//! The injection engine: takes an admission review and a snapshot of the cluster, returns a decision and a response.
//!
//! The engine is synchronous and does no I/O. It reads no file, socket or environment variable, and it reads the clock
//! only to stop at a deadline. So the webhook, the command line, the tests, the fuzzers and the benchmarks run the same
//! code.
//!
//! # The path of a review
//!
//! 1. [`review::Review::parse`] reads the envelope. The object stays a slice of the request.
//! 2. [`snapshot::Snapshot`] returns the profiles that may act in the object's namespace.
//! 3. [`select`] finds the profiles that match the object, and why other requested profiles do not match.
//! 4. [`inject`] merges the templates of these profiles into the object, and [`limits`] checks what tenants' profiles
//!    did.
//! 5. [`pillion_json::patch`] turns the edits into a JSON patch, and checks the patch before it is returned.
//! 6. `validate` evaluates the validations of the profiles, on the validating path.
//! 7. [`decision::Decision`] holds the result. The response, metrics, logs and spans are rendered from it.
//!
//! # Modules
//!
//! The modules are listed in the order of their dependencies: each uses only modules above it. Only test code may refer
//! to modules below. Keep the order when you add a module.

// Text formats and the expression language: crates of their own.
use pillion_expression as expression;
use pillion_json::{self as json, patch, yaml};

// Types that most other modules share.
pub mod schema;
mod diagnostic;
mod reason;
mod record;
mod namespace;

// What expressions read: lookups, parameters, the object and its namespace.
pub mod lookup;
mod parameter;
mod context;

// Profiles: from the author's spec to the compiled profile.
pub mod profile;

// The pipeline of a review.
pub mod decision;
pub mod select;
pub mod limits;
pub mod inject;
pub mod snapshot;
pub mod review;

// Other users of the pipeline: the audit of running pods, and callers without an API server.
pub mod audit;
pub mod creation;
