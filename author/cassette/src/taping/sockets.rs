//! `wasi:sockets` with a tape: wasmtime's sockets, whose connections and datagrams are recorded or come from a cassette.

use std::convert::identity;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use akri_engine::linking::{Round, guest_result};
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpSocketAddress, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::{HostTcpSocket, ShutdownType};
use wasmtime_wasi::p2::bindings::sockets::udp::{
    HostIncomingDatagramStream, HostOutgoingDatagramStream, HostUdpSocket, IncomingDatagram, IncomingDatagramStream,
    OutgoingDatagram, OutgoingDatagramStream,
};
use wasmtime_wasi::p2::pipe::{ClosedInputStream, ClosedOutputStream};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, SocketError, SocketResult, TcpSocket, UdpSocket, subscribe,
};
use wasmtime_wasi::sockets::WasiSocketsView;

use super::TapedRound;
use super::clocks::PlayedInstant;
use super::streams::{PlayedDatagrams, PlayedInput, PlayedOutput, Watched};
use crate::call::Recorded;
use crate::call_queue::QueueKey;
use crate::errors::socket_error;
use crate::payload::Payload;
use crate::player::Player;
use crate::recorder::Recorder;

/// As wasmtime links them.
const TCP: &str = "wasi:sockets/tcp@0.2.12";
const UDP: &str = "wasi:sockets/udp@0.2.12";
/// Datagrams a guest may receive at once.
const DATAGRAMS: usize = 16;
/// The port of every played socket.
const PORT: u16 = 49152;

/// A connection that was begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    number: u32,
    to: SocketAddr,
    /// The place of its call in the recording, if it is recorded.
    index: usize,
}

/// Replaces what connects, sends and receives.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    replace! {
        linker, TCP, guest_result,
        "[method]tcp-socket.start-connect" => start_connect(socket, network, to)
        "[method]tcp-socket.finish-connect" => finish_connect(socket)
        "[method]tcp-socket.local-address" => local_address(socket)
        "[method]tcp-socket.remote-address" => remote_address(socket)
        "[method]tcp-socket.shutdown" => shutdown(socket, how)
    }
    replace!(linker, TCP, identity, "[method]tcp-socket.subscribe" => subscribe_tcp(socket));
    replace!(linker, UDP, identity, "[method]incoming-datagram-stream.subscribe" => subscribe_udp(stream));
    replace_async!(linker, UDP, guest_result, "[method]udp-socket.stream" => datagrams(socket, to));
    replace! {
        linker, UDP, guest_result,
        "[method]incoming-datagram-stream.receive" => receive_datagrams(stream, max)
        "[method]outgoing-datagram-stream.send" => send_datagrams(stream, datagrams)
    }
    Ok(())
}

