//! A component in a sandbox process.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use akri_engine::{Call, ROUNDS_AT_ONCE_OF_COMPONENT};
use akri_model::datagram::DatagramFilter;
use akri_model::device::DeviceSet;
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::glob;
use akri_model::grant::{Isolation, LONGEST_ROUND};
use akri_model::property::Secret;
use tokio::sync::{Mutex, Semaphore, oneshot};

use super::answer;
use super::blame::{Blame, Deadly};
use super::call_log::CallLog;
use super::connection::{CallState, Connection};
use super::listener::WorkerListener;
use super::payload::Payload;
use super::protocol::{
    Arguments, LoadedComponent, ProtocolError, ReceivedDevices, Reply, Request, encode, encode_secret, join,
};
use super::workers::{Probation, Worker};
use crate::load_error::LoadError;

/// Time for an answer beside the time of a round: for checking what was found, and for a busy node.
const SLACK: Duration = Duration::from_secs(10);
/// Time for loading a component that was compiled, with its `describe`.
const LOAD: Duration = Duration::from_secs(120);

/// A component in a sandbox process. Clones share it.
#[derive(Clone)]
pub(crate) struct WorkerComponent {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    worker: Arc<Worker>,
    digest: String,
    size: usize,
    was_compiled: bool,
    isolation: Isolation,
    /// Its bytes, in a file without a name: a process that is started anew needs them.
    source: File,
    about: LoadedComponent,
    /// The process in which it is loaded.
    loaded_in: Mutex<Weak<Connection>>,
    rounds: Arc<Semaphore>,
    blame: Arc<Blame>,
}

/// The export that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Export {
    Validate,
    Discover,
}

impl WorkerComponent {
    /// Loads a component, for which there is machine code.
    pub(super) async fn load(
        id: u64,
        worker: Arc<Worker>,
        digest: String,
        bytes: &[u8],
        isolation: Isolation,
        was_compiled: bool,
    ) -> Result<Self, LoadError> {
        let kept = |error: io::Error| LoadError::Unavailable(format!("it can't be kept: {error}"));
        let mut source = tempfile::tempfile_in(&worker.context.paths.compiled).map_err(kept)?;
        source.write_all(bytes).map_err(kept)?;
        let blame = Arc::<Blame>::default();
        let mut loaded = load_once(&worker, id, &blame, bytes).await;
        if let Err(LoadAttempt::Ended(_)) = &loaded {
            // Others may have ended it.
            loaded = match worker.probation().await {
                Ok(probation) => load_once(&probation.worker, id, &blame, bytes).await,
                Err(error) => Err(LoadAttempt::Ended(error)),
            };
        }
        let (about, connection) = loaded.map_err(|attempt| match attempt {
            LoadAttempt::Refused(error) => error,
            LoadAttempt::Ended(error) => LoadError::Unavailable(error.to_string()),
        })?;
        let (rounds, loaded_in) = (Arc::new(Semaphore::new(ROUNDS_AT_ONCE_OF_COMPONENT)), Mutex::new(connection));
        let size = bytes.len();
        let inner =
            Inner { id, worker, digest, size, was_compiled, isolation, source, about, loaded_in, rounds, blame };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn digest(&self) -> &str {
        &self.inner.digest
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.size
    }

    pub(crate) fn was_compiled(&self) -> bool {
        self.inner.was_compiled
    }

    pub(crate) fn isolation(&self) -> Isolation {
        self.inner.isolation
    }

    pub(crate) fn description(&self) -> &Description {
        &self.inner.about.description
    }

    pub(crate) fn exported(&self) -> &str {
        &self.inner.about.exported
    }

    pub(crate) fn imports(&self) -> &[String] {
        &self.inner.about.imports.0
    }

    /// Receives what is sent to a multicast group.
    pub(crate) fn listen(
        &self,
        group: SocketAddr,
        interfaces: &[String],
        filters: Vec<DatagramFilter>,
    ) -> WorkerListener {
        WorkerListener::new(&self.inner.worker, group, interfaces, filters)
    }

    /// Returns whether a listener is in this component's process.
    pub(crate) fn owns_listener(&self, listener: &WorkerListener) -> bool {
        listener.is_in(&self.inner.worker)
    }

    pub(crate) async fn validate(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        let limits = call.limits.clone();
        match self.call(Export::Validate, call).await? {
            (Reply::Validated { result, .. }, _) => match result {
                Ok(triggers) => answer::triggers(triggers.0, &limits),
                Err(failure) => Err(answer::failure(failure, &limits)),
            },
            _ => Err(wrong_answer()),
        }
    }

    pub(crate) async fn discover(&self, call: Call) -> Result<DeviceSet, RoundError> {
        let (limits, own_cache) = (call.limits.clone(), call.cache.clone());
        let (Reply::Discovered { result, cache, .. }, devices) = self.call(Export::Discover, call).await? else {
            return Err(wrong_answer());
        };
        let set = result.map_err(|failure| answer::failure(failure, &limits)).and_then(|found| {
            let set = join(*found, devices);
            answer::devices(set.map_err(|error| RoundError::Trapped(error.to_string()))?, &limits)
        });
        if let Some(changed) = cache.filter(|cache| answer::fits(cache, &limits)) {
            own_cache.replace(changed.0);
        }
        set
    }

    /// Calls an export. What was begun is ended in the process, and counted until then, also if the caller is gone.
    async fn call(&self, export: Export, call: Call) -> Result<(Reply, ReceivedDevices), RoundError> {
        if let Some(refusal) = self.inner.blame.refusal(&call, Instant::now()) {
            return Err(refusal);
        }
        let (cancel, cancelled) = oneshot::channel::<()>();
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move { inner.call(export, call, cancelled).await });
        let answer = task.await;
        drop(cancel);
        answer.unwrap_or_else(|error| Err(RoundError::Unavailable(error.to_string())))
    }
}

