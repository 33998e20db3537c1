//! Manages a control plane on this machine's loopback, for manual use. `control-plane up` starts etcd and
//! kube-apiserver and leaves them running; `control-plane down` ends them and removes their data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use pillion_testkit::control_plane::{ControlPlane, Detached, client_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long a killed process may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Starts or ends a Kubernetes control plane (etcd and kube-apiserver) on this machine's loopback.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// The folder for data, kubeconfig and logs. Default: a folder in the user's cache.
    #[arg(long, global = true, value_name = "FOLDER")]
    directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Action {
    /// Start the control plane, unless it is already running; the last line of the output is KUBECONFIG=PATH.
    Up,
    /// End the control plane and remove its data.
    Down,
}

#[expect(clippy::print_stdout, reason = "the program prints its result")]
fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let directory = match arguments.directory {
        Some(directory) => std::path::absolute(directory).context("the folder")?,
        None => default_directory()?,
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot build a Tokio runtime")?;
    match arguments.action {
        Action::Up => {
            let kubeconfig = runtime.block_on(up(&directory))?;
            println!("logs: {}", directory.display());
            println!("KUBECONFIG={}", kubeconfig.display());
        }
        Action::Down => println!("{}", down(&directory)?),
    }
    Ok(())
}

fn default_directory() -> anyhow::Result<PathBuf> {
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set; name a folder with --directory"),
    };
    Ok(cache.join("pillion/control-plane"))
}

/// Returns the kubeconfig of the running control plane if it is healthy. Otherwise removes its remains and starts a new
/// one.
async fn up(directory: &Path) -> anyhow::Result<PathBuf> {
    if let Some(state) = read_state(directory)? {
        if let Ok(client) = client_of(&state.kubeconfig).await
            && let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(5), client.apiserver_version()).await
        {
            return Ok(state.kubeconfig);
        }
        down(directory)?;
    }
    let control_plane = ControlPlane::builder().on_loopback()?.directory(directory).start().await?;
    let detached = control_plane.detach()?;
    let state = json!({
        "kubeconfig": detached.kubeconfig,
        "api_server": detached.api_server,
        "etcd": detached.etcd,
    });
    std::fs::write(state_file(directory), format!("{state:#}\n")).context("cannot record the started processes")?;
    Ok(detached.kubeconfig)
}

fn down(directory: &Path) -> anyhow::Result<String> {
    let Some(state) = read_state(directory)? else {
        return Ok(format!("no control plane was started in {}", directory.display()));
    };
    // Ends the API server before etcd, on which it depends.
    for (program, pid) in [("kube-apiserver", state.api_server), ("etcd", state.etcd)] {
        kill_if(program, pid)?;
    }
    std::fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    Ok("ended".to_owned())
}

fn state_file(directory: &Path) -> PathBuf {
    directory.join("running.json")
}

fn read_state(directory: &Path) -> anyhow::Result<Option<Detached>> {
    let path = state_file(directory);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let state: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not JSON; end the processes by hand, and remove the file", path.display()))?;
    let pid = |key: &str| state.get(key).and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
    match (state.get("kubeconfig").and_then(Value::as_str), pid("api_server"), pid("etcd")) {
        (Some(kubeconfig), Some(api_server), Some(etcd)) => {
            Ok(Some(Detached { kubeconfig: kubeconfig.into(), api_server, etcd }))
        }
        _ => bail!("{} lacks a field; end the processes by hand, and remove the file", path.display()),
    }
}

/// Kills the process with this id if it still runs this program, and waits for its end. Another process may have reused
/// the id.
fn kill_if(program: &str, pid: u32) -> anyhow::Result<()> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let name = || std::fs::read_link(process.join("exe")).ok().and_then(|exe| Some(exe.file_name()?.to_owned()));
    if name().is_none_or(|name| name != program) {
        return Ok(());
    }
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process id out of range")?;
    kill_process(target, Signal::KILL).with_context(|| format!("cannot end {program}, process {pid}"))?;
    let deadline = std::time::Instant::now() + END_LIMIT;
    // The link to the program disappears when the process ends, before the process is reaped.
    while name().is_some() {
        if std::time::Instant::now() >= deadline {
            bail!("{program}, process {pid}, does not end");
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    Ok(())
}
