//! The replica's view of the cluster: watches and lookups are its input, and snapshots for the engine its output.
//!
//! - [`objects`]: profiles and changes as watches deliver them. [`namespaces`] reduces a namespace to what decisions
//!   need.
//! - [`share`]: limits the memory of namespaced profiles.
//! - [`text`]: the stored spec of a profile and its last valid version, as JSON text.
//! - [`published`]: the published revisions of a profile. `fetch` reads them by name.
//! - [`index`]: turns changes into snapshots, with one entry for each profile. It does no I/O.
//! - [`watch`]: runs the watches and publishes snapshots ([`Publisher`](watch::Publisher)).
//! - [`cache_metrics`]: age and size of each cache.
//! - [`lookup_cache`]: caches single objects, and serves stale ones while the API server is unavailable.
//! - [`live`]: looks up namespaces that the watch has not delivered yet.
//! - [`lookups`]: looks up service accounts, owners, and the objects that profiles declare.
//! - [`cluster_listing`]: lists profiles and namespaces once, for commands.

pub mod objects;
pub mod namespaces;
pub mod share;
pub mod text;
pub mod published;
pub mod fetch;
pub mod cache_metrics;
pub mod index;
pub mod watch;
pub mod cluster_listing;
pub mod lookup_cache;
pub mod live;
pub mod lookups;