impl Inner {
    async fn call(
        &self,
        export: Export,
        call: Call,
        mut cancelled: oneshot::Receiver<()>,
    ) -> Result<(Reply, ReceivedDevices), RoundError> {
        let begun = async {
            let stopped = |_| RoundError::Unavailable("the host is shutting down".to_owned());
            let own = Arc::clone(&self.rounds).acquire_owned().await.map_err(stopped)?;
            let probation = self.probation().await?;
            let turn = Arc::clone(&self.worker.rounds).acquire_owned().await.map_err(stopped)?;
            let connection = probation.as_ref().map_or(&*self.worker, |it| &it.worker).connect().await?;
            self.ensure_loaded(&connection).await?;
            Ok::<_, RoundError>((connection, (own, turn, probation)))
        };
        // One that nobody waits for any more does not begin.
        let (connection, _turns) = tokio::select! {
            begun = begun => begun?,
            _ = &mut cancelled => return Err(RoundError::Unavailable("cancelled".to_owned())),
        };
        let id = connection.next_call();
        let deadly = Deadly::from(&call);
        let state = self.state(deadly.clone(), Some(CallLog::new(&self.about.description.name, &call)));
        let limit = call.limits.round.min(LONGEST_ROUND) + SLACK;
        let component = self.id;
        let rates = call.rates.clone();
        let arguments = Box::new(arguments(call, export));
        let request = match export {
            Export::Validate => Request::Validate { call: id, component, arguments },
            Export::Discover => Request::Discover { call: id, component, arguments },
        };
        let frame = encode_secret(request).map_err(|error| RoundError::LimitExceeded(error.to_string()))?;
        let (began, cancel) = (Instant::now(), Request::Cancel { call: id });
        let answer = connection.call(id, frame, state, limit);
        tokio::pin!(answer);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            _ = &mut cancelled => tokio::join!(answer, connection.send(&cancel)).0,
        };
        let (reply, payload) = answer?;
        rates.add_ticks(answer::ticks(&reply, began.elapsed()));
        match read_devices(&reply, payload).await {
            Ok(devices) => {
                // Only a round shows that the next one will do no harm.
                if matches!(reply, Reply::Discovered { .. }) {
                    self.blame.answered();
                }
                Ok((reply, devices))
            }
            Err(error) => Err(connection.reject(id, self.state(deadly, None), &error).await),
        }
    }

    fn state(&self, deadly: Deadly, log: Option<CallLog>) -> CallState {
        CallState { component: self.id, blame: Arc::clone(&self.blame), deadly: Some(deadly), log }
    }

    /// Returns a process for one call of a suspect, unless it has one for itself in any case.
    async fn probation(&self) -> Result<Option<Probation>, RoundError> {
        if self.isolation == Isolation::Own || !self.blame.is_suspect() {
            return Ok(None);
        }
        self.worker.probation().await.map(Some)
    }

    /// Loads the component into a process that was started since.
    async fn ensure_loaded(&self, connection: &Arc<Connection>) -> Result<(), RoundError> {
        let mut loaded_in = self.loaded_in.lock().await;
        if Weak::ptr_eq(&loaded_in, &Arc::downgrade(connection)) {
            return Ok(());
        }
        let mut bytes = vec![0; self.size];
        let read = self.source.read_exact_at(&mut bytes, 0);
        read.map_err(|error| RoundError::Unavailable(format!("the component can't be read again: {error}")))?;
        match load_into(connection, self.id, &self.blame, &bytes).await {
            Ok(_) => *loaded_in = Arc::downgrade(connection),
            Err(LoadAttempt::Ended(error)) => return Err(error),
            Err(LoadAttempt::Refused(error)) => return Err(RoundError::Trapped(error.to_string())),
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.worker.forget(self.id);
    }
}

