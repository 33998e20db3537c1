//! What needs the API server's client: the watches that a replica of the webhook serves from, and the tasks of the
//! controller's leader.
//!
//! * [`change`]: what a watch says, without the client's types.
//! * [`profiles`]: profiles as they are stored become compiled profiles; the last good one stays at work.
//! * [`namespaces`]: what is kept of a namespace.
//! * [`index`]: all of it together: changes in, snapshots out. Pure, and where the tests are.
//! * [`watch`]: the watches themselves, and the one task that publishes.
//! * [`cache_metrics`]: how old what is known may be, and how often a watch was cut off.
//! * [`remember`]: answers of the API server that are remembered, and served when it is away.
//! * [`live`]: the look-up of a namespace that the watch has not delivered yet.
//! * [`lookups`]: the look-up of service accounts, owners and what profiles declare, when a review wants them.
//! * [`lookup_metrics`]: how look-ups ended.
//! * [`client`]: the connection to the API server.
//! * [`release`]: the names of a release's objects; [`leading`]: what a task of the leader is given.
//! * [`rotation`]: how the certificate authority is replaced, as a pure function; nobody calls it yet.

mod bounded;
pub mod cache_metrics;
pub mod change;
pub mod client;
mod heard;
pub mod index;
pub mod leading;
pub mod live;
pub mod lookup_metrics;
pub mod lookups;
pub mod namespaces;
pub mod profiles;
pub mod release;
pub mod remember;
pub mod rotation;
mod throttle;
pub mod watch;

pub use cache_metrics::CacheMetrics;
pub use index::Status;
pub use leading::Leading;
pub use live::LiveNamespaces;
pub use lookups::{LookupSettings, Lookups};
pub use release::Release;
pub use watch::Publisher;
