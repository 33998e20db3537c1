//! Runs a test in Linux namespaces of its own: user, network, process and mount. This does not need root.
//!
//! The test process starts a copy of itself with the name of the test, and waits for it. The copy is process 1 of a
//! process namespace, so every process that it starts ends with it. No packet leaves the copy's network, so tests with
//! the same addresses and ports can run in parallel.
//!
//! By default the test leases a control plane (see `shared.rs`), and the copy enters its network. The test may stop,
//! pause and restart the API server of this control plane. A test that configures or measures the control plane
//! requests a network of its own ([`Isolation::own_network`]).
//!
//! On the machine's loopback, the API server would behave differently from production in two ways. It sends requests to
//! a webhook on a loopback URL over one HTTP/2 connection. It also rejects loopback addresses as endpoints of a
//! Service.

use std::ffi::OsString;
use std::fmt::{self, Display, Write as _};
use std::future::Future;
use std::io::{BufRead, BufReader, PipeReader, Read, Write as _};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::daemon::tail;
use crate::eventually::POLL;
use crate::namespace::{CONTROL_PLANE, DIRECTORY, directory, leased_control_plane, set_up_addresses, unshare};
use crate::shared::State;
use crate::{shared, tools};

/// The environment variable that selects the body that the copy runs: the source location of the call that has this
/// body, such as a call of [`isolated`] or [`Isolation::run`].
const CALL: &str = "PILLION_TEST_CALL";
/// The file in the test's folder to which the copy writes the result of the body. With the exit code alone, a test that
/// was not found would look like a passed test.
const OUTCOME: &str = "outcome";
const PASSED: &str = "passed";

/// How long the parent waits after the copy's own time limit.
const GRACE: Duration = Duration::from_secs(15);
/// The number of lines of each log in a failure's message.
const TAIL: usize = 15;

/// Runs `body` in its own namespaces, for at most ten minutes. See [`Isolation`].
///
/// # Panics
/// Panics if the body fails, which fails the test.
#[track_caller]
pub fn isolated<F, Fut>(body: F)
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    Isolation::new().run(body);
}

/// Like [`isolated`], with a control plane that has Pillion's CRDs ([`Isolation::with_crds`]).
///
/// # Panics
/// Panics if the body fails, which fails the test.
#[track_caller]
pub fn isolated_with_crds<F, Fut>(body: F)
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    Isolation::new().with_crds().run(body);
}

/// The isolation settings of a test.
#[derive(Debug, Clone)]
#[must_use]
pub struct Isolation {
    time_limit: Duration,
    has_own_network: bool,
    state: State,
}

/// The failure of an isolated test.
#[derive(Debug)]
pub struct Failure {
    /// The message for the test's output.
    pub message: String,
    /// The output of the copy.
    pub output: String,
    /// The folder of the test, which is kept for debugging. `None`: the test failed before the folder was created.
    pub directory: Option<PathBuf>,
}

impl Default for Isolation {
    fn default() -> Self {
        Self::new()
    }
}

impl Isolation {
    /// Creates settings with a time limit of ten minutes. Tests need far less, so they do not time out on a busy
    /// machine.
    pub fn new() -> Self {
        Self { time_limit: Duration::from_mins(10), has_own_network: false, state: State::Bare }
    }

    /// Uses an empty network instead of one with a leased control plane. This is for tests that configure or measure
    /// the control plane, or do not need one. `_reason` documents why.
    pub fn own_network(mut self, _reason: &'static str) -> Self {
        self.has_own_network = true;
        self
    }

    /// Leases a control plane that has Pillion's CRDs. This is for tests that need the CRDs, but do not test how they
    /// are installed.
    pub fn with_crds(mut self) -> Self {
        self.state = State::WithCrds;
        self
    }

