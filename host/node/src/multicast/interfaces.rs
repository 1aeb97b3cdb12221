//! Selects the interfaces that a group is spoken to on.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use akri_model::glob;

/// Interfaces of one group; each costs two sockets. Those of pods, of which a node may have hundreds, come last.
const INTERFACES: usize = 32;

/// An interface, and the address of it to speak from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interface {
    pub name: String,
    /// The kernel's number, valid in this network namespace.
    pub index: u32,
    pub address: IpAddr,
}

/// One address of an interface, as the kernel lists it.
#[derive(Debug, Clone)]
struct Listed {
    name: String,
    flags: InterfaceFlags,
    address: IpAddr,
}

/// The granted interfaces of this network namespace that are up, can multicast and have an address of the group's family,
/// by name.
pub(crate) fn granted(globs: &[String], group: IpAddr) -> io::Result<Vec<Interface>> {
    let listed: Vec<Listed> = getifaddrs()?.filter_map(Listed::new).collect();
    let mut chosen = choose(listed, globs, group);
    if chosen.len() > INTERFACES {
        tracing::warn!(
            "multicast to {group}: {} interfaces are granted, the first {INTERFACES} are used",
            chosen.len()
        );
        chosen.truncate(INTERFACES);
    }
    // An interface that went away meanwhile has no number any more.
    let numbered = |Listed { name, address, .. }: Listed| {
        let index = if_nametoindex(name.as_str()).ok()?;
        Some(Interface { name, index, address })
    };
    Ok(chosen.into_iter().filter_map(numbered).collect())
}

impl Listed {
    fn new(listed: InterfaceAddress) -> Option<Self> {
        let address = listed.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))?;
        // An IPv4 address may have a label, `eth0:1`.
        let name = listed.interface_name.split(':').next().unwrap_or_default().to_owned();
        Some(Self { name, flags: listed.flags, address })
    }

    /// Loopback can't multicast by its flags, though it does; it has to be named, so that `*` is the real ones.
    fn is_granted(&self, globs: &[String]) -> bool {
        let fits = if self.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            globs.contains(&self.name)
        } else {
            self.flags.contains(InterfaceFlags::IFF_MULTICAST) && glob::any(globs, &self.name)
        };
        fits && self.flags.contains(InterfaceFlags::IFF_UP)
    }
}

/// Returns the first address of each granted interface, of IPv6 the first of the group's reach. Interfaces with no address beyond their
/// link come last, such as those of pods on the node's side.
fn choose(mut listed: Vec<Listed>, globs: &[String], group: IpAddr) -> Vec<Listed> {
    let is_local = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let beyond = listed.iter().filter(|one| !is_local(one.address)).map(|one| one.name.clone());
    let beyond: BTreeSet<String> = beyond.collect();
    listed.retain(|one| one.address.is_ipv4() == group.is_ipv4() && one.is_granted(globs));
    // The sort is stable: addresses of one reach stay in the kernel's order.
    let is_far = |one: &Listed| is_link_local(one.address) != is_link_local(group);
    listed.sort_by_key(|one| (!beyond.contains(&one.name), one.name.clone(), is_far(one)));
    listed.dedup_by(|next, first| next.name == first.name);
    listed
}

/// Returns whether an address, or a group, is valid on one link only. IPv4 has addresses of that kind, too, but they
/// say nothing about groups.
fn is_link_local(address: IpAddr) -> bool {
    let link_local = |address: Ipv6Addr| {
        address.is_unicast_link_local() || matches!(address.segments(), [0xff02 | 0xff12 | 0xff32, ..])
    };
    matches!(address, IpAddr::V6(address) if link_local(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_MULTICAST);
    const LOOPBACK: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_LOOPBACK);

    fn listed(name: &str, flags: InterfaceFlags, address: &str) -> Listed {
        Listed { name: name.to_owned(), flags, address: address.parse().unwrap() }
    }

    fn chosen(globs: &[&str], group: &str) -> Vec<String> {
        let globs: Vec<String> = globs.iter().map(ToString::to_string).collect();
        let node = vec![
            listed("lo", LOOPBACK, "127.0.0.1"),
            listed("wan0", ETHERNET, "198.51.100.7"),
            listed("eth0", ETHERNET, "10.0.0.7"),
            listed("eth0", ETHERNET, "10.9.9.9"),
            listed("eth1", InterfaceFlags::IFF_MULTICAST, "10.1.0.7"),
            listed("tun0", InterfaceFlags::IFF_UP, "10.2.0.7"),
            listed("lo", LOOPBACK, "::1"),
            listed("eth0", ETHERNET, "2001:db8::7"),
            listed("eth0", ETHERNET, "fe80::7"),
            listed("cali1", ETHERNET, "fe80::8"),
        ];
        choose(node, &globs, group.parse().unwrap()).iter().map(|l| format!("{} {}", l.name, l.address)).collect()
    }

    #[test] // threat 44
    fn interfaces_are_granted_by_name_and_loopback_by_its_own_alone() {
        for (globs, group, expected) in [
            (&["*"][..], "239.255.255.250", &["eth0 10.0.0.7", "wan0 198.51.100.7"][..]),
            (&["eth*"], "239.255.255.250", &["eth0 10.0.0.7"]),
            (&["lo"], "239.255.255.250", &["lo 127.0.0.1"]),
            (&["l*", "l?"], "239.255.255.250", &[]),
            (&["*", "lo"], "239.255.255.250", &["eth0 10.0.0.7", "lo 127.0.0.1", "wan0 198.51.100.7"]),
            (&["eth1", "tun0"], "239.255.255.250", &[]),
            (&[], "239.255.255.250", &[]),
            (&["*"], "ff02::fb", &["eth0 fe80::7", "cali1 fe80::8"]),
            (&["*"], "ff05::c", &["eth0 2001:db8::7", "cali1 fe80::8"]),
            (&["lo"], "ff02::fb", &["lo ::1"]),
        ] {
            assert_eq!(chosen(globs, group), expected, "{globs:?} {group}");
        }
    }

    #[test]
    fn loopback_of_this_namespace_is_found() {
        let globs = ["lo".to_owned()];
        let found = granted(&globs, "239.255.255.250".parse().unwrap()).unwrap();
        assert_eq!(found, [Interface { name: "lo".to_owned(), index: 1, address: "127.0.0.1".parse().unwrap() }]);
    }
}
