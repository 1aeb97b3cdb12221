//! The state of a store: the call it serves, its bounds, and the guest's reports.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, Note};
use akri_model::discovery::RoundError;
use akri_model::grant::Limits;
use akri_model::text::clean;
use akri_node::multicast::OwnSenders;
use akri_node::sysfs::Sysfs;
use rustc_demangle::demangle;
use tokio::sync::Semaphore;
use wasmtime::{CallHook, Engine, Store, StoreContextMut, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::{I32Exit, ResourceTable, ResourceTableError, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{FieldMapError, WasiHttpCtx};

use crate::Call;
use crate::cache::Draft;
use crate::capabilities::multicast::SENDS;
use crate::capabilities::properties::AskedProperties;
use crate::deadline::Deadline;
use crate::limiter::Limiter;
use crate::log::{Console, RoundLog, Stream};
use crate::network::http::{Client, Http};
use crate::network::names::Names;
use crate::network::request_permits::RequestPermits;
use crate::network::resolver::Resolver;
use crate::network::sockets::Addresses;
use crate::network::tls::Trust;
use crate::runtime::GuestActivity;
use crate::tape::Tape;

/// Bytes a guest may hand to the host in one call of an import.
const ARGUMENTS: usize = 1 << 20;
/// Bytes of one result of an export: 10,000 devices with a few properties.
pub(crate) const RESULT: usize = 16 << 20;
/// Bytes of random numbers a guest gets at once.
const RANDOM: u64 = 64 << 10;
/// Resources a guest may hold in the host: streams, pollables, queries, snapshots. With many connections, so many for each.
const RESOURCES: usize = 1024;
const RESOURCES_OF_A_CONNECTION: usize = 8;
/// Handles in the guest's own tables.
const HANDLES: usize = 16 << 10;
/// Bytes of all the `udev` snapshots a guest holds.
const SNAPSHOTS: usize = 32 << 20;

/// Bytes of the headers of one HTTP message, with what they take beside their text.
const HEADERS: usize = 16 << 10;

/// The state shared by all rounds of a component.
pub(crate) struct ComponentContext {
    pub(crate) sysfs: Sysfs,
    /// Turns to run: whatever a component does with its rounds, others find a turn, too.
    pub(crate) rounds: Semaphore,
    /// Turns to run, of all components.
    pub(crate) all_rounds: Arc<Semaphore>,
    pub(crate) activity: Arc<GuestActivity>,
    /// Turns to read sysfs: a thread that hangs can't be ended.
    pub(crate) udev_runs: Arc<Semaphore>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) own_senders: OwnSenders,
}

/// The data of a store.
pub struct Round {
    pub(crate) call: Call,
    pub(crate) log: Arc<RoundLog>,
    pub(crate) table: ResourceTable,
    /// The reports of the round so far, without its devices.
    pub(crate) set: DeviceSet,
    pub(crate) kept_bytes: usize,
    pub(crate) asked: AskedProperties,
    pub(crate) draft: Option<Draft>,
    pub(crate) component_context: Arc<ComponentContext>,
    pub(crate) snapshot_bytes: usize,
    pub(crate) sends_left: u32,
    pub(crate) deadline: Deadline,
    /// Set if sockets of a kind are granted at all.
    pub(crate) has_tcp: bool,
    pub(crate) has_udp: bool,
    pub(crate) names: Arc<Names>,
    pub(crate) http: Http,
    pub(crate) http_context: WasiHttpCtx,
    wasi: WasiCtx,
    limiter: Limiter,
}

/// The guest went over a limit inside an import: ends the round.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct OverLimit(pub(crate) String);

impl Round {
    /// Creates a round for `call` that has to end at `deadline`.
    pub(crate) fn new(
        mut call: Call,
        handler: &str,
        deadline: Deadline,
        component_context: Arc<ComponentContext>,
    ) -> Self {
        let log = RoundLog::new(handler, &call);
        let mut table = ResourceTable::new();
        table.set_max_capacity(resources(&call.limits));
        // Grants of the network are moved to who keeps them.
        let granted = std::mem::take(&mut call.grants.names);
        let names = Arc::new(Names::new(granted, component_context.resolver.clone(), call.rates.clone()));
        let (has_tcp, has_udp) = (!call.grants.tcp.is_empty(), !call.grants.udp.is_empty());
        let mut http_context = WasiHttpCtx::new();
        http_context.set_field_size_limit(HEADERS);
        Self {
            wasi: wasi(&mut call, &log),
            http: http(&mut call, &names, &component_context, &log, deadline),
            http_context,
            names,
            limiter: Limiter::new(call.limits.memory_bytes),
            call,
            log,
            table,
            set: DeviceSet::default(),
            kept_bytes: RESULT,
            asked: AskedProperties::default(),
            draft: None,
            component_context,
            snapshot_bytes: SNAPSHOTS,
            sends_left: SENDS,
            deadline,
            has_tcp,
            has_udp,
        }
    }

    /// A store with every bound set.
    pub(crate) fn into_store(self, engine: &Engine) -> Store<Self> {
        let (deadline, rates) = (self.deadline, self.call.rates.clone());
        let mut store = Store::new(engine, self);
        store.limiter(|round| &mut round.limiter);
        store.set_max_component_handles(HANDLES);
        store.set_hostcall_fuel(ARGUMENTS);
        store.call_hook(bound_what_is_copied);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            rates.add_ticks(1); // it has computed since the last time
            Ok(if deadline.is_over() { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
        });
        store
    }

    /// Shows a call that the host itself answers to whoever watches the round.
    pub(crate) fn trace(&self, call: &str, arguments: impl Fn() -> serde_json::Value) {
        if let Some(tape) = &self.call.tape {
            tape.trace(call, &arguments);
        }
    }

    /// Returns the tape of the round, if it is of that type.
    pub fn tape<T: Tape>(&self) -> Option<Arc<T>> {
        let tape: Arc<dyn Any + Send + Sync> = self.call.tape.clone()?;
        tape.downcast().ok()
    }

    /// Returns the resources that the guest holds.
    pub fn table(&mut self) -> &mut ResourceTable {
        &mut self.table
    }

    /// Returns the longest time the guest may wait in the host.
    pub fn remaining_wait(&self) -> Duration {
        self.remaining().saturating_sub(self.deadline.margin())
    }

    /// Returns the time left, by the clock of the call.
    pub(crate) fn remaining(&self) -> Duration {
        let left = self.call.tape.as_ref().and_then(|tape| tape.time_left());
        left.unwrap_or_else(|| self.deadline.remaining())
    }

    /// Returns the devices of the round, which may contain secrets. Without a grant that it asked for, the handler could not
    /// look: removing a grant must not remove devices.
    pub(crate) fn found(&mut self, devices: Vec<Device>) -> DeviceSet {
        let absent = self.log.absent_grants();
        if !absent.is_empty() {
            self.note_absent_grants(&absent);
            self.set.absence = AbsenceMeaning::Kept(BTreeSet::new());
        }
        for note in self.asked.misspelt(&self.call.properties) {
            self.set.add_note(note, self.call.limits.notes);
        }
        DeviceSet { devices, memory_bytes: self.limiter.used(), ..std::mem::take(&mut self.set) }
    }

    /// A note about grants that are missing altogether, which the handler asked for.
    fn note_absent_grants(&mut self, absent: &BTreeSet<&str>) {
        let fields: Vec<&str> = absent.iter().copied().collect();
        let fields = self.call.grants.field(&fields.join(", "));
        let message = format!("the handler asks for {fields}: nothing is granted; devices it does not see are kept");
        let note = Note { origin: String::new(), reason: "NotGranted".to_owned(), message };
        self.set.notes.truncate(self.call.limits.notes.saturating_sub(1));
        self.set.notes.insert(0, note);
    }

    /// Keeps what the guest wrote to its cache: it returned.
    pub(crate) fn commit(&mut self) {
        if let Some(draft) = self.draft.take() {
            draft.commit();
        }
    }

    /// Returns the number of resources of a kind that the guest holds.
    pub(crate) fn count<T: 'static>(&mut self) -> usize {
        self.table.iter_mut().filter(|resource| resource.is::<T>()).count()
    }

    /// Converts the error of a failed call.
    pub(crate) fn failure(&self, error: &wasmtime::Error) -> RoundError {
        let full_error = || self.log.hide(clean(&format!("{error:?}"), 4096));
        tracing::debug!(configuration = self.call.subject, "the component failed: {}", full_error());
        if let Some(Trap::Interrupt) = error.downcast_ref() {
            return RoundError::StillComputing { limit: self.deadline.limit, place: place(error) };
        }
        if let Some(over) = self.over_limit(error) {
            return RoundError::LimitExceeded(over);
        }
        let cause = format!("{}{}", cause(error), place(error));
        let tail = self.log.tail();
        let output = if tail.is_empty() { String::new() } else { format!(": {tail}") };
        RoundError::Trapped(clean(&format!("{cause}{output}"), 2048))
    }

    fn over_limit(&self, error: &wasmtime::Error) -> Option<String> {
        if let Some(over) = error.downcast_ref::<OverLimit>() {
            return Some(over.to_string());
        }
        if let Some(ResourceTableError::Full) = error.downcast_ref() {
            return Some(format!("resources: more than {}", resources(&self.call.limits)));
        }
        if let Some(FieldMapError::TooManyFields | FieldMapError::TotalSizeTooBig) = error.downcast_ref() {
            return Some(format!("HTTP headers: more than {HEADERS} bytes"));
        }
        // wasmtime has no public type for this one; a test holds the text.
        if error.root_cause().to_string().contains("fuel allocated for hostcalls") {
            return Some(format!("bytes handed to the host: more than {ARGUMENTS} in a call or {RESULT} in a result"));
        }
        self.limiter.exceeded()
    }
}

