//! Runs each script of load-tests/ except `pods` for a few seconds, with the real k6 and a real webhook. The measured
//! figures are not evaluated. The tests check that the scripts run, that they check responses, and that they fail for
//! wrong responses. With `PILLION_LOAD=full`, the scripts run at their own duration and rate, which takes a quarter of
//! an hour.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::Program;
use pillion_testkit::tools;
use serde_json::Value as Json;

/// The exit code of k6 when a threshold is exceeded.
const THRESHOLD_BROKEN: i32 = 99;
/// Number of namespaces that the webhook knows. It is the default of the scripts.
const NAMESPACES: &str = "50";
/// Time limits of a short run and of a full run.
const LIMIT: Duration = Duration::from_mins(3);
const FULL_LIMIT: Duration = Duration::from_mins(12);

/// The settings of short runs. Their rate and limits allow for other tests on the same machine.
const SHORT: [(&str, &str); 4] = [("RATE", "40"), ("DURATION", "3s"), ("P99_MS", "5000"), ("MAX_VUS", "200")];

/// Returns whether the scripts run at their own duration and rate.
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

/// A webhook that serves the load tests' profile in their namespaces.
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
            "--profile",
            profile.to_str().unwrap(),
            "--namespace-file",
            namespaces.to_str().unwrap(),
            "--folder",
            served.to_str().unwrap(),
        ];
        let program = Program::start(&arguments, folder.path());
        let url = program.word_after("Serving ");
        Self { _program: program, folder, url }
    }

    /// Runs a script with these settings. If a name occurs more than once, its last value takes effect.
    fn run(&self, script: &str, environment: &[(&str, &str)]) -> Run {
        let summary = self.folder.path().join(format!("{script}.json"));
        // Removes the result of an earlier run.
        let _ = std::fs::remove_file(&summary);
        let mut command = Command::new(tools::program("k6").unwrap());
        command
            .args(["run", "--no-usage-report", "--no-color", "--quiet"])
            .arg(scripts().join(format!("{script}.js")))
            .current_dir(self.folder.path())
            // k6 trusts only the webhook's CA, and uses HTTP/1.1, as the API server does for a Service.
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

/// The output of a script, and the figures that it wrote, if any.
#[derive(Debug)]
struct Run {
    output: Output,
    figures: Option<Json>,
}

impl Run {
    fn count(&self, key: &str) -> u64 {
        let figures = self.figures.as_ref().unwrap_or_else(|| panic!("no figures: {self:?}"));
        figures[key].as_u64().unwrap_or_else(|| panic!("{key} is not a number: {self:?}"))
    }

    fn output_text(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned() + &String::from_utf8_lossy(&self.output.stderr)
    }
}

#[expect(clippy::print_stdout, reason = "a long run prints its figures")]
fn print_figures(figures: &str) {
    println!("{figures}");
}

/// Runs a program, and kills it when it exceeds the time limit. Returns its output.
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
fn every_script_passes_against_working_webhook() {
    let webhook = Webhook::start();
    let mut found: Vec<_> = std::fs::read_dir(scripts())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().unwrap().strip_suffix(".js").map(str::to_owned))
        .collect();
    found.sort();
    assert_eq!(found, ["pods", "smoke", "soak", "spike", "steady", "tenants"]);
    // The script `pods` needs an API server, so tests/e2e/k6_pods.rs runs it.
    for script in found.into_iter().filter(|script| script != "pods") {
        let begun = Instant::now();
        let settings: &[(&str, &str)] = if full() { &[] } else { &SHORT };
        let mut run = webhook.run(&script, settings);
        // If the machine stalled for a moment, k6 had no free client for a request. That is not a fault of the script,
        // so the run is repeated.
        for _ in 0..2 {
            if run.figures.as_ref().is_none_or(|figures| figures["not_sent"] == 0) {
                break;
            }
            run = webhook.run(&script, settings);
        }
        assert_eq!(run.output.status.code(), Some(0), "{}", run.output_text());
        if let Some(figures) = run.figures.as_ref().filter(|_| full()) {
            print_figures(&figures.to_string());
        }
        // The script `spike` runs at its low rate for two thirds of its duration.
        assert!(run.count("requests") >= 30 && begun.elapsed() >= Duration::from_secs(2), "{run:?}");
        assert_eq!(run.count("checks_passed"), 5 * run.count("requests"), "five checks of each response: {run:?}");
        for key in ["checks_failed", "failed", "shed", "not_sent"] {
            assert_eq!(run.count(key), 0, "{key}: {run:?}");
        }
        let figures = run.figures.unwrap();
        assert_eq!(figures["script"], script.as_str());
        assert!(figures["p99_ms"].as_f64().unwrap() > 0.0, "{figures}");
    }
}

#[test]
fn run_fails_for_wrong_results() {
    let webhook = Webhook::start();
    let nowhere = webhook.url.replace("/mutate", "/nowhere");
    let settings = |wrong| [&SHORT[..], &[("DURATION", "1s"), wrong]].concat();
    for (wrong, setting) in [
        // No profile injects this container, so the check of the patch must fail.
        ("checks", ("SIDECAR", "another")),
        // No response is that fast, so the check of durations must fail.
        ("http_req_duration", ("P99_MS", "0.001")),
        // The webhook has no such path, so it responds with an error.
        ("http_req_failed", ("PILLION_URL", &*nowhere)),
        // The certificate is untrusted.
        ("http_req_failed", ("SSL_CERT_FILE", "/nonexistent")),
    ] {
        let run = webhook.run("smoke", &settings(setting));
        assert_eq!(run.output.status.code(), Some(THRESHOLD_BROKEN), "{setting:?}: {}", run.output_text());
        let figures = run.figures.unwrap();
        assert_eq!(figures["ok"], false, "{figures}");
        let broken = figures["broken"].to_string();
        assert!(broken.contains(wrong), "{setting:?}: {wrong} is not in {broken}");
    }
    // The script reports invalid settings before it sends anything.
    let run = webhook.run("smoke", &settings(("RATE", "many")));
    assert!(run.output_text().contains("RATE=many: expected a number"), "{}", run.output_text());
    assert!(run.figures.is_none() && !run.output.status.success());
}
