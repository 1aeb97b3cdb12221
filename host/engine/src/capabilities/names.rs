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

/// A component that was made for any WASI 0.2 finds this.
const INTERFACE: &str = "wasi:sockets/ip-name-lookup@0.2.0";

/// The addresses of a name, as soon as they are known.
pub struct Addresses(Lookup);

enum Lookup {
    Pending(AbortOnDropJoinHandle<Resolved>),
    Known(Result<vec::IntoIter<IpAddr>, ErrorCode>),
}

/// The addresses of a name, or the reason why it has none.
type Resolved = Result<Vec<IpAddr>, ErrorCode>;

impl Addresses {
    /// Makes addresses that are known already.
    pub fn known(resolved: Resolved) -> Self {
        Self(Lookup::Known(resolved.map(Vec::into_iter)))
    }
}

#[async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {
        if let Lookup::Pending(answer) = &mut self.0 {
            *self = Self::known(answer.await);
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
        Ok((store.data_mut().resolve(&network, &name, |_| ())?,))
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

/// Returns the address that a name is, if it is one.
pub fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse().ok()
}

impl Round {
    /// Begins to resolve a name. An address is its own, and is checked when it is used. What comes of a name that is none is
    /// shown to `answered`.
    pub fn resolve(
        &mut self,
        network: &Resource<Network>,
        name: &str,
        answered: impl FnOnce(&Resolved) + Send + 'static,
    ) -> Answer<Resource<Addresses>> {
        self.table.get(network)?;
        let addresses = match (address(name), self.names.granted(name)) {
            (Some(address), _) => Addresses::known(Ok(vec![address])),
            (None, Ok(name)) => {
                let names = self.names.clone();
                Addresses(Lookup::Pending(spawn(async move {
                    let resolved = names.addresses(&name).await.map_err(ErrorCode::from);
                    answered(&resolved);
                    resolved
                })))
            }
            (None, Err(error)) => {
                self.names.refuse(&error, &self.log);
                let code = ErrorCode::from(error);
                answered(&Err(code));
                return Ok(Err(code));
            }
        };
        Ok(Ok(self.table.push(addresses)?))
    }

    /// Takes the next address of a name, if they are known.
    pub fn next_address(&mut self, stream: &Resource<Addresses>) -> Answer<Option<IpAddress>> {
        Ok(match &mut self.table.get_mut(stream)?.0 {
            Lookup::Pending(_) => Err(ErrorCode::WouldBlock),
            Lookup::Known(Ok(addresses)) => Ok(addresses.next().map(IpAddress::from)),
            Lookup::Known(Err(error)) => Err(*error),
        })
    }
}
