//! The Linux namespaces of an isolated test: addresses, the test's folder, and the network of a leased control plane.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The address of the API server.
pub const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 111, 0, 1));

/// The address of a second API server on the same etcd.
pub const SECOND_API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 111, 0, 9));

/// The addresses of `lo`. A process can listen on each of them.
const RANGE: &str = "10.111.0.1/16";

/// Returns the address of the `number`th replica, counted from 1: `10.111.1.NUMBER`.
#[must_use]
pub const fn replica_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 111, 1, number))
}

/// The environment variable with the folder of the test. It is set in the isolated copy of the test process.
pub(crate) const DIRECTORY: &str = "PILLION_TEST_DIRECTORY";
/// The environment variable with the folder of the lease. It is set in the isolated copy if the test has leased a
/// control plane.
pub(crate) const CONTROL_PLANE: &str = "PILLION_TEST_CONTROL_PLANE";
/// The name of the control plane's folder inside a lease's folder. In a test with a lease, `ControlPlane::start` uses
/// this control plane.
pub(crate) const LEASED_CONTROL_PLANE: &str = "control-plane";

/// Returns the folder of the current isolated test, for logs, data and kubeconfigs. The folder is kept if the test
/// fails, and removed if it passes.
///
/// # Errors
/// The call is not inside [`isolated`](crate::isolated).
pub fn directory() -> anyhow::Result<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from).context(
        "this runs outside of pillion_testkit::isolated, which sets up the addresses and the folder; wrap the test's \
         body in it",
    )
}

/// Returns the folder of the leased control plane. `None`: this process has no lease, for example because the test has
/// its own network.
pub(crate) fn leased_control_plane() -> Option<PathBuf> {
    std::env::var_os(CONTROL_PLANE).map(|folder| PathBuf::from(folder).join(LEASED_CONTROL_PLANE))
}

/// Returns a command that creates namespaces. The caller appends the program to run there.
pub(crate) fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        // When `unshare` ends, the kernel kills process 1 of the namespace, and all its other processes.
        "--kill-child",
        "--mount-proc",
        "--",
    ]);
    command
}

/// Adds every address of [`RANGE`] to this network namespace.
pub(crate) fn set_up_addresses() -> anyhow::Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", RANGE, "dev", "lo"])
}

/// Discards all packets to an address until this value is dropped, as if the node had lost power.
#[derive(Debug)]
pub struct Silence {
    address: String,
}

impl Silence {
    /// Starts to discard the packets to an address of this network namespace. Packets from that address still arrive,
    /// so pause any process that listens there.
    ///
    /// # Errors
    /// The route cannot be created.
    pub fn of(address: IpAddr) -> anyhow::Result<Self> {
        // The route leads to one end of a veth pair, and the neighbour entry has a hardware address that does not
        // exist. So senders receive neither a reply nor an error.
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
        // An error is ignored: the route disappears with the network namespace.
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
