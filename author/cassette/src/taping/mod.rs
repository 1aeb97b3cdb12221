//! Record and replay in the engine: the calls of a round that reach outside are recorded, or answered, where the engine links them.
//!
//! These are `udev`, `multicast`, refused `secrets`, `wasi:sockets`, `wasi:http`, clocks and random numbers. What the host
//! itself knows (properties, cache, notes, kept origins, the log) is no call of a cassette: a replay has the real one. Sockets
//! are wasmtime's, with a few functions of the linker replaced; agents do not have those.

/// Replaces functions of an interface by methods of [`TapedRound`], whose results are converted for the guest.
macro_rules! replace {
    ($linker:ident, $interface:expr, $convert:ident, $($function:literal => $method:ident($($argument:ident),*))*) => {{
        let mut interface = $linker.instance($interface)?;
        $(interface.func_wrap($function, |mut store, ($($argument,)*)| {
            Ok(($convert(TapedRound(store.data_mut()).$method($($argument),*))?,))
        })?;)*
    }};
}

/// Replaces a function by a method that waits.
macro_rules! replace_async {
    ($linker:ident, $interface:expr, $convert:ident, $function:literal => $method:ident($($argument:ident),*)) => {
        $linker.instance($interface)?.func_wrap_async($function, |mut store, ($($argument,)*)| {
            Box::new(async move { Ok(($convert(TapedRound(store.data_mut()).$method($($argument),*).await)?,)) })
        })?
    };
}

mod capabilities;
mod clocks;
mod http;
mod multicast;
mod sockets;
mod streams;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::Request;
use akri_engine::linking::{AccessError, Answering, Round, SendRequest};
use akri_engine::{HostError, LocalHost, LocalHostConfig, Tape};
use serde_json::Value;
use sha2::{Digest, Sha256};
use wasmtime::component::Linker;
use wasmtime_wasi::random::Deterministic;
use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi::{ResourceTableError, WasiCtxBuilder};
use wasmtime_wasi_http::WasiBody;

use self::sockets::Connection;
use crate::call::Refused;
use crate::clock::Nanos;
use crate::player::Player;
use crate::recorder::Recorder;

/// Blocks of random numbers, after which they begin again.
const RANDOM: u64 = 2048;

/// Sets up a host for calls whose tape is a [`Recorder`] or a [`Player`]. It runs components in this process.
///
/// # Errors
/// If the engine can't be set up, or the directory for compiled components can't be used.
pub fn taping_host(config: LocalHostConfig) -> Result<LocalHost, HostError> {
    LocalHost::taping(config, link)
}

/// Replaces the functions that are recorded or played.
fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    capabilities::link(linker)?;
    multicast::link(linker)?;
    sockets::link(linker)?;
    clocks::link(linker)
}

/// A round of a host for tapes. It may have a recorder or a player; one that has neither, as that in which a component describes
/// itself, is recorded for nobody.
struct TapedRound<'r>(&'r mut Round);

/// The numbers of sockets and conversations in the cassette, by the guest's handles. They are kept in the round's table.
#[derive(Debug, Default)]
struct Handles {
    tcp: HashMap<u32, Connection>,
    udp: HashMap<u32, u32>,
    /// The times at which addresses of names are due.
    names: HashMap<u32, Nanos>,
    /// The numbers of streams of datagrams, and of conversations.
    numbers: HashMap<u32, u32>,
}

impl TapedRound<'_> {
    fn recorder(&self) -> Arc<Recorder> {
        self.0.tape().unwrap_or_else(|| Arc::new(Recorder::new(0, None)))
    }

    fn player(&self) -> Option<Arc<Player>> {
        self.0.tape()
    }

    fn handles(&mut self) -> Result<&mut Handles, ResourceTableError> {
        let table = self.0.table();
        if !table.iter_mut().any(|resource| resource.is::<Handles>()) {
            table.push(Handles::default())?;
        }
        table.iter_mut().find_map(|resource| resource.downcast_mut()).ok_or(ResourceTableError::NotPresent)
    }

    /// Returns the number of a stream of datagrams, or of a conversation; none has 0.
    fn number(&mut self, handle: u32) -> Result<u32, ResourceTableError> {
        Ok(self.handles()?.numbers.get(&handle).copied().unwrap_or_default())
    }
}

impl Tape for Recorder {
    fn trace(&self, call: &str, arguments: &dyn Fn() -> Value) {
        self.trace_by_host(call, arguments);
    }

    fn configure(self: Arc<Self>, wasi: &mut WasiCtxBuilder) {
        set_random(wasi, self.seed);
    }

    fn send_request(self: Arc<Self>, request: Request<WasiBody>, send: SendRequest) -> Answering {
        Box::pin(http::record(self, request, send))
    }
}

impl Tape for Player {
    fn time_left(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.clock.left()))
    }

    fn set_computing(&self, is_computing: bool) {
        self.clock.set_computing(is_computing);
    }

    fn configure(self: Arc<Self>, wasi: &mut WasiCtxBuilder) {
        clocks::set(&self, wasi);
        // Sockets are made, and do nothing. They bind what a host lets them.
        wasi.allow_tcp(true).allow_udp(true).socket_addr_check(|address, usage| {
            let binds = matches!(usage, SocketAddrUse::TcpBind | SocketAddrUse::UdpBind);
            Box::pin(std::future::ready(binds && address.ip().is_unspecified() && address.port() == 0))
        });
        set_random(wasi, self.seed);
    }

    fn send_request(self: Arc<Self>, request: Request<WasiBody>, _: SendRequest) -> Answering {
        Box::pin(http::play(self, request))
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.clock.stuck.notified().await })
    }
}

fn set_random(wasi: &mut WasiCtxBuilder, seed: u64) {
    wasi.secure_random(random(seed, 0)).insecure_random(random(seed, 1)).insecure_random_seed(seed.into());
}

/// Returns random numbers that follow from the seed, whatever library makes others.
fn random(seed: u64, kind: u8) -> Deterministic {
    let block = |number: u64| {
        Sha256::new()
            .chain_update(seed.to_be_bytes())
            .chain_update([kind])
            .chain_update(number.to_be_bytes())
            .finalize()
    };
    Deterministic::new((0..RANDOM).flat_map(block).collect())
}

impl From<&AccessError> for Refused {
    fn from(error: &AccessError) -> Self {
        match error.clone() {
            AccessError::NotGranted(not_granted) => Self::NotGranted { not_granted },
            AccessError::Limit(limit) => Self::Limit { limit },
            AccessError::Unavailable(unavailable) => Self::Unavailable { unavailable },
        }
    }
}

impl From<Refused> for AccessError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotGranted { not_granted } => Self::NotGranted(not_granted),
            Refused::Limit { limit } => Self::Limit(limit),
            Refused::Unavailable { unavailable } => Self::Unavailable(unavailable),
        }
    }
}
