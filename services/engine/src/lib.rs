//! The injection engine: an admission review and a snapshot in, a decision and an answer out.
//!
//! The engine is pure and synchronous. It knows no clock, no network, no file and no environment, so the webhook, the
//! command line, the tests, the fuzzers and the benchmarks all run the very same code.
//!
//! What happens to a request, and where:
//!
//! 1. [`review`] reads the envelope; the object in it stays a slice of the request.
//! 2. [`select`] finds out which profiles are for the object, and why the others are not.
//! 3. [`inject`] lays their templates over the object.
//! 4. `patch` reads off what was changed, and checks it before it leaves.
//! 5. `validate` asks, on the path for it, whether what came of all that is allowed.
//! 6. [`report`] is what was decided, from which everything that is shown is rendered.
//!
//! [`case`] is what a test of profiles says, and runs it by all of this; [`creation`] makes the review that starts it.
//!
//! [`audit`] asks of a pod that is there already which profiles are for it; nothing is rendered for that.
//!
//! [`profile`] compiles what an author wrote into what the engine runs, [`snapshot`] holds all compiled profiles and what
//! is known of the namespaces, [`lookup`] is what else a decision may depend on, and [`json`] is how all of them read and
//! edit objects.

pub mod audit;
pub mod case;
mod compute;
pub mod creation;
mod diagnostic;
pub mod expression;
pub mod inject;
pub mod json;
pub mod limits;
pub mod lookup;
mod namespace;
mod parameter;
mod patch;
pub mod profile;
mod reason;
mod record;
pub mod report;
pub mod review;
pub mod schema;
pub mod select;
pub mod snapshot;
mod validate;
mod yaml;
