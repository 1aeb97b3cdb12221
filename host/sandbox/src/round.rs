//! What a store holds: the call it serves, its bounds, and what the guest told the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_model::device::Note;
use akri_model::discovery::RoundError;
use tokio::sync::Semaphore;
use wasmtime::{CallHook, Engine, Store, StoreContextMut, Trap, UpdateDeadline};
use wasmtime_wasi::{I32Exit, ResourceTable, ResourceTableError, WasiCtx, WasiCtxView, WasiView};

use crate::Call;
use crate::limiter::Limiter;
use crate::log::{Console, RoundLog, Stream};
use crate::sysfs::Sysfs;
use crate::text::clean;

/// Bytes a guest may hand to the host in one call of an import.
const ARGUMENTS: usize = 1 << 20;
/// Bytes of one result of an export: 10,000 devices with a few properties.
const RESULT: usize = 16 << 20;
/// Bytes of random numbers a guest gets at once.
const RANDOM: u64 = 64 << 10;
/// Resources a guest may hold in the host: streams, pollables, queries, snapshots.
const RESOURCES: usize = 1024;
/// Handles in the guest's own tables.
const HANDLES: usize = 16 << 10;
/// Bytes of all the `udev` snapshots a guest holds.
const SNAPSHOTS: usize = 32 << 20;

/// The data of a store.
pub(crate) struct Round {
    pub(crate) call: Call,
    pub(crate) log: Arc<RoundLog>,
    pub(crate) table: ResourceTable,
    pub(crate) notes: Vec<Note>,
    pub(crate) notes_dropped: u64,
    pub(crate) kept: BTreeSet<String>,
    pub(crate) sysfs: Sysfs,
    pub(crate) udev_runs: Arc<Semaphore>,
    pub(crate) snapshot_bytes: usize,
    pub(crate) deadline: Instant,
    wasi: WasiCtx,
    limiter: Limiter,
}

/// The guest went over a limit inside an import: ends the round.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct OverLimit(pub(crate) String);

impl Round {
    /// A round for `call` that has to end at `deadline`.
    pub(crate) fn new(call: Call, handler: &str, deadline: Instant, sysfs: Sysfs, udev_runs: Arc<Semaphore>) -> Self {
        let log = RoundLog::new(handler.to_owned(), &call);
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES);
        Self {
            wasi: empty_wasi(&log),
            limiter: Limiter::new(call.limits.memory_bytes),
            call,
            log,
            table,
            notes: Vec::new(),
            notes_dropped: 0,
            kept: BTreeSet::new(),
            sysfs,
            udev_runs,
            snapshot_bytes: SNAPSHOTS,
            deadline,
        }
    }

    /// A store with every bound set.
    pub(crate) fn into_store(self, engine: &Engine) -> Store<Self> {
        let deadline = self.deadline;
        let mut store = Store::new(engine, self);
        store.limiter(|round| &mut round.limiter);
        store.set_max_component_handles(HANDLES);
        store.set_hostcall_fuel(ARGUMENTS);
        store.call_hook(bound_what_is_copied);
        store.set_epoch_deadline(1);
        // The caller ends the round by aborting its task, which takes effect when the guest yields. The interrupt is for
        // a caller that could not.
        store.epoch_deadline_callback(move |_| {
            let over = Instant::now() >= deadline;
            Ok(if over { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
        });
        store
    }

    /// Time left.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// How many resources of a kind the guest holds.
    pub(crate) fn count<T: 'static>(&mut self) -> usize {
        self.table.iter_mut().filter(|resource| resource.is::<T>()).count()
    }

    /// What a failed call means.
    pub(crate) fn failure(&self, error: &wasmtime::Error) -> RoundError {
        let whole = || clean(&format!("{error:?}"), 4096);
        tracing::debug!(configuration = self.call.subject, "the component failed: {}", whole());
        if let Some(Trap::Interrupt) = error.downcast_ref() {
            return RoundError::DeadlineExceeded(self.call.limits.round);
        }
        if let Some(over) = self.over_limit(error) {
            return RoundError::LimitExceeded(over);
        }
        let cause = match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(status)) => format!("it exited with status {status}"),
            None => error.root_cause().to_string(),
        };
        let tail = self.log.tail();
        let said = if tail.is_empty() { String::new() } else { format!(": {tail}") };
        RoundError::Trapped(clean(&format!("{cause}{said}"), 2048))
    }

    fn over_limit(&self, error: &wasmtime::Error) -> Option<String> {
        if let Some(over) = error.downcast_ref::<OverLimit>() {
            return Some(over.to_string());
        }
        if let Some(ResourceTableError::Full) = error.downcast_ref() {
            return Some(format!("resources: more than {RESOURCES}"));
        }
        // wasmtime has no public type for this one; a test holds the text.
        if error.root_cause().to_string().contains("fuel allocated for hostcalls") {
            return Some(format!("bytes handed to the host: more than {ARGUMENTS} in a call or {RESULT} in a result"));
        }
        self.limiter.exceeded()
    }
}

/// Sets how much may be copied out of the guest's memory, for what comes next.
fn bound_what_is_copied(mut store: StoreContextMut<'_, Round>, hook: CallHook) -> wasmtime::Result<()> {
    match hook {
        CallHook::CallingHost => store.set_hostcall_fuel(ARGUMENTS),
        CallHook::ReturningFromWasm => store.set_hostcall_fuel(RESULT),
        CallHook::CallingWasm | CallHook::ReturningFromHost => {}
    }
    Ok(())
}

/// WASI with clocks and random numbers, and nothing else: no arguments, no environment, no files, no network.
fn empty_wasi(log: &Arc<RoundLog>) -> WasiCtx {
    let console = |stream| Console { log: log.clone(), stream };
    WasiCtx::builder()
        .stdout(console(Stream::Output))
        .stderr(console(Stream::Error))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .max_random_size(RANDOM)
        .build()
}

impl WasiView for Round {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}