/// Returns why a call failed, in the words of an author.
fn cause(error: &wasmtime::Error) -> String {
    if let Some(I32Exit(status)) = error.downcast_ref() {
        // WASI 0.2 tells no other status than these.
        return format!("it exited, with {}", if *status == 0 { "success" } else { "a failure" });
    }
    if let Some(ResourceTableError::HasChildren) = error.downcast_ref() {
        return "it dropped a resource before those made from it: drop pollables before what they wait for, and streams before \
                their socket, request or response"
            .to_owned();
    }
    let cause = error.root_cause().to_string();
    match error.downcast_ref() {
        // Where a stack ends in linear memory, below it is nothing.
        Some(Trap::MemoryOutOfBounds) => format!("{cause} (its stack may be full: a recursion, or large values on it)"),
        _ => cause,
    }
}

/// Names the innermost function of the component's own, if it has names.
fn place(error: &wasmtime::Error) -> String {
    const MACHINERY: [&str; 10] =
        ["std::", "core::", "alloc::", "rust_", "__", "wit_bindgen", "abort", "panic", "exit", "_Exit"];
    let names = error.downcast_ref::<WasmBacktrace>().into_iter().flat_map(WasmBacktrace::frames);
    let own = |name: &String| !MACHINERY.iter().any(|part| name.trim_start_matches(['<', '&']).starts_with(part));
    let name = names.filter_map(|frame| Some(format!("{:#}", demangle(frame.func_name()?)))).find(own);
    name.map_or_else(String::new, |name| format!(" in {}", clean(&name, 128)))
}

