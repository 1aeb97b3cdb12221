//! A connection to one sandbox process: its calls, and what comes of them.

use std::collections::{HashMap, HashSet};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use akri_engine::{Rates, event_at};
use akri_model::discovery::RoundError;
use tokio::io::{AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};
use zeroize::Zeroizing;

use super::blame::{Blame, Deadly};
use super::call_log::CallLog;
use super::frame;
use super::payload::{EarlierDevices, Payload};
use super::process::{Fingerprint, Process, ReadablePaths, StartedProcess, WorkerProgram};
use super::protocol::{LARGEST_REPLY, ProtocolError, Reply, Request, encode};
use super::standard_error::read_lines;

/// Frames that wait to be written.
const QUEUE: usize = 256;
/// Time in which a process that closed its connection has ended by itself.
const END: Duration = Duration::from_secs(1);
type Frame = Zeroizing<Vec<u8>>;

/// A connection to a sandbox process. The process ends when this is dropped.
pub(super) struct Connection {
    pub(super) process: Process,
    pub(super) since: Instant,
    pub(super) fingerprint: Fingerprint,
    frames: mpsc::Sender<Frame>,
    shared: Arc<Shared>,
    next_call: AtomicU64,
}

/// The state that the reader shares with the callers.
#[derive(Default)]
struct Shared {
    is_closed: AtomicBool,
    calls: Mutex<HashMap<u64, Waiting>>,
    listeners: Mutex<HashMap<u64, Weak<Notify>>>,
    /// The components that were ever loaded here, of which two are enough to know that a component was not alone.
    components: Mutex<HashSet<u64>>,
    /// Wakes listeners and the writer when the process has ended.
    closed: Notify,
}

/// A call that has no answer yet.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    blame: Arc<Blame>,
    deadly: Option<Deadly>,
    log: Option<CallLog>,
    devices: Option<EarlierDevices>,
}

/// The answer to a call.
pub(super) type Answer = Result<(Reply, Payload), RoundError>;

impl Connection {
    /// Starts a process, and tasks for its connection. Its log lines count against the budget of `rates`.
    pub(super) fn open(
        name: &str,
        program: &WorkerProgram,
        paths: &ReadablePaths,
        rates: Rates,
    ) -> std::io::Result<Arc<Self>> {
        let fingerprint = paths.fingerprint();
        let StartedProcess { process, stream, errors } = Process::start(program, paths)?;
        let (sandbox, pid) = (name.to_owned(), process.pid);
        tracing::info!(sandbox, pid, "sandbox process started");
        tokio::spawn(read_lines(errors, rates, move |level, line| {
            event_at!(level, target: "akri::sandbox", sandbox, pid, "{line}");
        }));
        Self::over(process, stream, fingerprint)
    }

