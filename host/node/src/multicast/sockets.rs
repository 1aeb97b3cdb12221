//! Sockets of one interface and one group.
//!
//! A *talker* sends from the interface's own address and gets what is sent back to it. A *member* has joined the group and
//! gets what is sent to it there. Both belong to one interface, so that it is known where a datagram came in.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use rustix::net::sockopt::{set_ip_multicast_if_with_ifindex, set_socket_recv_buffer_size_force};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use crate::multicast::interfaces::Interface;

/// Bytes the kernel keeps until they are read: 1,000 cameras answer within half a second.
const BUFFER: usize = 4 << 20;

/// A socket that speaks to the group from this interface. Has to be called within a tokio runtime.
pub(crate) fn sender_socket(interface: &Interface, group: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open(group)?;
    match group.ip() {
        IpAddr::V4(address) => {
            // By number: several interfaces may have one address.
            set_ip_multicast_if_with_ifindex(&socket, &address, &Ipv4Addr::UNSPECIFIED, interface.index)?;
            socket.set_multicast_ttl_v4(time_to_live(group.ip()))?;
        }
        IpAddr::V6(_) => {
            socket.set_multicast_if_v6(interface.index)?;
            socket.set_multicast_hops_v6(time_to_live(group.ip()))?;
        }
    }
    socket.bind(&on(interface, SocketAddr::new(interface.address, 0)).into())?;
    UdpSocket::from_std(socket.into())
}

/// A socket that hears what is sent to the group on this interface, beside others on this node that listen, too. Has to be
/// called within a tokio runtime.
pub(crate) fn member(interface: &Interface, group: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open(group)?;
    socket.set_reuse_address(true)?;
    socket.bind(&on(interface, group).into())?;
    // Else it would hear the group on every interface that any program of this node has joined it on.
    match group.ip() {
        IpAddr::V4(address) => {
            socket.set_multicast_all_v4(false)?;
            socket.join_multicast_v4_n(&address, &InterfaceIndexOrAddress::Index(interface.index))?;
        }
        IpAddr::V6(address) => {
            socket.set_multicast_all_v6(false)?;
            socket.join_multicast_v6(&address, interface.index)?;
        }
    }
    UdpSocket::from_std(socket.into())
}

/// The address on this interface: those of one link need its number.
pub(crate) fn on(interface: &Interface, address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, interface.index).into(),
    }
}

fn open(group: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(group), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if group.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A privileged process exceeds the kernel's `rmem_max`.
    if set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        socket.set_recv_buffer_size(BUFFER)?;
    }
    Ok(socket)
}

/// Groups of one link are never routed, and readers of them (RFC 6762, section 11) may check that by 255. Others stay on
/// the link, too, by 1.
fn time_to_live(group: IpAddr) -> u32 {
    let is_link_local = match group {
        IpAddr::V4(address) => matches!(address.octets(), [224, 0, 0, _]),
        IpAddr::V6(address) => matches!(address.segments(), [0xff02, ..]),
    };
    if is_link_local { 255 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_on_their_link() {
        for (group, ttl) in
            [("224.0.0.251", 255), ("239.255.255.250", 1), ("224.0.1.1", 1), ("ff02::fb", 255), ("ff05::c", 1)]
        {
            assert_eq!(time_to_live(group.parse().unwrap()), ttl, "{group}");
        }
    }
}