fn resources(limits: &Limits) -> usize {
    limits.connections.saturating_mul(RESOURCES_OF_A_CONNECTION).max(RESOURCES)
}

/// Sets how much may be copied out of the guest's memory, for what comes next.
fn bound_what_is_copied(mut store: StoreContextMut<'_, Round>, hook: CallHook) -> wasmtime::Result<()> {
    match hook {
        CallHook::CallingHost => store.set_hostcall_fuel(ARGUMENTS),
        CallHook::ReturningFromWasm => store.set_hostcall_fuel(RESULT),
        CallHook::CallingWasm | CallHook::ReturningFromHost => {}
    }
    if let Some(tape) = &store.data().call.tape {
        tape.set_computing(matches!(hook, CallHook::CallingWasm | CallHook::ReturningFromHost));
    }
    Ok(())
}

/// WASI with clocks, random numbers, granted addresses, and nothing else: no arguments, no environment, no files.
fn wasi(call: &mut Call, log: &Arc<RoundLog>) -> WasiCtx {
    let console = |stream| Console { log: log.clone(), stream };
    let addresses = Addresses { tcp: std::mem::take(&mut call.grants.tcp), udp: std::mem::take(&mut call.grants.udp) };
    let mut wasi = WasiCtx::builder();
    wasi.stdout(console(Stream::Output)).stderr(console(Stream::Error)).max_random_size(RANDOM);
    addresses.set(&mut wasi, log, call.rates.clone());
    if let Some(tape) = call.tape.clone() {
        tape.configure(&mut wasi);
    }
    wasi.build()
}

fn http(
    call: &mut Call,
    names: &Arc<Names>,
    component_context: &ComponentContext,
    log: &Arc<RoundLog>,
    deadline: Deadline,
) -> Http {
    let client = Client {
        grants: std::mem::take(&mut call.grants.http),
        names: names.clone(),
        request_permits: RequestPermits::new(call.limits.connections),
        trust: component_context.trust.clone(),
        log: log.clone(),
        rates: call.rates.clone(),
        deadline,
    };
    Http { client: Arc::new(client), tape: call.tape.clone() }
}

impl WasiView for Round {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}
