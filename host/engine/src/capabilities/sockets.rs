//! `wasi:sockets`: how many a guest may have. Where they may go is in [`crate::network::sockets`].

use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{SocketResult, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::WasiSocketsView;

use crate::cassette::call::Recorded;
use crate::cassette::sockets::code;
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

pub(crate) fn guest_result<T>(result: SocketResult<T>) -> wasmtime::Result<Result<T, ErrorCode>> {
    result.map(Ok).or_else(|error| error.downcast().map(Err))
}

impl Round {
    fn tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.may_make_a_socket(self.sockets.tcp, "tcp")?;
        tcp_create_socket::Host::create_tcp_socket(&mut self.sockets(), family)
    }

    async fn udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        self.may_make_a_socket(self.sockets.udp, "udp")?;
        udp_create_socket::Host::create_udp_socket(&mut self.sockets(), family).await
    }

    fn may_make_a_socket(&mut self, granted: bool, grant: &'static str) -> SocketResult<()> {
        let open = self.count::<TcpSocket>() + self.count::<UdpSocket>();
        if let Some(player) = self.call.tape.player() {
            let refused = player.refused_socket(grant == "tcp", open);
            return refused.map_or(Ok(()), |name| Err(code(&name).unwrap_or(ErrorCode::AccessDenied).into()));
        }
        self.is_socket_granted(granted, grant, open).map_err(|error| {
            if let Some(recorder) = self.call.tape.recorder() {
                let (at, error) = (recorder.at(), error.name().to_owned());
                recorder.push(match grant {
                    "tcp" => Recorded::TcpSocketRefused { at, open, error },
                    _ => Recorded::UdpSocketRefused { at, open, error },
                });
            }
            error.into()
        })
    }

    fn is_socket_granted(&self, granted: bool, grant: &'static str, open: usize) -> Result<(), ErrorCode> {
        if !granted {
            self.log.not_granted(grant, &format_args!("a {grant} socket"));
            return Err(ErrorCode::AccessDenied);
        }
        let most = self.call.limits.connections;
        if open < most {
            return Ok(());
        }
        self.log.refused(&format_args!("a socket beside {most} open ones; limits.connections allows more"));
        Err(ErrorCode::NewSocketLimit)
    }
}
