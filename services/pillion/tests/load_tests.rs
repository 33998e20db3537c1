//! Runs each script of load-tests/ for a moment, with the real k6 against a real webhook. The tests ignore the measured
//! values: they check that the scripts run, check responses, and fail when a response is wrong. With
//! `PILLION_LOAD=full` the scripts use their own durations and rates, which takes a quarter of an hour.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::Program;
use pillion_testkit::tools;
use serde_json::Value as Json;

/// The exit code of k6 when a threshold is exceeded.
const THRESHOLD_BROKEN: i32 = 99;
/// The number of namespaces that the webhook knows: the default of the scripts.
const NAMESPACES: &str = "50";
/// How long a run may take.
const LIMIT: Duration = Duration::from_mins(3);
const FULL_LIMIT: Duration = Duration::from_mins(12);

/// A short run, with a rate and limits that a busy machine can meet.
const SHORT: [(&str, &str); 4] = [("RATE", "40"), ("DURATION", "3s"), ("P99_MS", "5000"), ("MAX_VUS", "200")];

/// Returns whether the scripts use their own durations and rates.
fn full() -> bool {
    match std::env::var("PILLION_LOAD").as_deref() {
        Ok("full") => true,
        Ok(other) if !other.is_empty() => panic!("PILLION_LOAD={other}: expected full, or nothing"),
        _ => false,
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../load-tests").canonicalize().unwrap()
}

/// A webhook that serves the profile of the load tests in their namespaces.
struct Webhook {
    _program: Program,
    folder: tempfile::TempDir,
    url: String,
}

impl Webhook {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let printed = Command::new(scripts().join("namespaces.sh")).arg(NAMESPACES).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let namespaces = folder.path().join("namespaces.yaml");
        std::fs::write(&namespaces, printed.stdout).unwrap();
        let profile = scripts().join("profile.yaml");
        let served = folder.path().join("served");
        let arguments = [
            "dev",
            "--log-level",
            "info",
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "127.0.0.1:0",
            "--profiles",
            profile.to_str().unwrap(),
            "--namespaces-file",
            namespaces.to_str().unwrap(),
            "--folder",
            served.to_str().unwrap(),
        ];
        let program = Program::start(&arguments, folder.path());
        let url = program.word_behind("Serving ");
        Self { _program: program, folder, url }
    }

    /// Runs a script against the webhook. Of settings with the same name, the last one applies.
    fn run(&self, script: &str, environment: &[(&str, &str)]) -> Run {
        let summary = self.folder.path().join(format!("{script}.json"));
        // Removes the summary of an earlier run, so that it is not taken for this one's.
        let _ = std::fs::remove_file(&summary);
        let mut command = Command::new(tools::program("k6").unwrap());
        command
            .args(["run", "--no-usage-report", "--no-color", "--quiet"])
            .arg(scripts().join(format!("{script}.js")))
            .current_dir(self.folder.path())
            // Trusts only the webhook's CA. Uses HTTP/1.1, as the API server does for a Service.
            .env("SSL_CERT_FILE", self.folder.path().join("served/ca.crt"))
            .env("SSL_CERT_DIR", "/nonexistent")
            .env("GODEBUG", "http2client=0")
            .env("K6_AUTO_EXTENSION_RESOLUTION", "false")
            .env("HOME", self.folder.path())
            .env("PILLION_URL", &self.url)
            .env("SUMMARY", &summary)
            .envs(environment.iter().copied());
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(variable);
        }
        let output = within(if full() { FULL_LIMIT } else { LIMIT }, &mut command);
        let figures = std::fs::read(&summary).ok().map(|text| serde_json::from_slice(&text).unwrap());
        Run { output, figures }
    }
}

/// The result of a script.
#[derive(Debug)]
struct Run {
    output: Output,
    figures: Option<Json>,
}

