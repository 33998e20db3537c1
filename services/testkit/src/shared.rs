//! Leases control planes to tests. Each control plane serves one test at a time.
//!
//! Starting etcd and kube-apiserver takes longer than most tests, so a control plane outlives the test that started it.
//! It runs in network namespaces of its own, and each test that leases it enters them. After a test has passed, every
//! key in etcd is reset to its initial value, except keys that the API server itself writes. After a test has failed,
//! its control plane is ended.
//!
//! Two tests never use one control plane at the same time. There are at most as many control planes as parallel tests.
//!
//! After a reset, a control plane has Pillion's CRDs or none ([`State`]). Most tests need the CRDs.
//!
//! A test may stop, pause and restart the API server of its lease, and may start a second API server on the same etcd.
//! To control the first API server, the test sends requests to the process that runs the control plane, the keeper (see
//! `remote.rs`). A reset starts a stopped API server again, and waits until only this API server is an endpoint of the
//! Service `kubernetes`.
//!
//! A lease is a lock on a file, because a test runner may start a process for each test. The control planes end with
//! the test runner.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::control_plane::CRDS;
use crate::daemon::tail;
use crate::eventually::POLL;
use crate::namespace;

mod keeper;
mod parameters;

pub(crate) use keeper::keep_if_asked;

/// The environment variable with the folder of the lease. It is set in the keeper of a control plane.
const KEEP: &str = "PILLION_TEST_KEEP";

/// The file in a lease's folder with the id of the process that has the control plane's namespaces.
const NAMESPACES: &str = "namespaces";
/// The file in a lease's folder that exists once the control plane is ready.
const READY: &str = "ready";
/// The file in a lease's folder that exists from the request of a reset until the control plane has been reset. It
/// contains the state to which the control plane is reset.
const USED: &str = "used";
/// The file in a lease's folder with the output of the control plane's keeper.
const LOG: &str = "keeper.log";

/// How long a control plane may take to start, or to be reset.
const LIMIT: Duration = Duration::from_mins(4);

/// What a control plane contains at the start of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Only what the API server itself creates.
    Bare,
    /// Also Pillion's CRDs. Installing them takes more processor time than most tests need for the rest.
    WithCrds,
}

impl State {
    /// Reads the state from a file that requests a reset.
    fn read(request: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(request)?.as_str() {
            "bare" => Ok(Self::Bare),
            "crds" => Ok(Self::WithCrds),
            other => bail!("{other}"),
        }
    }

    /// Requests a reset of the control plane in the folder of a lease to this state.
    fn request(self, lease: &Path) -> anyhow::Result<()> {
        let text = if self == Self::Bare { "bare" } else { "crds" };
        // The keeper must not read an incomplete file.
        let new = lease.join("used.new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, lease.join(USED)))
            .context("cannot request a reset")
    }

    /// Returns the state of the control plane in the folder of a lease.
    fn of(lease: &Path) -> Self {
        if state_file(lease).exists() { Self::WithCrds } else { Self::Bare }
    }

    /// Records the state of the control plane in the folder of a lease.
    fn write(self, lease: &Path) -> anyhow::Result<()> {
        let file = state_file(lease);
        match self {
            Self::Bare if file.exists() => std::fs::remove_file(file)?,
            Self::Bare => {}
            Self::WithCrds => std::fs::write(file, "")?,
        }
        Ok(())
    }
}

fn state_file(lease: &Path) -> PathBuf {
    lease.join(namespace::LEASED_CONTROL_PLANE).join(CRDS)
}

/// A control plane that no other test uses until the lease is returned.
#[derive(Debug)]
pub(crate) struct Lease {
    folder: PathBuf,
    /// The lock on this file is the lease.
    lock: File,
}

impl Lease {
    /// Leases a control plane in this state. Starts a new one if none is free, and resets one that has a different
    /// state. `keeper` returns the command for a new control plane: it runs this program with a test that calls
    /// [`keep_if_asked`]. This function runs the command in namespaces of its own.
    ///
    /// # Errors
    /// The control plane does not start or is not reset in time; the error contains the end of the keeper's log.
    pub(crate) fn take(state: State, keeper: impl Fn() -> Command) -> anyhow::Result<Self> {
        let run = Run::of_this_process();
        std::fs::create_dir_all(&run.folder).with_context(|| format!("cannot create {}", run.folder.display()))?;
        let lease = Self::choose(&run, state)?;
        if !lease.is_kept() {
            lease.start(&run, &keeper())?;
        }
        lease.wait()?;
        if State::of(&lease.folder) != state {
            state.request(&lease.folder)?;
            lease.wait()?;
        }
        Ok(lease)
    }

    /// Locks the free control plane that is ready soonest: if possible, one that runs and has this state. If none is
    /// free, locks the folder of a new one.
    fn choose(run: &Run, state: State) -> anyhow::Result<Self> {
        // Without this lock, a control plane would look occupied while another test considers it.
        let choosing = File::create(run.folder.join("choosing.lock")).context("cannot create a lock")?;
        choosing.lock().context("cannot lock a file")?;
        let (mut free, mut number) = (Vec::new(), 0);
        let at = |number: usize| {
            let lock = File::create(run.folder.join(format!("{number}.lock"))).context("cannot create a lock")?;
            anyhow::Ok(Self { folder: run.folder.join(number.to_string()), lock })
        };
        while run.folder.join(format!("{number}.lock")).exists() {
            free.push(at(number)?);
            number += 1;
        }
        free.retain(|lease| lease.lock.try_lock().is_ok());
        let best = free.into_iter().min_by_key(|lease| {
            let is_reset = !lease.folder.join(USED).exists();
            (!lease.is_kept(), State::of(&lease.folder) != state, !is_reset)
        });
        if let Some(best) = best {
            return Ok(best);
        }
        let new = at(number)?;
        new.lock.try_lock().context("another test has locked a new control plane")?;
        Ok(new)
    }

