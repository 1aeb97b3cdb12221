//! `udev`, `secrets`, names, and the making of sockets, with a tape.

use std::convert::identity;

use akri_engine::linking::{AccessError, Addresses, Held, Pages, Round, address, guest_result, secrets};
use akri_node::sysfs::Query;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::ResourceTableError;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{DynPollable, SocketError, SocketResult, TcpSocket, UdpSocket, subscribe};
use wasmtime_wasi::sockets::WasiSocketsView;

use super::TapedRound;
use super::clocks::PlayedInstant;
use crate::call::{Recorded, Refused};
use crate::clock::Nanos;
use crate::errors::socket_error;

type Answer<T> = wasmtime::Result<Result<T, AccessError>>;

/// Replaces the functions, by the names with which the engine links them.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    replace_async!(linker, "akri:discovery/udev@0.1.0", identity, "[method]query.run" => run_query(query));
    replace!(linker, "akri:discovery/secrets@0.1.0", identity, "get" => get_secret(name));
    replace! {
        linker, "wasi:sockets/ip-name-lookup@0.2.0", identity,
        "resolve-addresses" => resolve(network, name)
        "[method]resolve-address-stream.resolve-next-address" => next_address(stream)
        "[method]resolve-address-stream.subscribe" => subscribe_addresses(stream)
    }
    replace!(linker, "wasi:sockets/tcp-create-socket@0.2.0", guest_result, "create-tcp-socket" => create_tcp(family));
    replace_async!(linker, "wasi:sockets/udp-create-socket@0.2.0", guest_result, "create-udp-socket" => create_udp(family));
    Ok(())
}

impl TapedRound<'_> {
    async fn run_query(&mut self, query: Resource<Query>) -> Answer<Resource<Pages>> {
        let query = self.0.table().get(&query)?.clone();
        let written = serde_json::to_value(&query)?;
        let answer = match self.player() {
            Some(player) => player.run_query(written).await?.map_err(AccessError::from),
            None => {
                let answer = self.0.read_sysfs(query).await;
                let (snapshot, error) = (answer.as_ref().ok().cloned(), answer.as_ref().err().map(Refused::from));
                self.recorder().push(Recorded::UdevRun { query: Some(written), snapshot, error });
                answer
            }
        };
        match answer {
            Ok(snapshot) => Ok(Ok(self.0.hold_snapshot(snapshot)?)),
            Err(error) => Ok(Err(error)),
        }
    }

    fn get_secret(&mut self, name: String) -> Answer<Option<Resource<Held>>> {
        if let Some(player) = self.player() {
            return match player.refused_secret(&name) {
                Some(error) => Ok(Err(error.into())),
                None => Ok(Ok(self.0.hold_secret(name)?)),
            };
        }
        let answer = secrets::Host::get(self.0, name.clone())?;
        if let Err(error) = &answer {
            self.recorder().push(Recorded::SecretRefused { name, error: error.into() });
        }
        Ok(answer)
    }

    fn resolve(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> wasmtime::Result<Result<Resource<Addresses>, ErrorCode>> {
        let known = address(&name);
        if let Some(player) = self.player() {
            let known = known.map(|address| (0, Ok(vec![address])));
            let (due, resolved) = known.map_or_else(|| player.resolve_name(&name), Ok)?;
            let resolved = Addresses::known(resolved.map_err(|error| socket_error(&error)));
            let addresses = self.0.table().push(resolved)?;
            self.handles()?.names.insert(addresses.rep(), due);
            return Ok(Ok(addresses));
        }
        let (recorder, name_of) = (self.recorder(), name.clone());
        let call =
            move |addresses, error, silent| Recorded::NamesResolve { name: name_of.clone(), addresses, error, silent };
        let index = known.is_none().then(|| recorder.begin(call(Vec::new(), None, true)));
        self.0.resolve(&network, &name, move |resolved| {
            let error = resolved.as_ref().err().map(|error| error.name().to_owned());
            let addresses = resolved.as_ref().cloned().unwrap_or_default();
            if let Some(index) = index {
                recorder.finish(index, call(addresses, error, false));
            }
        })
    }

    fn next_address(&mut self, stream: Resource<Addresses>) -> wasmtime::Result<Result<Option<IpAddress>, ErrorCode>> {
        match self.player() {
            Some(player) if player.clock.now() < self.due(&stream)? => Ok(Err(ErrorCode::WouldBlock)),
            _ => self.0.next_address(&stream),
        }
    }

    /// Returns when the addresses of a name are due in a replay.
    fn due(&mut self, stream: &Resource<Addresses>) -> Result<Nanos, ResourceTableError> {
        Ok(self.handles()?.names.get(&stream.rep()).copied().unwrap_or_default())
    }

    fn subscribe_addresses(&mut self, stream: Resource<Addresses>) -> wasmtime::Result<Resource<DynPollable>> {
        let Some(player) = self.player() else { return subscribe(self.0.table(), stream) };
        let due = self.due(&stream)?;
        let instant = self.0.table().push(PlayedInstant { player, due })?;
        subscribe(self.0.table(), instant)
    }

    fn create_tcp(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        let open = self.0.open_sockets();
        if let Some(player) = self.player() {
            player.refused_socket(true, open).map_or(Ok(()), |error| Err(socket_error(&error)))?;
            return tcp_create_socket::Host::create_tcp_socket(&mut self.0.sockets(), family);
        }
        let made = self.0.tcp_socket(family);
        self.record_refusal(made, |error| Recorded::TcpSocketRefused { open, error })
    }

    async fn create_udp(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        let open = self.0.open_sockets();
        if let Some(player) = self.player() {
            player.refused_socket(false, open).map_or(Ok(()), |error| Err(socket_error(&error)))?;
            return udp_create_socket::Host::create_udp_socket(&mut self.0.sockets(), family).await;
        }
        let made = self.0.udp_socket(family).await;
        self.record_refusal(made, |error| Recorded::UdpSocketRefused { open, error })
    }

    fn record_refusal<T>(&self, made: SocketResult<T>, call: impl Fn(String) -> Recorded) -> SocketResult<T> {
        made.or_else(|error| {
            let error: ErrorCode = error.downcast().map_err(SocketError::trap)?;
            self.recorder().push(call(error.name().to_owned()));
            Err(error.into())
        })
    }
}
