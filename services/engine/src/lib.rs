//! The injection engine: makes the decision for an admission review, using a snapshot of the cluster, and builds the
//! response.
//!
//! The engine is synchronous and does no I/O: it does not use files, sockets or environment variables, and reads the
//! clock only to stop at a deadline. The webhook, the command line, the tests, the fuzzers and the benchmarks therefore
//! run the same code.
//!
//! # The path of a review
//!
//! 1. [`review::Review::parse`] parses the envelope. The object remains a slice of the request.
//! 2. [`snapshot::Snapshot`] returns the profiles that can be requested in the object's namespace.
//! 3. [`select`] finds the profiles that match the object, and the reasons why other requested profiles do not match.
//! 4. [`inject`] merges the templates of these profiles into the object, and [`limits`] checks the changes of tenants'
//!    profiles.
//! 5. [`pillion_json::patch`] converts the edits to a JSON patch, and checks the patch.
//! 6. `validate` evaluates the validations of the profiles, for the validating webhook.
//! 7. [`decision::Decision`] contains the result. The response, metrics, logs and spans are rendered from it.
//!
//! # Modules
//!
//! The modules are listed in the order of their dependencies: each uses only modules that are listed before it, except
//! in tests. Keep the order when you add a module.

// Separate crates for text formats and the expression language.
use pillion_expression as expression;
use pillion_json::{self as json, patch, yaml};

// Types that most other modules use.
pub mod schema;
mod diagnostic;
mod reason;
mod record;
mod namespace;

// Data for expressions: lookups, parameters, the object and its namespace.
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

// Other users of the pipeline: the upgrade of running pods in place, their audit, callers without an API server, and
// the admission policies that API servers evaluate themselves.
pub mod in_place;
pub mod audit;
pub mod creation;
pub mod native;