impl TapedRound<'_> {
    fn start_connect(
        &mut self,
        socket: Resource<TcpSocket>,
        network: Resource<Network>,
        to: IpSocketAddress,
    ) -> SocketResult<()> {
        let (handle, address) = (socket.rep(), SocketAddr::from(to));
        if let Some(player) = self.player() {
            let number = player.start_connect(address).map_err(SocketError::trap)?;
            self.handles()?.tcp.insert(handle, Connection { number, to: address, index: 0 });
            return Ok(());
        }
        let begun = HostTcpSocket::start_connect(&mut self.0.sockets(), socket, network, to);
        let recorder = self.recorder();
        let number = recorder.number();
        let call = Recorded::TcpConnect { socket: number, to: address, error: None, silent: true };
        let connection = Connection { number, to: address, index: recorder.begin(call) };
        begun.map_err(|error| refused(&recorder, connection, error))?;
        self.handles()?.tcp.insert(handle, connection);
        Ok(())
    }

    fn finish_connect(
        &mut self,
        socket: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<DynInputStream>, Resource<DynOutputStream>)> {
        let known = self.handles()?.tcp.get(&socket.rep()).copied();
        if let (Some(player), Some(connection)) = (self.player(), known) {
            return self.finish_played(&player, &socket, connection.number);
        }
        let finished = HostTcpSocket::finish_connect(&mut self.0.sockets(), socket);
        let (recorder, Some(connection)) = (self.recorder(), known) else { return finished };
        let streams = finished.map_err(|error| refused(&recorder, connection, error))?;
        connected(&recorder, connection, None);
        self.watch(&streams, &recorder, connection.number)?;
        Ok(streams)
    }

    fn finish_played(
        &mut self,
        player: &Arc<Player>,
        socket: &Resource<TcpSocket>,
        number: u32,
    ) -> SocketResult<(Resource<DynInputStream>, Resource<DynOutputStream>)> {
        match player.finish_connect(number) {
            None => return Err(ErrorCode::WouldBlock.into()),
            Some(Err(error)) => return Err(socket_error(&error).into()),
            Some(Ok(())) => {}
        }
        let input: DynInputStream = Box::new(PlayedInput { player: player.clone(), socket: number, is_closed: false });
        let output: DynOutputStream = Box::new(PlayedOutput { player: player.clone(), socket: number });
        Ok((self.0.table().push_child(input, socket)?, self.0.table().push_child(output, socket)?))
    }

    /// Has streams write down what goes through them.
    fn watch(
        &mut self,
        streams: &(Resource<DynInputStream>, Resource<DynOutputStream>),
        recorder: &Arc<Recorder>,
        socket: u32,
    ) -> SocketResult<()> {
        let input = self.0.table().get_mut(&streams.0)?;
        let inner = mem::replace(input, Box::new(ClosedInputStream));
        *input = Box::new(Watched { inner, recorder: recorder.clone(), socket, is_closed: false });
        let output = self.0.table().get_mut(&streams.1)?;
        let inner = mem::replace(output, Box::new(ClosedOutputStream));
        *output = Box::new(Watched { inner, recorder: recorder.clone(), socket, is_closed: false });
        Ok(())
    }

    fn subscribe_tcp(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<Resource<DynPollable>> {
        let Some(player) = self.player() else {
            return HostTcpSocket::subscribe(&mut self.0.sockets(), socket);
        };
        let due = self.handles()?.tcp.get(&socket.rep()).map_or(0, |connection| player.connect_due(connection.number));
        let instant = self.0.table().push(PlayedInstant { player, due })?;
        subscribe(self.0.table(), instant)
    }

    fn local_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match self.player() {
            Some(_) => Ok(local(self.played_peer(&socket)?).into()),
            None => HostTcpSocket::local_address(&mut self.0.sockets(), socket),
        }
    }

    fn remote_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match self.player() {
            Some(_) => Ok(self.played_peer(&socket)?.into()),
            None => HostTcpSocket::remote_address(&mut self.0.sockets(), socket),
        }
    }

    fn played_peer(&mut self, socket: &Resource<TcpSocket>) -> SocketResult<SocketAddr> {
        let connection = self.handles()?.tcp.get(&socket.rep()).copied();
        connection.map(|connection| connection.to).ok_or(ErrorCode::InvalidState.into())
    }

    fn shutdown(&mut self, socket: Resource<TcpSocket>, how: ShutdownType) -> SocketResult<()> {
        if self.player().is_some() {
            return Ok(());
        }
        HostTcpSocket::shutdown(&mut self.0.sockets(), socket, how)
    }

    async fn datagrams(
        &mut self,
        socket: Resource<UdpSocket>,
        to: Option<IpSocketAddress>,
    ) -> SocketResult<(Resource<IncomingDatagramStream>, Resource<OutgoingDatagramStream>)> {
        let handle = socket.rep();
        let to = to.filter(|_| self.player().is_none());
        let streams = HostUdpSocket::stream(&mut self.0.sockets(), socket, to).await?;
        let (player, recorder) = (self.player(), self.recorder());
        let new = || player.map_or_else(|| recorder.number(), |player| player.open_udp());
        let handles = self.handles()?;
        let number = *handles.udp.entry(handle).or_insert_with(new);
        handles.numbers.extend([(streams.0.rep(), number), (streams.1.rep(), number)]);
        Ok(streams)
    }

    fn receive_datagrams(
        &mut self,
        stream: Resource<IncomingDatagramStream>,
        max: u64,
    ) -> SocketResult<Vec<IncomingDatagram>> {
        let socket = self.number(stream.rep())?;
        if let Some(player) = self.player() {
            let max = usize::try_from(max).unwrap_or(DATAGRAMS).min(DATAGRAMS);
            let due = std::iter::from_fn(|| match player.receive(&QueueKey::Udp(socket), 1)? {
                Recorded::UdpReceive { from, bytes, .. } => {
                    Some(IncomingDatagram { data: bytes.0, remote_address: from.into() })
                }
                _ => None,
            });
            return Ok(due.take(max).collect());
        }
        let received = HostIncomingDatagramStream::receive(&mut self.0.sockets(), stream, max)?;
        for IncomingDatagram { data, remote_address } in &received {
            let (from, bytes) = (SocketAddr::from(*remote_address), Payload::from(data.as_slice()));
            self.recorder().push(Recorded::UdpReceive { socket, from, bytes });
        }
        Ok(received)
    }

    fn subscribe_udp(&mut self, stream: Resource<IncomingDatagramStream>) -> wasmtime::Result<Resource<DynPollable>> {
        let Some(player) = self.player() else {
            return HostIncomingDatagramStream::subscribe(&mut self.0.sockets(), stream);
        };
        let socket = self.number(stream.rep())?;
        let datagrams = self.0.table().push(PlayedDatagrams { player, socket })?;
        subscribe(self.0.table(), datagrams)
    }

    fn send_datagrams(
        &mut self,
        stream: Resource<OutgoingDatagramStream>,
        datagrams: Vec<OutgoingDatagram>,
    ) -> SocketResult<u64> {
        let socket = self.number(stream.rep())?;
        if let Some(player) = self.player() {
            return play_datagrams(&player, socket, &datagrams);
        }
        let copies = datagrams.clone();
        let (count, error) = match HostOutgoingDatagramStream::send(&mut self.0.sockets(), stream, datagrams) {
            Ok(count) => (count, None),
            Err(error) => (1, Some(error.downcast().map_err(SocketError::trap)?)),
        };
        for OutgoingDatagram { data, remote_address } in copies.iter().take(usize::try_from(count).unwrap_or(0)) {
            self.recorder().push(Recorded::UdpSend {
                socket,
                to: remote_address.map(SocketAddr::from),
                bytes: Payload::from(data.as_slice()),
                error: error.map(|error| error.name().to_owned()),
            });
        }
        error.map_or(Ok(count), |error| Err(error.into()))
    }
}

