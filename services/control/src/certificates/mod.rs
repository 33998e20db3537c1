//! The CA of a release: its rotation as a state machine, its keys and certificates, and the serving certificate.
//!
//! - [`rotation`]: decides the next step of the rotation; a pure function.
//! - [`ca`]: creates, stores, reads and checks CAs and serving certificates.
//! - [`serving_secret`]: the Secret with the serving certificate. The leader writes it, and each replica watches it.
//! - [`clock`]: compares the local clock with the API server's. The controller uses the local clock to create and check
//!   certificates.
//!
//! [`crate::rotator`] observes the cluster and executes the steps.

pub mod rotation;
pub mod ca;
pub mod clock;
pub mod serving_secret;
