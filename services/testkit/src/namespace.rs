//! The Linux namespaces of an isolated test: addresses, the test's folder, and the network of a leased control plane.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The address of the API server.
pub const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 111, 0, 1));

/// The address of a second API server on the same etcd.
pub const SECOND_API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 111, 0, 9));

/// The whole range on `lo`: every address of it can be listened on.
const RANGE: &str = "10.111.0.1/16";

/// The address of the `number`th replica, counted from 1: `10.111.1.NUMBER`.
#[must_use]
pub const fn replica_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 111, 1, number))
}

/// Set in the copy: the folder of the test.
pub(crate) const DIRECTORY: &str = "PILLION_TEST_DIRECTORY";
/// Set in the copy of a test that leases a control plane: the folder of that control plane.
pub(crate) const CONTROL_PLANE: &str = "PILLION_TEST_CONTROL_PLANE";
/// In the folder of a lease: the control plane's own folder, which `ControlPlane::start` attaches to.
pub(crate) const LEASED_CONTROL_PLANE: &str = "control-plane";

/// The folder of the isolated test that this process runs: logs, data and kubeconfigs belong there. It is kept when
/// the test fails and removed when it passes.
///
/// # Errors
/// Outside of [`isolated`](crate::isolated).
pub fn directory() -> anyhow::Result<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from).context(
        "this runs outside of pillion_testkit::isolated, which sets up the addresses and the folder; wrap the test's \
         body in it",
    )
}

/// The folder of the control plane that this test has leased; `None` if it has a network of its own.
pub(crate) fn leased_control_plane() -> Option<PathBuf> {
    std::env::var_os(CONTROL_PLANE).map(|folder| PathBuf::from(folder).join(LEASED_CONTROL_PLANE))
}

/// New namespaces; the command to run there is to be added.
pub(crate) fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        // When unshare dies, so does process 1 in there, and with it everything.
        "--kill-child",
        "--mount-proc",
        "--",
    ]);
    command
}

/// Makes every address of the range one of this network namespace.
pub(crate) fn set_up_addresses() -> anyhow::Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", RANGE, "dev", "lo"])
}

/// An address whose packets vanish without a word, as those of a node without power do; until it is dropped.
#[derive(Debug)]
pub struct Silence {
    address: String,
}

impl Silence {
    /// Has the packets to an address of this network namespace go where nobody takes them. What listens there has to be
    /// paused: what it sends would arrive.
    ///
    /// # Errors
    /// The route cannot be made.
    pub fn of(address: IpAddr) -> anyhow::Result<Self> {
        // One end of a pair, and the address of no machine behind it: there is neither an answer nor an error.
        if ip(&["link", "show", "nowhere"]).is_err() {
            ip(&["link", "add", "nowhere", "type", "veth", "peer", "name", "nobody"])?;
            ip(&["link", "set", "nobody", "up"])?;
            ip(&["link", "set", "nowhere", "up"])?;
        }
        let address = address.to_string();
        ip(&["neighbor", "replace", &address, "lladdr", "02:00:00:00:00:01", "dev", "nowhere", "nud", "permanent"])?;
        ip(&["route", "add", &address, "dev", "nowhere", "table", "local"])?;
        Ok(Self { address })
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // With the network namespace it would go anyway.
        let _ = ip(&["route", "delete", &self.address, "table", "local"]);
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot run `ip`, which sets up the test's addresses; install iproute2")?;
    if !output.status.success() {
        bail!("ip {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