/// Sends as the recorded socket did. An error ends it, unless something was sent before.
fn play_datagrams(player: &Player, socket: u32, datagrams: &[OutgoingDatagram]) -> SocketResult<u64> {
    let mut count = 0;
    for OutgoingDatagram { data, remote_address } in datagrams {
        let sent = player.send_udp(socket, remote_address.map(SocketAddr::from), data);
        match sent.map_err(SocketError::trap)? {
            None => count += 1,
            Some(error) if count == 0 => return Err(socket_error(&error).into()),
            Some(_) => break,
        }
    }
    Ok(count)
}

/// The address of a played socket.
fn local(to: SocketAddr) -> SocketAddr {
    if to.is_ipv4() { ([127, 0, 0, 1], PORT).into() } else { ([0, 0, 0, 0, 0, 0, 0, 1], PORT).into() }
}

/// Records the end of a connection attempt.
fn connected(recorder: &Recorder, connection: Connection, error: Option<ErrorCode>) {
    let Connection { number, to, index } = connection;
    let error = error.map(|error| error.name().to_owned());
    let call = Recorded::TcpConnect { socket: number, to, error, silent: false };
    recorder.finish(index, call);
}

/// Records the error of a connection attempt, unless the attempt goes on.
fn refused(recorder: &Recorder, connection: Connection, error: SocketError) -> SocketError {
    let code = match error.downcast() {
        Ok(code) => code,
        Err(trap) => return SocketError::trap(trap),
    };
    if code != ErrorCode::WouldBlock {
        connected(recorder, connection, Some(code));
    }
    code.into()
}
