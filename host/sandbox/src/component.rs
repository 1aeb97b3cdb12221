//! A component in a sandbox process.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use akri_engine::{Call, ComponentBytes, Import, LoadError, ROUNDS_AT_ONCE_OF_COMPONENT, time_to_answer};
use akri_model::datagram::DatagramFilter;
use akri_model::device::DeviceSet;
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::glob;
use akri_model::grant::{Grants, Isolation};
use akri_model::property::Secret;
use tokio::sync::{AcquireError, Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::call_log::BoundedLog;
use super::connection::{CallContext, Connection, PendingCall, ReceivedReply};
use super::crash_tracker::CrashRecord;
use super::listener::MulticastListener;
use super::protocol::{Arguments, Export, LoadedComponent, ReceivedDevices, Reply, Request, encode};
use super::reply_checks;
use super::sandbox_process::SandboxProcess;

/// Time for loading a component that was compiled, with its `describe`.
const LOAD: Duration = Duration::from_secs(120);

/// A loaded handler. Clones share everything.
#[derive(Clone)]
pub struct Component(Arc<Inner>);

struct Inner {
    id: u64,
    bytes: LoadedBytes,
    about: LoadedComponent,
    process: ComponentProcess,
    /// Turns of its rounds.
    rounds: Arc<Semaphore>,
}

/// The bytes of a component, in a file without a name: a process that is started anew needs them.
pub(crate) struct LoadedBytes {
    digest: String,
    size: usize,
    was_compiled: bool,
    file: Arc<File>,
}

impl LoadedBytes {
    /// Keeps the bytes of a component, for which there is machine code.
    pub(crate) async fn new(source: ComponentBytes, was_compiled: bool, directory: &Path) -> Result<Self, LoadError> {
        let ComponentBytes { digest, bytes } = source;
        let (directory, size) = (directory.to_owned(), bytes.len());
        let keep = move || {
            let mut file = tempfile::tempfile_in(directory)?;
            file.write_all(&bytes).map(|()| Arc::new(file))
        };
        let kept = spawn_blocking(keep).await.unwrap_or_else(|error| Err(error.into()));
        let file = kept.map_err(|error| LoadError::Unavailable(format!("it can't be kept: {error}")))?;
        Ok(Self { digest, size, was_compiled, file })
    }

    async fn read(&self) -> Result<Vec<u8>, RoundError> {
        let (mut bytes, file) = (vec![0; self.size], Arc::clone(&self.file));
        let read = spawn_blocking(move || file.read_exact_at(&mut bytes, 0).map(|()| bytes)).await;
        let read = read.unwrap_or_else(|error| Err(error.into()));
        read.map_err(|error| RoundError::Unavailable(format!("the component can't be read again: {error}")))
    }
}

/// The process of a component: the one it was loaded for, or one of its own after that has crashed.
struct ComponentProcess {
    first: Arc<SandboxProcess>,
    own: OnceLock<Arc<SandboxProcess>>,
    isolation: Isolation,
    crashes: Arc<CrashRecord>,
    /// The process that has loaded the component.
    loaded_in: Mutex<Weak<Connection>>,
}

impl ComponentProcess {
    /// Returns the permits that a round takes: all, once a process has ended while the component was running in it. So the next
    /// time it is certain which round ended it.
    fn permits(&self) -> u32 {
        if self.crashes.is_isolated() { u32::try_from(ROUNDS_AT_ONCE_OF_COMPONENT).unwrap_or(1) } else { 1 }
    }

    fn current(&self, digest: &str) -> &Arc<SandboxProcess> {
        if self.isolation == Isolation::Own || !self.crashes.is_isolated() {
            return &self.first;
        }
        self.own.get_or_init(|| Arc::new(SandboxProcess::of_component(digest, Arc::clone(&self.first.context))))
    }
}

impl Component {
    /// Loads a component into a process, or into one of its own if that ends meanwhile, as others may have ended it.
    pub(crate) async fn load(
        id: u64,
        bytes: LoadedBytes,
        (first, isolation): (Arc<SandboxProcess>, Isolation),
        crashes: Arc<CrashRecord>,
    ) -> Result<Self, LoadError> {
        let process = ComponentProcess { first, own: OnceLock::new(), isolation, crashes, loaded_in: Mutex::default() };
        let mut loaded = load_once(&process, id, &bytes).await;
        if loaded.is_err() && isolation == Isolation::Shared {
            loaded = load_once(&process, id, &bytes).await;
        }
        let about = loaded.map_err(|error| LoadError::Unavailable(error.to_string()))??;
        let rounds = Arc::new(Semaphore::new(ROUNDS_AT_ONCE_OF_COMPONENT));
        Ok(Self(Arc::new(Inner { id, bytes, about, process, rounds })))
    }

    /// SHA-256 of its bytes, in lower hex.
    pub fn digest(&self) -> &str {
        &self.0.bytes.digest
    }

    /// Its description of itself.
    pub fn description(&self) -> &Description {
        &self.0.about.description
    }

    /// Returns whether loading it compiled it, in place of using code from the cache.
    pub fn was_compiled(&self) -> bool {
        self.0.bytes.was_compiled
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.0.bytes.size
    }

    /// The interface by which it is a handler, with the version it was made for: `akri:discovery/handler@0.1.0`.
    pub fn exported(&self) -> &str {
        &self.0.about.exported
    }

    /// The interfaces it imports, such as `akri:discovery/udev@0.1.0` and `wasi:io/poll@0.2.6`, in its own order.
    pub fn imports(&self) -> &[String] {
        &self.0.about.imports
    }

    /// Its imports, beside what these grants give.
    pub fn coverage(&self, grants: &Grants) -> Vec<Import> {
        self.imports().iter().map(|name| Import::new(name, grants)).collect()
    }

    /// Returns the isolation it was loaded with.
    pub fn isolation(&self) -> Isolation {
        self.0.process.isolation
    }

    /// Checks details; returns what should start a round of them besides the interval. It is a question about the details
    /// alone: the handler is granted nothing meanwhile.
    ///
    /// # Errors
    /// [`RoundError::InvalidDetails`] with what is wrong, or what kept the handler from answering.
    pub async fn validate(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        let limits = call.limits.clone();
        let (Reply::Validated { result, .. }, _) = self.0.call(Export::Validate, call).await? else {
            return Err(wrong_answer());
        };
        let triggers = result.map_err(|failure| reply_checks::failure(failure, &limits))?;
        reply_checks::triggers(triggers, &limits)
    }

    /// Runs one round: every device the handler sees now, within the limits.
    ///
    /// It waits for its turn, for at most four rounds run at once in a process, two of them of one component; from then on it
    /// takes `limits.round` at most. Dropping the future ends the round.
    ///
    /// # Errors
    /// The reason why there is no answer. None of them means that a device has gone.
    pub async fn discover(&self, call: Call) -> Result<DeviceSet, RoundError> {
        let (limits, own_cache) = (call.limits.clone(), call.cache.clone());
        let (Reply::Discovered { result, cache, .. }, devices) = self.0.call(Export::Discover, call).await? else {
            return Err(wrong_answer());
        };
        let set = match result {
            Ok(found) => Ok(reply_checks::devices(DeviceSet { devices: devices.devices, ..*found }, &limits)?),
            Err(failure) => Err(reply_checks::failure(failure, &limits)),
        };
        if let Some(changed) = cache.filter(|cache| reply_checks::fits(cache, &limits)) {
            own_cache.replace(changed.0);
        }
        set
    }

    /// Receives what is sent to a multicast group, also while no round runs: datagrams that one of the filters lets through
    /// and that no round of the component's process sent, on the interfaces that the globs cover (loopback has to be named).
    /// Has to be called within a tokio runtime.
    ///
    /// It can't fail: where the group can't be joined, it is tried again from time to time.
    pub fn listen(&self, group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>) -> MulticastListener {
        MulticastListener::new(self.0.process(), group, interfaces, filters)
    }

    /// Returns whether a listener is in the process of this component. If not, it is of a component that this one has replaced,
    /// or of a process that the component has left, and receives nothing more.
    pub fn owns_listener(&self, listener: &MulticastListener) -> bool {
        listener.is_in(self.0.process())
    }
}

impl Inner {
    fn process(&self) -> &Arc<SandboxProcess> {
        self.process.current(&self.bytes.digest)
    }

    /// Waits for its permits, in the process that the component has by then.
    async fn acquire(&self) -> Result<(&Arc<SandboxProcess>, [OwnedSemaphorePermit; 2]), RoundError> {
        loop {
            let rounds = self.process.permits();
            let own = Arc::clone(&self.rounds).acquire_many_owned(rounds).await.map_err(shutting_down)?;
            let process = self.process();
            let permit = Arc::clone(&process.permits).acquire_owned().await.map_err(shutting_down)?;
            if self.process.permits() == rounds {
                return Ok((process, [own, permit]));
            }
        }
    }

    /// Calls an export, and ends the process if there is no answer in time. A call that was begun and is dropped is ended in
    /// the process, and counts until then.
    async fn call(&self, export: Export, call: Call) -> Result<(Reply, ReceivedDevices), RoundError> {
        let (process, permits) = self.acquire().await?;
        let connection = process.connect().await?;
        self.ensure_loaded(&connection).await?;
        let (id, component) = (connection.next_call(), self.id);
        let context = CallContext {
            crashes: Arc::clone(&self.process.crashes),
            log: Some(BoundedLog::new(&self.about.description.name, &call)),
            _permits: permits.into(),
        };
        let (time, rates) = (time_to_answer(&call.limits), call.rates.clone());
        let arguments = Box::new(arguments(call, export));
        let request = Request::Call { call: id, component, export, arguments };
        let frame = encode(&request, &[]).map_err(|error| RoundError::LimitExceeded(error.to_string()))?;
        let began = Instant::now();
        let mut pending = connection.call(id, frame, context, time)?;
        let mut devices = ReceivedDevices::default();
        loop {
            let received = pending.next().await?;
            self.add_devices(&mut devices, &received, &pending).await?;
            if !matches!(received.reply, Reply::Devices { .. }) {
                rates.add_ticks(reply_checks::ticks(&received.reply, began.elapsed()));
                return Ok((received.reply, devices));
            }
        }
    }

    /// Decodes the devices of a reply. If they can't be read the process is ended.
    async fn add_devices(
        &self,
        devices: &mut ReceivedDevices,
        received: &ReceivedReply,
        pending: &PendingCall,
    ) -> Result<(), RoundError> {
        let mut rest = received.payload();
        let decoded = loop {
            match devices.add_some(rest) {
                Ok([]) => break devices.check(&received.reply),
                Ok(left) => rest = left,
                Err(error) => break Err(error),
            }
            tokio::task::yield_now().await; // for others on this thread
        };
        decoded.map_err(|error| {
            self.process.crashes.process_exited();
            pending.reject(&error)
        })
    }

    /// Loads the component into a process that was started since.
    async fn ensure_loaded(&self, connection: &Arc<Connection>) -> Result<(), RoundError> {
        let mut loaded_in = self.process.loaded_in.lock().await;
        if Weak::ptr_eq(&loaded_in, &Arc::downgrade(connection)) {
            return Ok(());
        }
        let loaded = load_into(connection, self.id, &self.process.crashes, &self.bytes).await?;
        loaded.map_err(|error| match error {
            LoadError::Unavailable(_) => RoundError::Unavailable(error.to_string()),
            error => RoundError::Trapped(error.to_string()),
        })?;
        // It may have been loaded in the first process before another of the same bytes crashed.
        unload(&std::mem::replace(&mut *loaded_in, Arc::downgrade(connection)), self.id);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        unload(self.process.loaded_in.get_mut(), self.id);
    }
}

/// Removes a component from a process, if that still runs.
fn unload(loaded_in: &Weak<Connection>, component: u64) {
    if let Some(connection) = loaded_in.upgrade() {
        connection.send(&Request::Unload { component });
    }
}

/// The description of a component or the reason why it can't be used, if the process gave an answer.
type LoadAnswer = Result<Result<LoadedComponent, LoadError>, RoundError>;

async fn load_once(process: &ComponentProcess, id: u64, bytes: &LoadedBytes) -> LoadAnswer {
    let current = process.current(&bytes.digest);
    let _permit = current.permits.acquire().await.map_err(shutting_down)?;
    let connection = current.connect().await?;
    let loaded = load_into(&connection, id, &process.crashes, bytes).await?;
    *process.loaded_in.lock().await = Arc::downgrade(&connection);
    Ok(loaded)
}

async fn load_into(
    connection: &Arc<Connection>,
    component: u64,
    crashes: &Arc<CrashRecord>,
    bytes: &LoadedBytes,
) -> LoadAnswer {
    let call = connection.next_call();
    let frame = encode(&Request::Load { call, component }, &bytes.read().await?);
    let frame = frame.map_err(|error| RoundError::LimitExceeded(error.to_string()))?;
    let context = CallContext { crashes: Arc::clone(crashes), log: None, _permits: Vec::new() };
    match connection.call(call, frame, context, LOAD)?.next().await?.reply {
        Reply::Loaded { result, .. } => Ok(reply_checks::loaded(result)),
        _ => Err(wrong_answer()),
    }
}

fn wrong_answer() -> RoundError {
    RoundError::Unavailable("the sandbox process answered another question".to_owned())
}

fn shutting_down(_: AcquireError) -> RoundError {
    RoundError::Unavailable("the host is shutting down".to_owned())
}

/// Converts a call; values of secrets that it is not granted stay here.
fn arguments(call: Call, export: Export) -> Arguments {
    let grants = if export == Export::Validate { Default::default() } else { call.grants };
    let granted = |(name, secret): (String, Secret)| {
        let is_granted = glob::any(&grants.secrets, &name);
        (name, if is_granted { secret } else { Secret::new(Vec::new()) })
    };
    Arguments {
        subject: call.subject,
        details: call.details,
        details_json: call.details_json,
        properties: call.properties.properties,
        secrets: call.properties.secrets.into_iter().map(granted).collect(),
        cache: call.cache.entries(),
        limits: call.limits,
        rates: call.rates.id(),
        grants,
    }
}