    /// Returns the lease's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a command that enters the control plane's user and network namespaces. The caller appends the program to
    /// run there.
    pub(crate) fn enter(&self) -> anyhow::Result<Command> {
        let process = self.namespaces().context("the control plane has ended")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &process, "--user", "--net", "--preserve-credentials", "--"]);
        Ok(command)
    }

    /// Ends the lease. If the test passed, requests a reset of the control plane. Otherwise copies its logs to the
    /// folder `logs`, and ends it.
    pub(crate) fn give_back(self, passed: bool, logs: &Path) -> anyhow::Result<()> {
        if passed {
            return State::of(&self.folder).request(&self.folder);
        }
        for name in ["etcd.log", "kube-apiserver.log"] {
            let _ = std::fs::copy(self.folder.join(namespace::LEASED_CONTROL_PLANE).join(name), logs.join(name));
        }
        if let Some(process) = self.namespaces() {
            // When the killed process has ended, the script [`KEEPER`] removes the folder.
            let _ = Command::new("kill").args(["-KILL", &process]).status();
        }
        let deadline = Instant::now() + LIMIT;
        while self.folder.exists() {
            ensure!(Instant::now() < deadline, "{} is not removed", self.folder.display());
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn namespaces(&self) -> Option<String> {
        let process = std::fs::read_to_string(self.folder.join(NAMESPACES)).ok()?.trim().to_owned();
        (!process.is_empty() && Path::new("/proc").join(&process).exists()).then_some(process)
    }

    fn is_kept(&self) -> bool {
        self.namespaces().is_some()
    }

    fn start(&self, run: &Run, keeper: &Command) -> anyhow::Result<()> {
        let _ = std::fs::remove_dir_all(&self.folder);
        std::fs::create_dir_all(&self.folder).with_context(|| format!("cannot create {}", self.folder.display()))?;
        let unshared = namespace::unshare();
        // The control plane gets a new session. A test runner that kills a test's process group then does not kill the
        // control plane.
        let mut command = Command::new("setsid");
        command
            .args(["--fork", "sh", "-c", KEEPER])
            .arg(&self.folder)
            .arg(run.owner.to_string())
            .arg(unshared.get_program())
            .args(unshared.get_args())
            .arg(keeper.get_program())
            .args(keeper.get_args())
            .env(KEEP, &self.folder);
        for (name, value) in keeper.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let status = status.context("cannot run `setsid` (package util-linux)")?;
        ensure!(status.success(), "setsid failed ({status})");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.is_kept() {
            ensure!(Instant::now() < deadline, "the keeper of a control plane did not start: {}", self.output());
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the control plane is ready and reset.
    fn wait(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if self.folder.join(READY).exists() && !self.folder.join(USED).exists() {
                return Ok(());
            }
            ensure!(self.is_kept(), "the keeper of a control plane has ended: {}", self.output());
            ensure!(Instant::now() < deadline, "no control plane within {LIMIT:?}: {}", self.output());
            std::thread::sleep(POLL);
        }
    }

    fn output(&self) -> String {
        tail(&self.folder.join(LOG), 40)
    }
}

/// A shell script that runs a command, and kills it if the owner ends. When the command has ended, removes the lease's
/// folder. If the owner has ended, also removes the lock files, and the folder of the test run once it is empty. `$0`
/// is the lease's folder, `$1` is the owner's process id, and the rest is the command.
const KEEPER: &str = r#"
folder=$0 owner=$1
shift
"$@" </dev/null >"$folder/keeper.log" 2>&1 &
keeper=$!
echo "$keeper" >"$folder/namespaces.new"
mv "$folder/namespaces.new" "$folder/namespaces"
while kill -0 "$owner" 2>/dev/null && kill -0 "$keeper" 2>/dev/null; do sleep 0.2; done
kill -KILL "$keeper" 2>/dev/null
wait "$keeper" 2>/dev/null
# After a failed start, the folder stays for a moment, so that the waiting test can show the log.
kill -0 "$owner" 2>/dev/null && [ ! -e "$folder/ready" ] && sleep 5
rm -rf "$folder"
if ! kill -0 "$owner" 2>/dev/null; then
  rm -f "$folder.lock" "$(dirname "$folder")/choosing.lock"
  rmdir "$(dirname "$folder")" 2>/dev/null
fi
"#;

/// The tests of one run of the test runner, which share control planes.
struct Run {
    folder: PathBuf,
    /// The process id of the test runner. The control planes end when this process ends.
    owner: u32,
}

impl Run {
    fn of_this_process() -> Self {
        let of = |name: String, owner| Self {
            folder: std::env::temp_dir().join(format!("pillion-control-planes-{name}")),
            owner,
        };
        // cargo-nextest starts a process for each test, all with the same run id.
        match (std::env::var("NEXTEST_RUN_ID"), rustix::process::getppid()) {
            (Ok(run), Some(runner)) => of(run, runner.as_raw_nonzero().get().unsigned_abs()),
            _ => of(std::process::id().to_string(), std::process::id()),
        }
    }
}
