//! Measures the cost of a decision, from the request body to the response body, for the cases in [`cases`].
//!
//! `cargo bench -p pillion-engine` measures time, instructions and allocations, and fails if a limit is exceeded. `just
//! nightly` runs it. Times have no limit, because they depend on the load of the machine. valgrind counts the
//! instructions; their limits are not checked if it is not installed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "benchmarks fail by panicking")]
#![allow(clippy::print_stdout, reason = "the benchmark prints measurements")]

mod cases;

use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cases::{Case, Work};

/// The argument that makes the benchmark run one piece of code under valgrind, to count its instructions. The index of
/// the case and the number of the piece (0: scan, 1: answer) follow.
const COUNTED: &str = "--counted";

/// The number of repetitions in one count. The counts of single runs differ, because hash seeds are random.
const REPETITIONS: u32 = 4;

/// The maximum ratio of two costs that should be equal. A cost is a multiple of the instructions of a scan.
const ALIKE: f64 = 1.05;

/// The number of timed rounds. The fastest one is reported.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(200);

/// The code whose instructions are counted.
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
        println!("skipped: counting instructions needs an optimised build; use --release");
    } else if !has_valgrind {
        println!("skipped: counting instructions needs valgrind (Debian: apt-get install valgrind)");
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
        println!("exceeded: {sentence}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The measured cost of a case.
struct Cost {
    case: Case,
    /// The number of instructions, as a multiple of those of [`Work::scan`]. `None` if they were not counted.
    scans: Option<f64>,
    allocations: u64,
}

/// Returns a sentence for each exceeded limit.
fn broken_gates(all: &[Cost]) -> Vec<String> {
    let scans = |wanted: Case| all.iter().find(|cost| cost.case == wanted).and_then(|cost| cost.scans);
    let mut broken = Vec::new();
    for Cost { case, scans, allocations } in all {
        let gate = case.gate();
        if let Some(scans) = scans.filter(|scans| *scans > gate.scans) {
            broken.push(format!("{}: {scans:.2} U, at most {} are allowed", case.name(), gate.scans));
        }
        if *allocations > gate.allocations {
            broken.push(format!(
                "{}: {allocations} allocations, at most {} are allowed",
                case.name(),
                gate.allocations
            ));
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
            broken.push(format!("{sentence}: {found:.2} U, but {expected:.2} U for {}", less.name()));
        }
    }
    broken
}

/// Runs a piece several times. valgrind finds this function by its name, and counts only the instructions in it.
#[inline(never)]
fn counted(work: &Work, piece: Piece) {
    for _ in 0..REPETITIONS {
        match piece {
            Piece::Scan => black_box(work).scan(),
            Piece::Answer => drop(black_box(work.answer())),
        }
    }
}

/// Runs a piece of a case under valgrind, and returns the number of instructions of one repetition.
fn instructions(case: Case, piece: Piece) -> f64 {
    let place = Case::ALL.iter().position(|other| *other == case).unwrap();
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=answers::counted"]);
    command.arg(std::env::current_exe().unwrap());
    command.args([COUNTED, &place.to_string(), if piece == Piece::Scan { "0" } else { "1" }]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "valgrind failed: {log}");
    // The format is `==42== Collected : 1234567`.
    let line = log.lines().find(|line| line.contains("Collected"));
    let count = line.and_then(|line| line.rsplit_once(':')).and_then(|(_, count)| count.trim().parse::<f64>().ok());
    let count = count.unwrap_or_else(|| panic!("valgrind printed no count: {log}"));
    assert!(count > 10_000.0, "valgrind did not find the function to count: {log}");
    count / f64::from(REPETITIONS)
}

/// Returns the time of one decision in the fastest round, in microseconds.
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
