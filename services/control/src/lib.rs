//! Watches the cluster and publishes what the webhook serves from. Read only: nothing here writes to the cluster, and
//! nothing here serves anybody.
//!
//! * [`change`]: what a watch says, without the client's types.
//! * [`profiles`]: profiles as they are stored become compiled profiles; the last good one stays at work.
//! * [`namespaces`]: what is kept of a namespace.
//! * [`index`]: all of it together: changes in, snapshots out. Pure, and where the tests are.
//! * [`watch`]: the watches themselves, and the one task that publishes.
//! * [`live`]: the look-up of a namespace that the watch has not delivered yet.
//! * [`lookups`]: the look-up of service accounts, owners and what profiles declare, when a review wants them.
//! * [`client`]: the connection to the API server.

pub mod change;
pub mod client;
pub mod index;
pub mod live;
pub mod lookups;
pub mod namespaces;
pub mod profiles;
pub mod watch;

pub use index::Status;
pub use live::LiveNamespaces;
pub use lookups::Lookups;
pub use watch::Publisher;
