//! The rotation of the CA: a pure function from the observed state to the next step.
//!
//! The API server trusts the CA *bundle* in the webhook configuration, and replicas serve the *serving certificate* in
//! a Secret. Both change at different moments, every API server and every replica sees a change at its own time, and
//! the leader may crash or be paused between any two writes. No admission may fail because of it. So:
//!
//! - Every API server is known to have a CA in its bundle before a replica serves a certificate of it. The CA leaves
//!   the bundle only after every replica is known to serve a certificate of its successor, and some time more.
//! - No state is kept between steps except in three objects: the *record* (a Secret with the CAs and the [`Phase`]),
//!   the Secret with the serving certificate, and the webhook configuration. The next leader continues from there.
//! - Each step is one write to one object, guarded by the object's `resourceVersion` and by an *epoch*. The epoch grows
//!   with each write of the record and is written into the other two objects. A leader whose record is older than the
//!   epoch of an object is outdated and observes again.
//!
//! A replica without a certificate reads the Secret as it is now, not from a cache of the API server, and only then
//! follows it. Otherwise it could start with a certificate that is no longer trusted.
//!
//! [`record`] is the stored state, [`observed`] the observed state, [`step`] lists the possible steps, and [`next`]
//! decides. `tests/rotation_model/` explores the rotation with two leaders, lagging replicas and API servers, and
//! crashes at any point.

pub mod observed;
pub mod plan;
pub mod record;
pub mod step;

pub use observed::{Bundle, Configuration, Endpoints, Leaf, Observed, Propagation, Serving, Stored};
pub use plan::{Settings, next};
pub use record::{Authority, Generation, Phase, Record, Trigger};
pub use step::{Blocked, Repair, Step};
