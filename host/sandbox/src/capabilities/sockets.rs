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
        Ok((told(store.data_mut().tcp_socket(family))?,))
    })?;
    let mut udp = linker.instance("wasi:sockets/udp-create-socket@0.2.0")?;
    udp.func_wrap_async("create-udp-socket", |mut store, (family,): (IpAddressFamily,)| {
        Box::new(async move { Ok((told(store.data_mut().udp_socket(family).await)?,)) })
    })
}

fn told<T>(result: SocketResult<T>) -> wasmtime::Result<Result<T, ErrorCode>> {
    result.map(Ok).or_else(|error| error.downcast().map(Err))
}

impl Round {
    fn tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.room_for_a_socket()?;
        tcp_create_socket::Host::create_tcp_socket(&mut self.sockets(), family)
    }

    async fn udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        self.room_for_a_socket()?;
        udp_create_socket::Host::create_udp_socket(&mut self.sockets(), family).await
    }

    fn room_for_a_socket(&mut self) -> SocketResult<()> {
        let open = self.count::<TcpSocket>() + self.count::<UdpSocket>();
        if open < self.call.limits.connections { Ok(()) } else { Err(ErrorCode::NewSocketLimit.into()) }
    }
}
