//! The CA of a release: its rotation as a state machine, its material, and the serving certificate.
//!
//! * [`rotation`]: decides the next step of the rotation; a pure function.
//! * [`authority`]: creates, stores, reads and checks the CA and the serving certificate.
//! * [`serving_secret`]: the Secret with the serving certificate: written by the leader, followed by each replica.
//! * [`clock`]: compares the local clock with the API server's, since certificates are checked by it.
//!
//! [`crate::rotator`] observes the cluster and executes the steps.

pub mod rotation;
pub mod authority;
pub mod clock;
pub mod serving_secret;
