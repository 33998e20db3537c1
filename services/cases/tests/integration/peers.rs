//! Compares the shipped profiles with the injectors that they replace (the peers). The peers' own test results are the
//! expected results.
//!
//! The peers' inputs and results are files of other projects and are not part of this repository. The test reads them
//! from the folder that `PILLION_PEERS` names (`just peers DIR`), and reports missing folders as skipped. No file names
//! are built in: each peer has an adapter that creates cases from all files of its layout. A file or folder that cannot
//! be read is a failed case. A case with a setting that its adapter does not know fails, too.
//!
//! * [`runner`]: runs cases, and prints the table.
//! * [`files`]: reads files and their YAML documents, and applies patches.
//! * [`workloads`]: the pods that controllers create for workloads.
//! * the adapters, one for each peer, with the table that maps the peer's settings to parameters.
//! * [`istio_settings`] and [`linkerd_settings`]: settings in files, by their names in the peer's chart.
//! * [`istio_results`] and [`linkerd_results`]: infer settings from a result. Some settings exist only
//!   in the peer's test code. A case that is equal only with inferred settings is reported as loose.
//!
//! `strange/` has files with unexpected content, and two results of our own profiles with settings that must be
//! inferred.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "test helpers fail by panicking, and report progress"
)]

mod eks;
mod files;
mod istio;
mod istio_results;
mod istio_settings;
mod linkerd;
mod linkerd_results;
mod linkerd_settings;
mod otel;
mod runner;
mod tumblr;
mod workloads;

use std::path::{Path, PathBuf};

use runner::{PeerCase, Results, ShippedProfiles};

/// The environment variable with the folder of the peers' cases.
const FOLDER: &str = "PILLION_PEERS";

/// Another injector, whose test cases are run against our profiles.
struct Peer {
    /// The name of the peer's folder.
    name: &'static str,
    cases: runner::Adapter,
    /// The prefix of the folders with our profiles for this peer.
    profiles: &'static str,
    /// The version of the folder that was reviewed last. If the given folder has this version, the number of equal
    /// cases must not decrease.
    reviewed: Reviewed,
}

/// A folder of a peer's cases: its number of files and their total size in bytes, which identify the folder, and the
/// number of equal cases.
struct Reviewed {
    files: usize,
    bytes: u64,
    equal: usize,
}

const PEERS: [Peer; 5] = [
    Peer {
        name: "eks",
        cases: eks::cases,
        profiles: "eks-",
        reviewed: Reviewed { files: 12, bytes: 16_463, equal: 12 },
    },
    Peer {
        name: "tumblr",
        cases: tumblr::cases,
        profiles: "tumblr",
        reviewed: Reviewed { files: 23, bytes: 14_116, equal: 5 },
    },
    Peer {
        name: "otel",
        cases: otel::cases,
        profiles: "otel",
        reviewed: Reviewed { files: 45, bytes: 78_712, equal: 17 },
    },
    Peer {
        name: "istio",
        cases: istio::cases,
        profiles: "istio",
        reviewed: Reviewed { files: 28, bytes: 95_696, equal: 15 },
    },
    Peer {
        name: "linkerd",
        cases: linkerd::cases,
        profiles: "linkerd",
        reviewed: Reviewed { files: 30, bytes: 92_624, equal: 17 },
    },
];

#[test]
#[ignore = "needs the test cases of other injectors: just peers DIR"]
fn peer_cases_have_expected_results() {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let folder = folder.expect("PILLION_PEERS must name the folder with eks/, istio/ and so on");
    let shipped = ShippedProfiles::load();
    let mut tallies = Vec::new();
    for Peer { name, cases, profiles, reviewed } in PEERS {
        let below = folder.join(name);
        if !below.is_dir() {
            eprintln!("skipped: {} does not exist", below.display());
            continue;
        }
        let explained = runner::explained(profiles);
        let unread = files::unread_folders(&below).into_iter().map(|(name, why)| PeerCase::read(name, || Err(why)));
        let cases = cases(&below, &shipped).into_iter().chain(unread).collect();
        let mut tally = Results::of(name, cases, &explained);
        let files = files::all(&below);
        let sizes = files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len());
        if (files.len(), sizes.sum()) == (reviewed.files, reviewed.bytes) {
            tally.require(reviewed.equal);
        }
        tallies.push(tally);
    }
    assert!(!tallies.is_empty(), "{} contains no folder of a peer", folder.display());
    eprintln!("\n{}", runner::table(&tallies));
    if let Some(file) = std::env::var_os("PILLION_RESULT") {
        std::fs::write(file, format!("{}\n", runner::json(&tallies))).unwrap();
    }
    assert!(tallies.iter().all(Results::passes), "some cases differ from the peers' results");
}

/// Files with unexpected content must result in a failed case or in no case, and must not stop the other cases.
#[test]
fn unexpected_files_are_reported() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/peers/strange");
    let shipped = ShippedProfiles::load();
    let messages: Vec<String> = PEERS
        .iter()
        .flat_map(|Peer { name, cases, .. }| {
            let cases = cases(&folder.join(name), &shipped);
            Results::of(name, cases, &std::collections::BTreeMap::new()).lines()
        })
        .collect();
    let expected = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    assert_eq!(messages.join("\n"), expected.trim_end(), "\n{}", messages.join("\n"));
}

/// The shipped profiles cause no warnings, such as warnings about a mount whose volume does not exist.
#[test]
fn shipped_profiles_cause_no_advice() {
    let warnings = ShippedProfiles::load().warnings();
    assert!(warnings.is_empty(), "{warnings:#?}");
}
