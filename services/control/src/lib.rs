//! What needs the API server's client: the watches that a replica of the webhook serves from, and the tasks of the
//! controller's leader.
//!
//! * [`at_once`]: profiles and namespaces at one moment, by lists, for commands that people run.
//! * [`lists`]: lists page by page, for such commands.
//! * [`audit`]: pods that lack what their profiles say, and why; a task of the leader.
//! * [`change`]: what a watch says, without the client's types.
//! * [`profiles`]: profiles as they are stored become compiled profiles; the last good one stays at work.
//! * [`guard`]: a panic over somebody's object is that object's alone.
//! * [`served`]: the other way to serve: revisions that are published, fetched by name.
//! * [`revisions`]: the leader accepts profiles, keeps them as revisions and publishes them.
//! * [`namespaces`]: what is kept of a namespace.
//! * [`index`]: all of it together: changes in, snapshots out. Pure, and where the tests are.
//! * [`watch`]: the watches themselves, and the one task that publishes.
//! * [`cache_metrics`]: how old what is known may be, and how often a watch was cut off.
//! * [`remember`]: answers of the API server that are remembered, and served when it is away.
//! * [`live`]: the look-up of a namespace that the watch has not delivered yet.
//! * [`lookups`]: the look-up of service accounts, owners and what profiles declare, when a review wants them.
//! * [`lookup_metrics`]: how look-ups ended.
//! * [`client`]: the connection to the API server.
//! * [`authority`]: the certificate authority's material: made, stored, judged.
//! * [`serving_secret`]: the serving certificate, by watching its Secret.
//! * [`release`]: the names of a release's objects; [`leading`]: what a task of the leader is given.
//! * [`rotation`]: how the certificate authority is replaced, as a pure function; [`rotator`]: how that is done.
//! * [`configuration`]: the webhook configurations as they are and as they ought to be, and their repair.
//! * [`switch`]: the kill switch and the break-glass.
//! * [`lease`]: which of the controllers leads.
//! * [`probe`]: which leaf every endpoint of the webhook serves.
//! * [`canary`]: whether every API server trusts the newest authority.
//! * [`clock`]: whether this clock and the API server's agree.

pub mod at_once;
pub mod audit;
pub mod authority;
mod belongs;
mod bounded;
pub mod cache_metrics;
pub mod canary;
pub mod change;
pub mod client;
pub mod clock;
pub mod configuration;
mod fetch;
pub mod guard;
mod heard;
pub mod held;
pub mod index;
pub mod leading;
pub mod lease;
pub mod lists;
pub mod live;
pub mod lookup_metrics;
pub mod lookups;
pub mod namespaces;
mod one;
pub mod probe;
mod profile_status;
pub mod profiles;
mod random;
pub mod release;
pub mod remember;
pub mod revisions;
pub mod rotation;
pub mod rotator;
pub mod served;
pub mod serving_secret;
pub mod share;
pub mod switch;
mod throttle;
pub mod watch;

pub use cache_metrics::CacheMetrics;
pub use index::Status;
pub use leading::Leading;
pub use live::LiveNamespaces;
pub use lookups::{LookupSettings, Lookups};
pub use release::Release;
pub use watch::Publisher;