    /// Sets the body's time limit, which does not include the first build of the tools.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Runs `body` on a Tokio runtime in its own namespaces.
    ///
    /// The test's function runs twice: in the original process and in its copy. Code before this call runs in both, and
    /// code after it runs only in the original process.
    ///
    /// # Panics
    /// Panics if the body fails, which fails the test.
    #[track_caller]
    pub fn run<F, Fut>(self, body: F)
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        if let Err(failure) = self.try_run(body) {
            #[expect(clippy::panic, reason = "this is how a test fails")]
            {
                panic!("{failure}");
            }
        }
    }

    /// Like [`Isolation::run`], but returns the failure.
    ///
    /// If a test makes several calls, each has its own copy. In that copy, earlier calls return `Ok` and do nothing.
    ///
    /// # Errors
    /// The body failed, panicked or timed out, the tools or the control plane cannot be started, or this machine does
    /// not allow namespaces.
    #[track_caller]
    pub fn try_run<F, Fut>(self, body: F) -> Result<(), Failure>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let call = Location::caller().to_string();
        let cannot_keep = |error: anyhow::Error| Failure {
            message: format!("cannot keep a control plane running: {error:#}"),
            output: String::new(),
            directory: None,
        };
        shared::keep_if_asked().map_err(cannot_keep)?;
        match std::env::var(CALL) {
            Ok(wanted) if wanted == call => inside(self.time_limit, body),
            // This is the copy for a later call of the same test.
            Ok(_) => Ok(()),
            Err(_) => self.outside(test_name::<F>(), &call),
        }
    }

    fn outside(&self, test: Option<String>, call: &str) -> Result<(), Failure> {
        let early =
            |error: anyhow::Error| Failure { message: format!("{error:#}"), output: String::new(), directory: None };
        // The build fetches modules from the network, so it runs outside the namespaces.
        let tools = tools::dir().map_err(early)?;
        probe().map_err(early)?;
        let test = test
            .context(
                "the name of this test is unknown: call isolated with a closure that is written in the test's function",
            )
            .map_err(early)?;
        let directory = tempfile::Builder::new()
            .prefix("pillion-test-")
            .tempdir()
            .context("cannot create a folder for the test")
            .map_err(early)?;

        let mut output = String::new();
        match self.leased(&test, call, &tools, directory.path(), &mut output) {
            Ok(()) => Ok(()),
            Err(error) => {
                let message = format!("{test}: {error:#}");
                Err(Failure { message, output, directory: Some(directory.keep()) })
            }
        }
    }

    /// Runs the copy with a leased control plane, unless the test has its own network.
    fn leased(
        &self,
        test: &str,
        call: &str,
        tools: &Path,
        directory: &Path,
        output: &mut String,
    ) -> anyhow::Result<()> {
        if self.has_own_network {
            return self.copy(unshare(), &copy_of(test)?, call, tools, directory, output);
        }
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let lease = shared::Lease::take(self.state, || {
            let mut keeper = Command::new(&program);
            keeper.args(arguments(test)).env(tools::ASSETS_VARIABLE, tools).env_remove(CALL);
            for variable in PROXIES {
                keeper.env_remove(variable);
            }
            keeper
        })?;
        let mut command = lease.enter()?;
        command.arg("unshare").args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.env(CONTROL_PLANE, lease.folder());
        let outcome = self.copy(command, &copy_of(test)?, call, tools, directory, output);
        lease.give_back(outcome.is_ok(), directory)?;
        outcome
    }

    /// Runs the copy until it ends. `command` enters the namespaces. Stores the copy's output in `output`, and fails
    /// unless the test has passed.
    fn copy(
        &self,
        mut command: Command,
        copy: &[OsString],
        call: &str,
        tools: &Path,
        directory: &Path,
        output: &mut String,
    ) -> anyhow::Result<()> {
        let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
        command
            .args(copy)
            .env(DIRECTORY, directory)
            .env(CALL, call)
            .env(tools::ASSETS_VARIABLE, tools)
            // This process never writes to the pipe. The pipe closes when this process ends, and then the copy ends
            // too.
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().context("cannot create a pipe")?)
            .stderr(writer);
        for variable in PROXIES {
            command.env_remove(variable);
        }
        let mut child = command.spawn().context(UNSHARE_HELP)?;
        // The command owns the write end of the output pipe. While the command exists, the reader would not see the end
        // of the output.
        drop(command);

        // The new thread inherits the test harness's output capture, so the harness shows the printed lines as output
        // of the test.
        let printer = std::thread::spawn(move || print_and_collect(reader));
        let status = wait(&mut child, self.time_limit + GRACE);
        *output = printer.join().unwrap_or_default();
        let status = status?;

        match std::fs::read_to_string(directory.join(OUTCOME)) {
            Ok(outcome) if outcome == PASSED && status.success() => Ok(()),
            Ok(outcome) => bail!("{outcome}"),
            Err(_) => bail!("the isolated copy ended ({status}) before it reached the test's body"),
        }
    }
}

const PROXIES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

const UNSHARE_HELP: &str = "cannot run `unshare` (package util-linux), which gives each test namespaces of its own";

/// Returns the command line that runs this program with only this test.
fn copy_of(test: &str) -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(std::iter::once(program.into()).chain(arguments(test).map(OsString::from)).collect())
}

fn arguments(test: &str) -> [&str; 5] {
    ["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"]
}

/// Checks that this machine allows namespaces. If not, returns an error that explains how to enable them.
fn probe() -> anyhow::Result<()> {
    let output = unshare().arg("true").stdin(Stdio::null()).output().context(UNSHARE_HELP)?;
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "this machine does not allow tests to create namespaces: {}\n  \
         help: allow unprivileged user namespaces; one of these settings may forbid them:\n        \
         sysctl user.max_user_namespaces (must be above 0),\n        \
         sysctl kernel.unprivileged_userns_clone=1 (Debian), \
         sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu),\n        \
         in a container: --security-opt seccomp=unconfined --security-opt systempaths=unconfined (or --privileged)",
        String::from_utf8_lossy(&output.stderr).trim()
    )
}

