//! Record and replay: what the calls of a round bring from outside, in a file, and rounds that are played from it.
//!
//! The boundary is where the world comes in: `udev`, `multicast`, refused `secrets`, `wasi:sockets`, `wasi:http`, clocks and
//! random numbers. What the host itself knows (properties, cache, notes, kept origins, the log) is no call of a cassette: a
//! replay has the real one. Sockets are wasmtime's, with a few functions of the linker replaced; only a host that is
//! made for it has those.

pub(crate) mod call;
mod check;
mod clock;
mod display;
mod document;
mod form;
mod http;
mod payload;
mod player;
mod recorder;
mod round;
mod series;
pub(crate) mod sockets;
mod streams;
mod time;

use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasmtime::component::Linker;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::random::Deterministic;
use wasmtime_wasi::sockets::SocketAddrUse;

use crate::round::Round;

pub use self::document::{CASSETTE, Cassette, CassetteError, Head, KeepError};
pub(crate) use self::http::{play, record};
pub use self::payload::Payload;
pub use self::player::{Mismatch, Place, Player};
pub use self::recorder::{Recorder, TraceLine};
pub use self::round::{Arguments, Outcome, RecordedRound};

/// A linker whose sockets and clocks go along with a tape.
pub(crate) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    sockets::link(linker)?;
    time::link(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Blocks of random numbers, after which they begin again.
const RANDOM: u64 = 2048;

/// A recorder or a player that goes along with a round.
#[derive(Debug, Clone, Default)]
pub enum Tape {
    /// Nothing.
    #[default]
    None,
    /// Its calls are written down.
    Record(Arc<Recorder>),
    /// Its calls are answered.
    Play(Arc<Player>),
}

impl Tape {
    /// The recorder, if it is one.
    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        if let Self::Record(recorder) = self { Some(recorder) } else { None }
    }

    /// The player, if it is one.
    pub(crate) fn player(&self) -> Option<&Arc<Player>> {
        if let Self::Play(player) = self { Some(player) } else { None }
    }

    /// Sets clocks and random numbers: of a recording, the latter alone.
    pub(crate) fn set(&self, wasi: &mut WasiCtxBuilder) {
        let seed = match self {
            Self::None => return,
            Self::Record(recorder) => recorder.seed(),
            Self::Play(player) => {
                time::set(player, wasi);
                // Sockets are made, and do nothing.
                wasi.allow_tcp(true).allow_udp(true).socket_addr_check(|address, usage| {
                    let binds = matches!(usage, SocketAddrUse::TcpBind | SocketAddrUse::UdpBind);
                    Box::pin(std::future::ready(binds && address.port() == 0))
                });
                player.seed()
            }
        };
        wasi.secure_random(random(seed, 0)).insecure_random(random(seed, 1)).insecure_random_seed(seed.into());
    }
}

/// Random numbers that follow from the seed, whatever library makes others.
fn random(seed: u64, kind: u8) -> Deterministic {
    let block = |number: u64| {
        let block: [u8; 32] = Sha256::new()
            .chain_update(seed.to_be_bytes())
            .chain_update([kind])
            .chain_update(number.to_be_bytes())
            .finalize()
            .into();
        block
    };
    Deterministic::new((0..RANDOM).flat_map(block).collect())
}
