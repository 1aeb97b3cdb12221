//! The netlink socket on which the kernel and udevd send uevents (`netlink(7)`, NETLINK_KOBJECT_UEVENT).

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

/// Receive buffer for unread messages, in bytes of kernel memory: several thousand messages. Used only while they wait.
const QUEUE: usize = 16 << 20;

/// Buffer for one message. The kernel's have 2 KiB at most; udevd's grow with the properties its rules set.
const MESSAGE: usize = 64 << 10;

/// Maximum number of messages read before other tasks run.
pub(super) const BATCH: usize = 512;

/// The multicast group of the kernel.
const KERNEL: u32 = 1;
/// The multicast group of udevd.
const UDEVD: u32 = 2;

/// The sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Kernel,
    Udevd,
}

impl Sender {
    /// Returns the sender of a message by its source address.
    ///
    /// Only the kernel has port 0, and sending on this protocol requires CAP_NET_ADMIN in this network namespace. A
    /// process with that capability can create real devices anyway, and a message only causes a check.
    fn of(address: SocketAddrNetlink) -> Option<Self> {
        match (address.groups(), address.pid()) {
            (KERNEL, 0) => Some(Self::Kernel),
            (UDEVD, port) if port != 0 => Some(Self::Udevd),
            _ => None,
        }
    }
}

/// The result of reading from the socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    Message(Sender, &'a [u8]),
    /// Messages were lost.
    Lost,
}

#[derive(Debug)]
pub(super) struct Socket {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Socket {
    /// Joins both groups in this network namespace. The kernel's group is received in every namespace, udevd's only in
    /// its own.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(KOBJECT_UEVENT))?;
        // A privileged agent may exceed the system's limit.
        set_socket_recv_buffer_size_force(&fd, QUEUE).or_else(|_| set_socket_recv_buffer_size(&fd, QUEUE))?;
        net::bind(&fd, &SocketAddrNetlink::new(0, KERNEL | UDEVD))?;
        Self::of(fd)
    }

    pub(super) fn of(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: watched(fd)?, buffer: vec![0; MESSAGE] })
    }

    /// Waits for messages and passes at most one batch of them to `take`.
    pub(super) async fn receive(&mut self, mut take: impl FnMut(Received<'_>)) -> io::Result<()> {
        let mut ready = self.fd.readable().await?;
        for _ in 0..BATCH {
            match ready.try_io(|fd| receive(fd.get_ref(), &mut self.buffer)) {
                Ok(received) => received?.into_iter().for_each(&mut take),
                Err(_nothing_left) => break,
            }
        }
        Ok(())
    }
}

#[expect(deprecated, reason = "its successor is unsafe for the sake of types that are no faithful owners; this one is")]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

/// Reads one message; `None` if it is from another sender.
fn receive<'b>(fd: &OwnedFd, buffer: &'b mut [u8]) -> io::Result<Option<Received<'b>>> {
    let mut space = [IoSliceMut::new(buffer)];
    // Credentials are not requested: the kernel's have process id 0, which rustix's type can't represent.
    let message = match net::recvmsg(fd, &mut space, &mut RecvAncillaryBuffer::default(), RecvFlags::empty()) {
        Err(Errno::NOBUFS) => return Ok(Some(Received::Lost)),
        received => received?,
    };
    let address = message.address.and_then(|address| SocketAddrNetlink::try_from(address).ok());
    let Some(sender) = address.and_then(Sender::of) else { return Ok(None) };
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Some(Received::Lost));
    }
    Ok(buffer.get(..message.bytes).map(|message| Received::Message(sender, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernel_and_udevd_are_trusted() {
        for (groups, port, sender) in [
            (1, 0, Some(Sender::Kernel)),
            (2, 4711, Some(Sender::Udevd)),
            (1, 4711, None),
            (2, 0, None),
            (0, 0, None),
            (0, 4711, None),
            (3, 0, None),
        ] {
            assert_eq!(Sender::of(SocketAddrNetlink::new(port, groups)), sender, "group {groups}, port {port}");
        }
    }

    #[tokio::test]
    async fn kernel_allows_everyone_to_listen() {
        let socket = Socket::open().unwrap();
        let room = rustix::net::sockopt::socket_recv_buffer_size(socket.fd.get_ref()).unwrap();
        assert!(room >= 128 << 10, "{room}");
    }
}