    fn over(process: Process, stream: StdStream, fingerprint: Fingerprint) -> std::io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(stream)?.into_split();
        let (frames, queue) = mpsc::channel(QUEUE);
        let shared = Arc::<Shared>::default();
        let connection = Arc::new(Self {
            process,
            since: Instant::now(),
            fingerprint,
            frames,
            shared: Arc::clone(&shared),
            next_call: AtomicU64::new(1),
        });
        let ended = connection.process.ended();
        tokio::spawn(write_frames(write, queue, Arc::clone(&shared)));
        tokio::spawn(read_frames(read, shared, Arc::downgrade(&connection), ended));
        Ok(connection)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire)
    }

    /// Returns a number for a new call.
    pub(super) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request, and waits for the answer until `limit`; then the process is killed.
    pub(super) async fn call(&self, call: u64, frame: Vec<u8>, state: CallState, limit: Duration) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        self.shared.loaded(state.component);
        let _pending = Pending { shared: &self.shared, call };
        self.shared.calls().insert(call, state.waiting(answer));
        let sent = async {
            if self.is_closed() || self.frames.send(Zeroizing::new(frame)).await.is_err() {
                return Err(RoundError::Unavailable("the sandbox process has just ended".to_owned()));
            }
            (&mut answered).await.unwrap_or_else(|_| Err(ended()))
        };
        if let Ok(answer) = timeout(limit, sent).await {
            return answer;
        }
        warn!(pid = self.process.pid, "the sandbox process does not answer; killing it");
        self.process.kill();
        // Not only once the stream has ended: another process may hold its other end.
        self.shared.close(Some("since it did not answer"));
        answered.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Ends the process, since its answer to a call can't be read. Returns the error of the call.
    pub(super) async fn reject(&self, call: u64, state: CallState, error: &ProtocolError) -> RoundError {
        let (answer, answered) = oneshot::channel();
        self.shared.calls().insert(call, state.waiting(answer));
        self.process.kill();
        self.shared.close(Some(&format!("after an answer that can't be read ({error})")));
        answered.await.ok().and_then(Result::err).unwrap_or_else(ended)
    }

    /// Sends a request that has no answer of its own. It may be lost when the process ends.
    pub(super) async fn send(&self, request: &Request) {
        if let Ok(frame) = encode(request, &[]) {
            let _ = self.frames.send(Zeroizing::new(frame)).await;
        }
    }

    /// Sends a request that has no answer without waiting. It is lost if too many requests wait, or when the process ends.
    pub(super) fn try_send(&self, request: &Request) {
        if let Ok(frame) = encode(request, &[]) {
            let _ = self.frames.try_send(Zeroizing::new(frame));
        }
    }

    /// Registers a listener, which is woken when a datagram was received.
    pub(super) fn subscribe(&self, listener: u64, wake: &Arc<Notify>) {
        self.shared.listeners().insert(listener, Arc::downgrade(wake));
    }

    pub(super) fn unsubscribe(&self, listener: u64) {
        self.shared.listeners().remove(&listener);
    }

    /// Waits until the process has ended, without keeping it.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.closed().await }
    }
}

/// Takes a call off the list, also if nobody waits for it any more.
struct Pending<'a> {
    shared: &'a Shared,
    call: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.calls().remove(&self.call);
    }
}

fn ended() -> RoundError {
    RoundError::Unavailable("the sandbox process has ended".to_owned())
}

/// The state of a call while it waits.
pub(super) struct CallState {
    pub(super) component: u64,
    pub(super) blame: Arc<Blame>,
    pub(super) deadly: Option<Deadly>,
    pub(super) log: Option<CallLog>,
}

impl CallState {
    fn waiting(self, answer: oneshot::Sender<Answer>) -> Waiting {
        Waiting { answer, blame: self.blame, deadly: self.deadly, log: self.log, devices: None }
    }
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<u64, Weak<Notify>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a component may run in this process.
    fn loaded(&self, component: u64) {
        let mut components = self.components.lock().unwrap_or_else(PoisonError::into_inner);
        if components.len() < 2 {
            components.insert(component);
        }
    }

    /// Waits until the process has ended.
    async fn closed(&self) {
        loop {
            let closed = self.closed.notified();
            tokio::pin!(closed);
            closed.as_mut().enable();
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            closed.await;
        }
    }

    fn dispatch(&self, frame: Vec<u8>) -> Result<(), ProtocolError> {
        let (reply, payload) = super::protocol::decode::<Reply>(&frame)?;
        let start = frame.len() - payload.len();
        match reply {
            Reply::Log { call, line } => {
                if let Some(log) = self.calls().get_mut(&call).and_then(|waiting| waiting.log.as_mut()) {
                    log.write(line);
                }
            }
            Reply::Devices { call } => {
                if let Some(waiting) = self.calls().get_mut(&call) {
                    let devices = waiting.devices.get_or_insert_with(EarlierDevices::start);
                    devices.add(Payload { frame, start, earlier: None })?;
                }
            }
            Reply::Received { listener } => {
                if let Some(wake) = self.listeners().get(&listener).and_then(Weak::upgrade) {
                    wake.notify_one();
                }
            }
            Reply::Loaded { call, .. } | Reply::Validated { call, .. } | Reply::Discovered { call, .. } => {
                // One that was never asked, or that nobody waits for, is dropped.
                // While it is on the list: the call is to blame for what goes beyond.
                if let Some(devices) = self.calls().get_mut(&call).and_then(|waiting| waiting.devices.as_mut()) {
                    devices.count(frame.len())?;
                }
                if let Some(waiting) = self.calls().remove(&call) {
                    let _ = waiting.answer.send(Ok((reply, Payload { frame, start, earlier: waiting.devices })));
                }
            }
        }
        Ok(())
    }