impl Run {
    fn count(&self, key: &str) -> u64 {
        let figures = self.figures.as_ref().unwrap_or_else(|| panic!("no figures: {self:?}"));
        figures[key].as_u64().unwrap_or_else(|| panic!("{key} is no number: {self:?}"))
    }

    fn told(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned() + &String::from_utf8_lossy(&self.output.stderr)
    }
}

#[expect(clippy::print_stdout, reason = "a long run prints its figures")]
fn tell(figures: &str) {
    println!("{figures}");
}

/// Runs a program that must end by itself.
fn within(limit: Duration, command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if is_done.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-KILL", &id]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    guard.join().unwrap();
    output
}

#[test]
fn every_script_runs_and_finds_all_as_it_should_be() {
    let webhook = Webhook::start();
    let mut found: Vec<_> = std::fs::read_dir(scripts())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().unwrap().strip_suffix(".js").map(str::to_owned))
        .collect();
    found.sort();
    assert_eq!(found, ["pods", "smoke", "soak", "spike", "steady", "tenants"]);
    // The script `pods` needs an API server: tests/e2e/k6_pods.rs runs it.
    for script in found.into_iter().filter(|script| script != "pods") {
        let begun = Instant::now();
        let settings: &[(&str, &str)] = if full() { &[] } else { &SHORT };
        let mut run = webhook.run(&script, settings);
        // If the machine stalls for a moment, k6 has no free client to send with. The script is not at fault, so retry.
        for _ in 0..2 {
            if run.figures.as_ref().is_none_or(|figures| figures["not_sent"] == 0) {
                break;
            }
            run = webhook.run(&script, settings);
        }
        assert_eq!(run.output.status.code(), Some(0), "{}", run.told());
        if let Some(figures) = run.figures.as_ref().filter(|_| full()) {
            tell(&figures.to_string());
        }
        // The spike script sends at the low rate for two thirds of its time.
        assert!(run.count("requests") >= 30 && begun.elapsed() >= Duration::from_secs(2), "{run:?}");
        assert_eq!(run.count("checks_passed"), 5 * run.count("requests"), "five checks of each answer: {run:?}");
        for key in ["checks_failed", "failed", "shed", "not_sent"] {
            assert_eq!(run.count(key), 0, "{key}: {run:?}");
        }
        let figures = run.figures.unwrap();
        assert_eq!(figures["script"], script.as_str());
        assert!(figures["p99_ms"].as_f64().unwrap() > 0.0, "{figures}");
    }
}

#[test]
fn a_run_fails_when_what_is_measured_is_wrong() {
    let webhook = Webhook::start();
    let nowhere = webhook.url.replace("/mutate", "/nowhere");
    let settings = |wrong| [&SHORT[..], &[("DURATION", "1s"), wrong]].concat();
    for (wrong, setting) in [
        // No profile injects such a container, so this shows that the script checks the patch.
        ("checks", ("SIDECAR", "another")),
        // No response is that fast, so this shows that the script checks durations.
        ("http_req_duration", ("P99_MS", "0.001")),
        // Nothing responds at this path.
        ("http_req_failed", ("PILLION_URL", &*nowhere)),
        // k6 does not connect to a server that it does not trust.
        ("http_req_failed", ("SSL_CERT_FILE", "/nonexistent")),
    ] {
        let run = webhook.run("smoke", &settings(setting));
        assert_eq!(run.output.status.code(), Some(THRESHOLD_BROKEN), "{setting:?}: {}", run.told());
        let figures = run.figures.unwrap();
        assert_eq!(figures["ok"], false, "{figures}");
        let broken = figures["broken"].to_string();
        assert!(broken.contains(wrong), "{setting:?}: {wrong} is not in {broken}");
    }
    // Invalid settings are reported before the first request.
    let run = webhook.run("smoke", &settings(("RATE", "many")));
    assert!(run.told().contains("RATE=many: expected a number"), "{}", run.told());
    assert!(run.figures.is_none() && !run.output.status.success());
}
