//! The rotation of the certificate authority: a pure function from what is observed to the next step.
//!
//! The API server trusts what stands in the webhook configuration (the *bundle*), and replicas serve what stands in a
//! Secret (the *leaf*). Both change at different moments, every API server and every replica sees a change in its own
//! time, and whoever leads the rotation may die or be paused between any two writes. No admission may fail of it. So:
//!
//! - An authority enters the bundle, and every API server is known to have it, before a leaf of it is served; and it leaves
//!   the bundle only after every replica is known to serve a leaf of its successor, and some time more.
//! - Nothing is remembered between steps but what stands in the three objects: the *record* (a Secret with the authorities
//!   and the [`Phase`]), the Secret with the leaf, the webhook configuration. The next leader goes on where it stopped.
//! - Each step is one write to one object, guarded by the object's `resourceVersion` and by an *epoch*, which grows with each
//!   write of the record and is written into the other two. Who acts on an older record than the one that an object was
//!   last written for is behind, and observes again: a leader that was paused loses by that, not by time.
//!
//! A replica that has no leaf yet reads the Secret as it is now (not from a cache of the API server's), and only then follows
//! it: else it could begin with a leaf that nobody trusts any more.
//!
//! [`record`] is what is remembered, [`observed`] what is seen, [`step`] what can be done, and [`next`] decides.
//! `tests/rotation_model/` explores all of it with two leaders, replicas and API servers that lag, and crashes anywhere.

pub mod observed;
pub mod plan;
pub mod record;
pub mod step;

pub use observed::{Bundle, Configuration, Endpoints, Leaf, Observed, Propagation, Serving, Stored};
pub use plan::{Settings, next};
pub use record::{Authority, Generation, Phase, Record, Trigger};
pub use step::{Blocked, Repair, Step};