    /// The process has ended, and if not by the agent, then `how`: so have its calls.
    ///
    /// A component is to blame for sure only if no other was ever in the process: one may have ended it that has no call.
    fn close(&self, how: Option<&str>) {
        self.is_closed.store(true, Ordering::Release);
        let calls: Vec<Waiting> = self.calls().drain().map(|(_, waiting)| waiting).collect();
        let mut blamed: Vec<&Arc<Blame>> = Vec::new();
        for waiting in calls.iter().filter(|_| how.is_some()) {
            if !blamed.iter().any(|other| Arc::ptr_eq(other, &waiting.blame)) {
                blamed.push(&waiting.blame);
            }
        }
        let is_alone = self.components.lock().unwrap_or_else(PoisonError::into_inner).len() == 1;
        let (how, now) = (how.unwrap_or_default(), Instant::now());
        let errors: Vec<(*const Blame, RoundError)> = blamed
            .into_iter()
            .map(|blame| {
                let of = calls.iter().find(|waiting| Arc::ptr_eq(&waiting.blame, blame));
                let deadly = of.and_then(|waiting| waiting.deadly.as_ref());
                (Arc::as_ptr(blame), blame.died(is_alone, how, deadly, now))
            })
            .collect();
        for waiting in calls {
            let error = errors.iter().find(|(blame, _)| *blame == Arc::as_ptr(&waiting.blame));
            let error = error.map(|(_, error)| error.clone());
            let _ = waiting.answer.send(Err(error.unwrap_or_else(ended)));
        }
        self.closed.notify_waiters();
    }
}

async fn write_frames(mut stream: OwnedWriteHalf, mut frames: mpsc::Receiver<Frame>, shared: Arc<Shared>) {
    let write = async {
        while let Some(frame) = frames.recv().await {
            if stream.write_all(&frame).await.is_err() {
                return; // the reader notices, too
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = shared.closed() => {}
    }
}

/// Reads until the stream ends; returns the error if it does not end well.
async fn dispatch_frames(stream: &mut (impl AsyncRead + Unpin), shared: &Shared) -> Option<String> {
    loop {
        match frame::read(stream, LARGEST_REPLY).await {
            Ok(Some(mut frame)) => {
                // Not overwritten: what a handler caches, it may also return.
                if let Err(error) = shared.dispatch(std::mem::take(&mut *frame)) {
                    return Some(error.to_string());
                }
            }
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

async fn read_frames(
    stream: OwnedReadHalf,
    shared: Arc<Shared>,
    connection: Weak<Connection>,
    ended: impl Future<Output = String>,
) {
    let mut stream = BufReader::new(stream); // a small frame is read at once
    let error = {
        let read = dispatch_frames(&mut stream, &shared);
        tokio::pin!(read);
        tokio::select! {
            error = &mut read => error,
            // What it has written is read. Another process may hold its end of the stream, and is not waited for.
            _ = ended => timeout(END, read).await.unwrap_or_default(),
        }
    };
    drop(stream);
    shared.is_closed.store(true, Ordering::Release);
    // Without a connection it was ended by us.
    let Some(connection) = connection.upgrade() else { return shared.close(None) };
    let process = &connection.process;
    if error.is_some() || timeout(END, process.ended()).await.is_err() {
        process.kill();
    }
    let ended = process.ended().await;
    let how = error.map_or_else(|| ended.clone(), |error| format!("{ended} ({error})"));
    warn!(pid = process.pid, "the sandbox process ended {how}");
    shared.close(Some(&how));
}

impl Drop for Connection {
    fn drop(&mut self) {
        debug!(pid = self.process.pid, "ending the sandbox process");
    }
}

#[cfg(test)]
mod tests;
