//! `wasi:sockets`: how many a guest may have. Where they may go is in [`crate::network::sockets`].

use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{SocketResult, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::WasiSocketsView;

use crate::round::Round;

/// Links the two interfaces that make sockets; components that were made for any WASI 0.2 find them.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    let mut tcp = linker.instance("wasi:sockets/tcp-create-socket@0.2.0")?;
    tcp.func_wrap("create-tcp-socket", |mut store, (family,): (IpAddressFamily,)| {
        Ok((guest_result(store.data_mut().tcp_socket(family))?,))
    })?;
    let mut udp = linker.instance("wasi:sockets/udp-create-socket@0.2.0")?;
    udp.func_wrap_async("create-udp-socket", |mut store, (family,): (IpAddressFamily,)| {
        Box::new(async move { Ok((guest_result(store.data_mut().udp_socket(family).await)?,)) })
    })
}

/// Returns an error of sockets to the guest; others end the round.
pub fn guest_result<T>(result: SocketResult<T>) -> wasmtime::Result<Result<T, ErrorCode>> {
    result.map(Ok).or_else(|error| error.downcast().map(Err))
}

impl Round {
    /// Makes a TCP socket, if that is granted.
    pub fn tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.may_make_a_socket(self.has_tcp, "tcp")?;
        tcp_create_socket::Host::create_tcp_socket(&mut self.sockets(), family)
    }

    /// Makes a UDP socket, if that is granted.
    pub async fn udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        self.may_make_a_socket(self.has_udp, "udp")?;
        udp_create_socket::Host::create_udp_socket(&mut self.sockets(), family).await
    }

    fn may_make_a_socket(&mut self, granted: bool, grant: &'static str) -> SocketResult<()> {
        if !granted {
            self.log.not_granted(grant, &format_args!("a {grant} socket"));
            return Err(ErrorCode::AccessDenied.into());
        }
        let most = self.call.limits.connections;
        if self.open_sockets() < most {
            return Ok(());
        }
        self.log.refused(&format_args!("a socket beside {most} open ones; limits.connections allows more"));
        Err(ErrorCode::NewSocketLimit.into())
    }

    /// Returns the number of sockets that the guest holds.
    pub fn open_sockets(&mut self) -> usize {
        self.count::<TcpSocket>() + self.count::<UdpSocket>()
    }
}
