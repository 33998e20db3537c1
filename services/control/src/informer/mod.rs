//! The replica's view of the cluster: watches and lookups go in, snapshots for the engine come out.
//!
//! * [`watch`]: runs the watches and publishes snapshots ([`Publisher`](watch::Publisher)).
//! * [`change`]: one event of a watch, without the client's types.
//! * [`namespaces`]: reduces a namespace to what decisions need.
//! * [`profiles`]: compiles stored profiles and keeps the last valid version of each; [`share`] bounds their memory.
//! * [`served`]: serves published revisions, which `fetch` reads by name.
//! * [`index`]: turns changes into snapshots; pure.
//! * [`cache_metrics`]: age and size of each cache; `last_contact` records the API server's last response.
//! * [`lookup_cache`]: caches single objects and serves stale ones while the API server is unavailable.
//! * [`live`]: looks up namespaces that the watch has not delivered yet.
//! * [`lookups`]: looks up service accounts, owners and the objects that profiles declare; [`lookup_metrics`] counts.
//! * [`cluster_listing`]: reads profiles and namespaces once, by lists, for commands.

pub mod change;
pub mod namespaces;
pub mod share;
pub mod profiles;
pub mod served;
mod fetch;
pub mod cache_metrics;
mod last_contact;
pub mod index;
pub mod watch;
pub mod cluster_listing;
pub mod lookup_metrics;
pub mod lookup_cache;
pub mod live;
pub mod lookups;
