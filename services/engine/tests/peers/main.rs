//! The peers as an oracle: what other injectors do, said in the profile language, and compared with their own results.
//!
//! For each peer there is a folder with `profile.yaml`, which does what the peer does, and `cases.yaml`, cases of our own
//! that run everywhere. The peers' own inputs and results are other projects' files and are not kept here: they are read
//! from the folder that `PILLION_PEERS` names, and what needs them is skipped, with a word, where it is not there.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do, and say what they run"
)]

mod compare;
mod eks;
mod harness;
mod istio;
mod linkerd;
mod otel;
mod tumblr;

/// Nothing in the profiles asks for a second look, such as a mount of a volume that nobody has.
#[test]
fn the_profiles_need_no_advice() {
    for peer in ["eks", "tumblr", "otel", "linkerd", "istio"] {
        let advice = harness::Profiles::of(peer).advice();
        assert!(advice.is_empty(), "{peer}: {advice:#?}");
    }
}
