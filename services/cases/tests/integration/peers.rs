//! The peers as an oracle: what other injectors do, said by the shipped profiles, and compared with their own results.
//!
//! The peers' inputs and results are other projects' files and are not kept here. They are read from the folder that
//! `PILLION_PEERS` names (`just peers DIR`); what is not there is skipped, with a word. Nothing here knows which files there are: each peer has an adapter that makes cases of whatever files of its
//! layout a folder has. A file that cannot be read is a case that failed, and so is a folder. So is a case under settings that
//! the adapter does not know.
//!
//! * [`runner`]: runs cases, and prints the table.
//! * [`files`]: files, YAML, patches.
//! * [`workloads`]: the pods that controllers make of workloads.
//! * the adapters, one for each peer, with the table that makes parameters of the peer's settings.
//! * [`results`], [`istio_results`] and [`linkerd_results`]: settings that stand in the peer's own code only, as its results say them. What
//!   is equal under these is told apart, as loose.
//!
//! `strange/` has files of every shape, and two results under such settings, which are of our own profiles.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do, and say what they run"
)]

mod eks;
mod files;
mod istio;
mod istio_results;
mod istio_settings;
mod linkerd;
mod linkerd_results;
mod otel;
mod results;
mod runner;
mod tumblr;
mod workloads;

use std::path::{Path, PathBuf};

use runner::{PeerCase, Shipped, Tally};

/// The variable that names the folder with the peers' own cases.
const FOLDER: &str = "PILLION_PEERS";

/// A peer.
struct Peer {
    /// What its folder is called.
    name: &'static str,
    cases: runner::Adapter,
    /// What the names of the folders with our profiles begin with.
    profiles: &'static str,
    /// How many files there were when its cases were last looked at, and how many cases were as the peer has them. A folder
    /// with so many files has to have so many still.
    known: (usize, usize),
}

const PEERS: [Peer; 5] = [
    Peer { name: "eks", cases: eks::cases, profiles: "eks-", known: (12, 12) },
    Peer { name: "tumblr", cases: tumblr::cases, profiles: "tumblr", known: (23, 5) },
    Peer { name: "otel", cases: otel::cases, profiles: "otel", known: (45, 17) },
    Peer { name: "istio", cases: istio::cases, profiles: "istio", known: (28, 15) },
    Peer { name: "linkerd", cases: linkerd::cases, profiles: "linkerd", known: (30, 16) },
];

#[test]
#[ignore = "needs the cases of the injectors' own projects: just peers DIR"]
fn the_peers_cases() {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let folder = folder.expect("PILLION_PEERS names the folder with eks/, istio/ and so on");
    let shipped = Shipped::load();
    let mut tallies = Vec::new();
    for Peer { name, cases, profiles, known: (files, equal) } in PEERS {
        let below = folder.join(name);
        if !below.is_dir() {
            eprintln!("skipped: there is no {}", below.display());
            continue;
        }
        let explained = runner::explained(profiles);
        let unread = files::unread(&below).into_iter().map(|(name, why)| PeerCase::read(name, || Err(why)));
        let cases = cases(&below, &shipped).into_iter().chain(unread).collect();
        let mut tally = Tally::of(name, cases, &explained);
        if files::all(&below).len() == files {
            tally.has_to_have(equal);
        }
        tallies.push(tally);
    }
    assert!(!tallies.is_empty(), "{}: there is no peer's folder in it", folder.display());
    eprintln!("\n{}", runner::table(&tallies));
    if let Some(file) = std::env::var_os("PILLION_RESULT") {
        std::fs::write(file, format!("{}\n", runner::json(&tallies))).unwrap();
    }
    assert!(tallies.iter().all(Tally::passes), "cases of the peers are not as the peers have them");
}

/// Files that no adapter was written for: each is a case that failed, or none, and never the end of the others.
#[test]
fn files_of_any_shape_are_read_or_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/peers/strange");
    let shipped = Shipped::load();
    let told: Vec<String> = PEERS
        .iter()
        .flat_map(|Peer { name, cases, .. }| {
            let cases = cases(&folder.join(name), &shipped);
            Tally::of(name, cases, &std::collections::BTreeMap::new()).lines()
        })
        .collect();
    let expected = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    assert_eq!(told.join("\n"), expected.trim_end(), "\n{}", told.join("\n"));
}

/// Nothing in the profiles asks for a second look, such as a mount of a volume that nobody has.
#[test]
fn the_profiles_need_no_advice() {
    let advice = Shipped::load().advice();
    assert!(advice.is_empty(), "{advice:#?}");
}
