//! All code that needs a client of the API server: the caches from which a replica serves, and the tasks of the
//! controller.
//!
//! A replica of the webhook uses:
//!
//! * [`informer`]: watches profiles and namespaces, looks up single objects, and publishes snapshots.
//! * [`certificates::serving_secret`]: watches the Secret with the serving certificate.
//! * [`webhook_config::switch`]: watches the kill switch.
//!
//! Every replica of the controller takes part in the election ([`lease`]). The leader runs these tasks, each with a
//! [`LeaderContext`]:
//!
//! * [`rotator`]: rotates the CA as [`certificates::rotation`] decides.
//! * [`probe`]: checks which certificate each replica serves; [`trust_probe`] checks which CA each API server trusts.
//! * [`webhook_config`]: creates the webhook configurations and corrects drift.
//! * [`revisions`]: accepts profiles and publishes them as revisions.
//! * [`audit`]: finds pods that differ from their profiles.
//! * [`rollout`]: brings new revisions to running pods.
//! * [`held`]: installs the policies of held namespaces and releases pods that wait.
//! * [`safety_net`]: maintains the admission policy that injects into pods of enabled namespaces while no replica
//!   responds.
//!
//! Replicas and tasks use [`client`] (connections, watches of single objects, lists), [`guard`] (isolates panics),
//! [`simulation`] (simulates the creation of pods) and [`release`] (the names of a release's objects).

mod labels;
mod random;
mod throttle;
pub mod guard;
pub mod release;
pub mod client;
pub mod leader;
mod admission_policy;
pub mod lease;
pub mod informer;
pub mod certificates;
pub mod webhook_config;
pub mod probe;
pub mod trust_probe;
pub mod rotator;
pub mod revisions;
pub mod audit;
pub mod held;
pub mod safety_net;
pub mod simulation;
pub mod rollout;

pub use informer::cache_metrics::CacheMetrics;
pub use informer::index::Status;
pub use informer::live::LiveNamespaces;
pub use informer::lookups::{LookupSettings, Lookups};
pub use informer::watch::Publisher;
pub use leader::LeaderContext;
pub use release::Release;