/// Returns the test's name. The harness names each test's thread after the test, unless all tests run on the main
/// thread. In that case the name comes from the closure's type. `None`: the type contains no name.
fn test_name<F>() -> Option<String> {
    let thread = std::thread::current();
    if let Some(name) = thread.name().filter(|name| *name != "main") {
        return Some(name.to_owned());
    }
    name_from_type(std::any::type_name::<F>())
}

/// Extracts the test name `module::test` from `the_crate::module::test::{{closure}}`. `None`: the type is not that of a
/// closure directly in a function.
fn name_from_type(type_name: &str) -> Option<String> {
    let (function, closure) = type_name.split_once("::{{closure}}")?;
    let (_, test) = function.split_once("::")?;
    closure.is_empty().then(|| test.to_owned())
}

fn print_and_collect(reader: PipeReader) -> String {
    let mut all = String::new();
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        #[expect(clippy::print_stdout, reason = "the copy's output is the test's output")]
        {
            println!("{line}");
        }
        all.push_str(&line);
        all.push('\n');
    }
    all
}

fn wait(child: &mut Child, limit: Duration) -> anyhow::Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the isolated copy")? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            child.kill().context("cannot end the isolated copy")?;
            child.wait().context("cannot wait for the isolated copy")?;
            bail!("it did not end within {limit:?} and was killed");
        }
        std::thread::sleep(POLL);
    }
}

/// Runs the body in the copy. Then ends the process, so that the test's code after the call does not run there.
fn inside<F, Fut>(limit: Duration, body: F) -> !
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    end_with_parent();
    let outcome = match catch_unwind(AssertUnwindSafe(|| run_body(limit, body))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{error:?}")),
        Err(panic) => Err(format!("panicked: {}", panic_message(panic.as_ref()))),
    };
    let text = outcome.as_ref().err().map_or(PASSED, String::as_str);
    let written = directory().and_then(|directory| Ok(std::fs::write(directory.join(OUTCOME), text)?));
    if let Err(error) = written {
        let _ = writeln!(std::io::stderr(), "cannot write the outcome of the test: {error:#}");
    }
    std::process::exit(i32::from(outcome.is_err()));
}

/// Ends the copy when the pipe from the parent closes. Otherwise the copy would continue if the test harness is
/// interrupted.
fn end_with_parent() {
    std::thread::spawn(|| {
        let mut byte = [0];
        if matches!(std::io::stdin().read(&mut byte), Ok(0) | Err(_)) {
            std::process::exit(1);
        }
    });
}

fn run_body<F, Fut>(limit: Duration, body: F) -> anyhow::Result<()>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    crate::certificates::install_crypto_provider();
    if leased_control_plane().is_none() {
        set_up_addresses()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot build a Tokio runtime")?;
    runtime.block_on(async {
        match tokio::time::timeout(limit, body()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow!("the test's body did not end within {limit:?}")),
        }
    })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let Some(directory) = &self.directory else { return Ok(()) };
        write!(f, "\n\nlogs are kept in {}", directory.display())?;
        let mut logs = Vec::new();
        find_logs(directory, 3, &mut logs);
        logs.sort();
        for log in logs {
            write!(f, "\n--- the end of {}:\n", log.display())?;
            f.write_str(tail(&log, TAIL).trim_end())?;
        }
        f.write_char('\n')
    }
}

impl std::error::Error for Failure {}

fn find_logs(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() && depth > 0 {
            find_logs(&path, depth - 1, found);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closure_type_has_test_name() {
        assert_eq!(name_from_type("control_plane::serves::{{closure}}").as_deref(), Some("serves"));
        assert_eq!(name_from_type("testkit::a::b::serves::{{closure}}").as_deref(), Some("a::b::serves"));
    }

    #[test]
    fn nested_closure_has_no_test_name() {
        assert_eq!(name_from_type("control_plane::body"), None);
        assert_eq!(name_from_type("control_plane::serves::{{closure}}::{{closure}}"), None);
    }

    #[test]
    fn main_thread_uses_closure_type() {
        fn ask<F>(_: F) -> Option<String> {
            name_from_type(std::any::type_name::<F>())
        }
        let name = "isolation::tests::main_thread_uses_closure_type";
        assert_eq!(ask(|| ()).as_deref(), Some(name));
        assert_eq!(std::thread::current().name().filter(|thread| *thread != "main").unwrap_or(name), name);
    }
}
