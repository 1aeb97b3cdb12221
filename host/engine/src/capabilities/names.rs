//! `wasi:sockets/ip-name-lookup`: written anew, since wasmtime's resolves any name or none.

use std::net::IpAddr;
use std::vec;

use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};

use crate::network::names::NameError;
use crate::round::Round;
use crate::tape::sockets::code;
use akri_cassette::call::Recorded;

/// A component that was made for any WASI 0.2 finds this.
const INTERFACE: &str = "wasi:sockets/ip-name-lookup@0.2.0";

/// The addresses of a name, as soon as they are known.
enum Addresses {
    Asked(AbortOnDropJoinHandle<Result<Vec<IpAddr>, NameError>>),
    Known(Result<vec::IntoIter<IpAddr>, ErrorCode>),
}

#[async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {
        if let Self::Asked(answer) = self {
            *self = Self::Known(answer.await.map(Vec::into_iter).map_err(ErrorCode::from));
        }
    }
}

impl From<NameError> for ErrorCode {
    fn from(error: NameError) -> Self {
        match error {
            NameError::NotGranted(_) => Self::AccessDenied,
            NameError::Invalid(_) => Self::InvalidArgument,
            NameError::TooMany | NameError::Failed(_) => Self::TemporaryResolverFailure,
            NameError::Unresolved(_) => Self::NameUnresolvable,
        }
    }
}

/// Links the interface.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    let mut interface = linker.instance(INTERFACE)?;
    interface.resource("resolve-address-stream", ResourceType::host::<Addresses>(), |mut store, stream| {
        store.data_mut().table.delete(Resource::<Addresses>::new_own(stream))?;
        Ok(())
    })?;
    interface.func_wrap("resolve-addresses", |mut store, (network, name): (Resource<Network>, String)| {
        Ok((store.data_mut().resolve(&network, &name)?,))
    })?;
    interface.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store, (stream,): (Resource<Addresses>,)| Ok((store.data_mut().next_address(&stream)?,)),
    )?;
    interface.func_wrap(
        "[method]resolve-address-stream.subscribe",
        |mut store, (stream,): (Resource<Addresses>,)| -> wasmtime::Result<(Resource<DynPollable>,)> {
            Ok((subscribe(&mut store.data_mut().table, stream)?,))
        },
    )
}

type Answer<T> = wasmtime::Result<Result<T, ErrorCode>>;

/// The address that stands for itself.
fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse().ok()
}

impl Round {
    fn resolve(&mut self, network: &Resource<Network>, name: &str) -> Answer<Resource<Addresses>> {
        self.table.get(network)?;
        if let Some(player) = self.call.tape.player().filter(|_| address(name).is_none()) {
            let answer = player.resolve_name(name)?.map_err(|error| code(&error).unwrap_or(ErrorCode::Unknown));
            return Ok(Ok(self.table.push(Addresses::Known(answer.map(Vec::into_iter)))?));
        }
        let addresses = match self.addresses(name) {
            Ok(addresses) => addresses,
            Err(error) => return Ok(Err(error.into())),
        };
        Ok(Ok(self.table.push(addresses)?))
    }

    /// An address is its own; it is checked when it is used.
    fn addresses(&self, name: &str) -> Result<Addresses, NameError> {
        if let Some(address) = address(name) {
            return Ok(Addresses::Known(Ok(vec![address].into_iter())));
        }
        let name = self.names.granted(name).inspect_err(|error| {
            self.names.refuse(error, &self.log);
            self.recorded(name)(&Err(error.clone()));
        })?;
        let (names, recorded) = (self.names.clone(), self.recorded(&name));
        Ok(Addresses::Asked(spawn(async move {
            let addresses = names.addresses(&name).await;
            recorded(&addresses);
            addresses
        })))
    }

    /// Writes an answer down, if there is a tape.
    fn recorded(&self, name: &str) -> impl Fn(&Result<Vec<IpAddr>, NameError>) + Send + use<> {
        let (recorder, name) = (self.call.tape.recorder().cloned(), name.to_owned());
        move |answer| {
            let Some(recorder) = &recorder else { return };
            let error = answer.as_ref().err().map(|error| ErrorCode::from(error.clone()).name().to_owned());
            let addresses = answer.as_ref().cloned().unwrap_or_default();
            recorder.push(Recorded::NamesResolve { at: recorder.at(), name: name.clone(), addresses, error });
        }
    }

    fn next_address(&mut self, stream: &Resource<Addresses>) -> Answer<Option<IpAddress>> {
        Ok(match self.table.get_mut(stream)? {
            Addresses::Asked(_) => Err(ErrorCode::WouldBlock),
            Addresses::Known(Ok(addresses)) => Ok(addresses.next().map(IpAddress::from)),
            Addresses::Known(Err(error)) => Err(*error),
        })
    }
}
