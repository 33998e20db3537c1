//! Chooses the addresses of the network link between host and node: a network of four addresses to which the host has
//! no other route.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::run;

/// The network that contains the networks of all links: `10.250.0.0/16`.
const NETWORK: u32 = u32::from_be_bytes([10, 250, 0, 0]);
/// Routes with a prefix length of at most this are ignored. Such a route, for example to `10.0.0.0/8`, does not make
/// the networks inside it unavailable.
const LONGEST_ROUTE_PREFIX: u32 = 15;

/// Returns the host's and the node's address for the cluster in the folder `home`. The first call chooses a free
/// network, and stores its number in the folder.
pub(super) fn of(home: &Path) -> anyhow::Result<(Ipv4Addr, Ipv4Addr)> {
    let pair = |number: u8| (Ipv4Addr::new(10, 250, number, 1), Ipv4Addr::new(10, 250, number, 2));
    let file = home.join("number");
    if let Ok(number) = std::fs::read_to_string(&file) {
        return Ok(pair(number.trim().parse().with_context(|| format!("{} contains no number", file.display()))?));
    }
    let folder = home.parent().context("a folder")?;
    let lock = std::fs::File::create(folder.join(".lock")).context("the lock of the clusters")?;
    lock.lock().context("the lock of the clusters")?;
    let taken: Vec<String> = std::fs::read_dir(folder)?
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("number")).ok())
        .collect();
    // A network is taken if a cluster in another folder uses it, or the machine has a route to it.
    let routes = run(Command::new("ip").args(["-4", "route", "show", "table", "all"]))?;
    let is_free = |number: &u8| {
        !taken.iter().any(|other| other.trim() == number.to_string())
            && !routes.lines().any(|line| leads_to(line, *number))
    };
    let free = (0..=u8::MAX).find(is_free).with_context(|| {
        format!("no network 10.250.N.0/30 is free: each is used by a cluster in {}, or has a route", folder.display())
    })?;
    std::fs::write(&file, free.to_string())?;
    Ok(pair(free))
}

/// Returns whether this line of `ip route` is a route to the network `10.250.NUMBER.0/30`, to a part of it, or to a
/// network that contains it. Ignores routes with a prefix of at most [`LONGEST_ROUTE_PREFIX`] bits.
fn leads_to(route: &str, number: u8) -> bool {
    // A route type such as `local` may precede the destination.
    let Some((address, prefix)) = route.split_whitespace().take(2).find_map(network) else { return false };
    let ours = NETWORK | (u32::from(number) << 8);
    let common = prefix.min(30);
    prefix > LONGEST_ROUTE_PREFIX && (address ^ ours) >> (32 - common) == 0
}

fn network(word: &str) -> Option<(u32, u32)> {
    let (address, prefix) = word.split_once('/').unwrap_or((word, "32"));
    let address: Ipv4Addr = address.parse().ok()?;
    Some((address.into(), prefix.parse().ok().filter(|prefix| *prefix <= 32)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_with_route_counts_as_taken() {
        for route in [
            "10.250.7.0/30 dev pilliontest proto kernel scope link src 10.250.7.1",
            "local 10.250.7.1 dev pilliontest table local proto kernel scope host src 10.250.7.1",
            "10.250.0.0/16 via 192.0.2.7 dev tun0",
            "blackhole 10.250.7.0/24",
        ] {
            assert!(leads_to(route, 7), "{route}");
        }
        for route in [
            "default via 192.0.2.1 dev eth0",
            "10.250.6.0/24 dev tun0",
            "10.250.7.4/30 dev tun0",
            "10.0.0.0/8 dev tun0",
            "0.0.0.0/1 dev tun0",
            "192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.2",
            "",
        ] {
            assert!(!leads_to(route, 7), "{route}");
        }
    }

    #[test]
    fn clusters_keep_distinct_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let number = |name: &str| {
            let home = folder.path().join(name);
            std::fs::create_dir_all(&home).unwrap();
            of(&home).unwrap()
        };
        let one = number("one");
        assert_ne!(one, number("two"));
        assert_eq!(one, number("one"));
    }
}
