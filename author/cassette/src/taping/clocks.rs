//! `wasi:clocks` of a replay: its clock, and pollables that wait by it.

use std::convert::identity;
use std::sync::Arc;
use std::time::Duration;

use akri_engine::linking::Round;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::clocks::WasiClocksView;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock::Host;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder, async_trait};

use super::TapedRound;
use crate::clock::Nanos;
use crate::player::Player;

/// As wasmtime links it.
const CLOCK: &str = "wasi:clocks/monotonic-clock@0.2.12";

struct Played(Arc<Player>);

impl HostMonotonicClock for Played {
    fn resolution(&self) -> u64 {
        1000
    }

    fn now(&self) -> u64 {
        self.0.clock.read()
    }
}

impl HostWallClock for Played {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        self.0.wall()
    }
}

/// Has both clocks show the time of the replay.
pub(super) fn set(player: &Arc<Player>, wasi: &mut WasiCtxBuilder) {
    wasi.monotonic_clock(Played(player.clone())).wall_clock(Played(player.clone()));
}

/// An instant of a replay, which the guest may wait for.
pub(super) struct PlayedInstant {
    pub(super) player: Arc<Player>,
    pub(super) due: Nanos,
}

#[async_trait]
impl Pollable for PlayedInstant {
    async fn ready(&mut self) {
        self.player.clock.until(self.due).await;
    }
}

/// Replaces what waits for a time.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    replace! {
        linker, CLOCK, identity,
        "subscribe-instant" => wait_until(when)
        "subscribe-duration" => wait_for(duration)
    }
    Ok(())
}

impl TapedRound<'_> {
    fn wait_until(&mut self, when: Nanos) -> wasmtime::Result<Resource<DynPollable>> {
        let Some(player) = self.player() else { return self.0.clocks().subscribe_instant(when) };
        // A guest that asks again and again without waiting has time pass, too.
        player.clock.read();
        let instant = self.0.table().push(PlayedInstant { player, due: when })?;
        subscribe(self.0.table(), instant)
    }

    fn wait_for(&mut self, duration: Nanos) -> wasmtime::Result<Resource<DynPollable>> {
        match self.player() {
            Some(player) => self.wait_until(player.clock.now().saturating_add(duration)),
            None => self.0.clocks().subscribe_duration(duration),
        }
    }
}