/// An attempt at loading that failed.
enum LoadAttempt {
    /// The component is not what it should be.
    Refused(LoadError),
    /// There was no answer.
    Ended(RoundError),
}

async fn load_once(
    worker: &Worker,
    id: u64,
    blame: &Arc<Blame>,
    bytes: &[u8],
) -> Result<(LoadedComponent, Weak<Connection>), LoadAttempt> {
    let turn = worker.rounds.acquire().await;
    let _turn = turn.map_err(|error| LoadAttempt::Ended(RoundError::Unavailable(error.to_string())))?;
    let connection = worker.connect().await.map_err(LoadAttempt::Ended)?;
    let about = load_into(&connection, id, blame, bytes).await?;
    Ok((about, Arc::downgrade(&connection)))
}

async fn load_into(
    connection: &Connection,
    component: u64,
    blame: &Arc<Blame>,
    bytes: &[u8],
) -> Result<LoadedComponent, LoadAttempt> {
    let call = connection.next_call();
    let frame = encode(&Request::Load { call, component }, bytes);
    let frame = frame.map_err(|error| LoadAttempt::Refused(LoadError::Refused(error.to_string())))?;
    let state = CallState { blame: Arc::clone(blame), deadly: None, log: None, component };
    match connection.call(call, frame, state, LOAD).await.map_err(LoadAttempt::Ended)? {
        (Reply::Loaded { result: Ok(about), .. }, _) => answer::loaded(about).map_err(LoadAttempt::Refused),
        (Reply::Loaded { result: Err(failure), .. }, _) => Err(LoadAttempt::Refused(answer::load_failure(failure))),
        _ => Err(LoadAttempt::Ended(wrong_answer())),
    }
}

/// Returns the devices that came with a reply.
async fn read_devices(reply: &Reply, payload: Payload) -> Result<ReceivedDevices, ProtocolError> {
    let devices = payload.devices().await?;
    if let Reply::Discovered { result: Ok(found), .. } = reply {
        devices.check(found)?;
    }
    Ok(devices)
}

fn wrong_answer() -> RoundError {
    RoundError::Unavailable("the sandbox process answered another question".to_owned())
}

/// Converts a call; values of secrets that it is not granted stay here.
fn arguments(call: Call, export: Export) -> Arguments {
    let grants = if export == Export::Validate { Default::default() } else { call.grants };
    let reveal = |(name, secret): (&String, &Secret)| {
        let value = if glob::any(&grants.secrets, name) { secret.reveal().to_vec() } else { Vec::new() };
        (name.clone(), value)
    };
    Arguments {
        subject: call.subject,
        details: call.details,
        details_json: call.details_json,
        properties: call.properties.properties.clone(),
        secrets: call.properties.secrets.iter().map(reveal).collect(),
        cache: call.cache.entries(),
        limits: call.limits,
        rates: call.rates.id(),
        grants,
    }
}
