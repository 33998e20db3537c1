//! What an answer costs, from the bytes of a review to the bytes of its answer, for the work in [`cases`].
//!
//! `cargo bench -p pillion-engine` measures times, instructions and allocations, and fails if a gate is broken; `just nightly`
//! runs it. Only instructions and allocations are gates, because times depend on what else the machine does. valgrind counts
//! the instructions; without it, their gates are skipped.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "it fails by panicking, as tests do")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

mod cases;

use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cases::{Case, Work};

/// The argument with which this program calls itself under valgrind: what follows is what to count.
const COUNTED: &str = "--counted";

/// How often the counted work is done: the counts of two runs differ by what hashing chooses at random.
const REPETITIONS: u32 = 4;

/// By how much the counts of two pieces of work that should cost the same may differ.
const ALIKE: f64 = 1.05;

/// Rounds of which the fastest counts, and how long each takes.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(200);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Scan,
    Answer,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(place) = arguments.iter().position(|argument| argument == COUNTED) {
        let number = |offset: usize| arguments[place + offset].parse::<usize>().unwrap();
        let piece = if number(2) == 0 { Piece::Scan } else { Piece::Answer };
        counted(&Case::ALL[number(1)].work(), piece);
        return ExitCode::SUCCESS;
    }
    let is_optimised = !cfg!(debug_assertions);
    let has_valgrind = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_ok();
    let counts = is_optimised && has_valgrind;
    if !is_optimised {
        println!("skipped: instructions are counted in an optimised build only; use --release");
    } else if !has_valgrind {
        println!("skipped: instructions are counted by valgrind, and there is none (Debian: apt-get install valgrind)");
    }
    let mut all = Vec::new();
    for case in Case::ALL {
        let counted = counts.then(|| instructions(case, Piece::Answer) / instructions(case, Piece::Scan));
        let work = case.work();
        let time = format!("{:>10.1} us", microseconds(&work));
        let scans = counted.map_or_else(|| "     -".to_owned(), |scans| format!("{scans:>6.2}"));
        let (bytes, allocations) = (work.body.len(), work.allocations());
        println!("{:<32}{bytes:>8} bytes{time}{scans} U{allocations:>5} allocations", case.name());
        all.push(Cost { case, scans: counted, allocations });
    }
    let broken = broken_gates(&all);
    for sentence in &broken {
        println!("broken: {sentence}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What an answer costs.
struct Cost {
    case: Case,
    /// Instructions, in U; `None` if nobody counted them.
    scans: Option<f64>,
    allocations: u64,
}

/// The gates that do not hold, in words.
fn broken_gates(all: &[Cost]) -> Vec<String> {
    let scans = |wanted: Case| all.iter().find(|cost| cost.case == wanted).and_then(|cost| cost.scans);
    let mut broken = Vec::new();
    for Cost { case, scans, allocations } in all {
        let gate = case.gate();
        if let Some(scans) = scans.filter(|scans| *scans > gate.scans) {
            broken.push(format!("{}: {scans:.2} U, and {} are allowed", case.name(), gate.scans));
        }
        if *allocations > gate.allocations {
            broken.push(format!("{}: {allocations} allocations, and {} are allowed", case.name(), gate.allocations));
        }
    }
    let alike = [
        (Case::TwiceAsLarge, Case::Large, "the cost is not linear in the size of the pod"),
        (Case::Many, Case::Two, "the cost grows with the number of profiles that do not apply"),
    ];
    for (more, less, sentence) in alike {
        if let (Some(found), Some(expected)) = (scans(more), scans(less))
            && found > expected * ALIKE
        {
            broken.push(format!("{sentence}: {found:.2} U, and {expected:.2} U for {}", less.name()));
        }
    }
    broken
}

/// Does what is counted. Under valgrind only this function is looked at, by its name.
#[inline(never)]
fn counted(work: &Work, piece: Piece) {
    for _ in 0..REPETITIONS {
        match piece {
            Piece::Scan => black_box(work).scan(),
            Piece::Answer => drop(black_box(work.answer())),
        }
    }
}

/// Instructions of one piece of work.
fn instructions(case: Case, piece: Piece) -> f64 {
    let place = Case::ALL.iter().position(|other| *other == case).unwrap();
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=answers::counted"]);
    command.arg(std::env::current_exe().unwrap());
    command.args([COUNTED, &place.to_string(), if piece == Piece::Scan { "0" } else { "1" }]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "valgrind failed: {told}");
    // `==42== Collected : 1234567`
    let line = told.lines().find(|line| line.contains("Collected"));
    let count = line.and_then(|line| line.rsplit_once(':')).and_then(|(_, count)| count.trim().parse::<f64>().ok());
    let count = count.unwrap_or_else(|| panic!("valgrind told no count: {told}"));
    assert!(count > 10_000.0, "valgrind did not find the function to count: {told}");
    count / f64::from(REPETITIONS)
}

/// Microseconds of an answer, in the fastest round.
fn microseconds(work: &Work) -> f64 {
    let round = || {
        let (start, mut count) = (Instant::now(), 0_u32);
        while start.elapsed() < ROUND {
            black_box(work.answer());
            count += 1;
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}
