//! A connection to one sandbox process: its calls, and what comes of them.

mod pending_call;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use akri_engine::{Rates, event_at};
use akri_model::discovery::RoundError;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::call_log::BoundedLog;
use super::crash_tracker::CrashRecord;
use super::frame;
use super::process::{Fingerprint, Process, ReadablePaths, SandboxProgram};
use super::protocol::{LARGEST_REPLY, Reply, Request, decode, encode, malformed};
use super::standard_error::read_lines;

pub(crate) use self::pending_call::PendingCall;

/// Time in which a process that closed its connection has ended by itself.
const END: Duration = Duration::from_secs(1);

/// A connection to a sandbox process. The process ends when this is dropped.
pub(crate) struct Connection {
    process: Process,
    pub(crate) since: Instant,
    pub(crate) fingerprint: Fingerprint,
    shared: Arc<Shared>,
    next_call: AtomicU64,
}

/// The state that the task of a connection shares with its callers.
struct Shared {
    calls: Mutex<HashMap<u64, WaitingCall>>,
    listeners: Mutex<HashMap<u64, Weak<Notify>>>,
    /// Frames for the task, since callers do not wait for the process to read. There are few: calls have turns, and a listener
    /// sends again only after it received something.
    outgoing: mpsc::UnboundedSender<Zeroizing<Vec<u8>>>,
    /// Set when the process has ended.
    is_closed: watch::Sender<bool>,
}

/// A message of the process.
pub(crate) struct ReceivedReply {
    pub(crate) reply: Reply,
    frame: Vec<u8>,
    payload_start: usize,
}

impl ReceivedReply {
    /// Returns the payload: devices.
    pub(crate) fn payload(&self) -> &[u8] {
        self.frame.get(self.payload_start..).unwrap_or_default()
    }

    /// Returns whether others of the same call follow.
    fn is_part(&self) -> bool {
        matches!(self.reply, Reply::Devices { .. })
    }
}

/// The state of a call that has no answer yet.
struct WaitingCall {
    replies: mpsc::UnboundedSender<Result<ReceivedReply, RoundError>>,
    /// Bytes that were received: all frames of an answer together are bounded as one is.
    bytes: usize,
    context: CallContext,
}

/// The parts of a call that concern its caller. They stay until it has ended in the process, also if the caller is gone.
pub(crate) struct CallContext {
    pub(crate) crashes: Arc<CrashRecord>,
    pub(crate) log: Option<BoundedLog>,
    /// Turns, which others get when the call has ended.
    pub(crate) _permits: Vec<OwnedSemaphorePermit>,
}

impl Connection {
    /// Starts a process, and the task of its connection. Its log lines count against the budget of `rates`.
    pub(crate) fn open(
        name: &str,
        program: &SandboxProgram,
        paths: &ReadablePaths,
        rates: Rates,
    ) -> io::Result<Arc<Self>> {
        let fingerprint = paths.fingerprint();
        let (process, stream, errors) = Process::start(program, paths)?;
        let (sandbox, pid) = (name.to_owned(), process.pid);
        info!(sandbox, pid, "sandbox process started");
        tokio::spawn(read_lines(errors, rates, move |level, line| {
            event_at!(level, target: "akri::sandbox", sandbox, pid, "{line}");
        }));
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (outgoing, frames) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(outgoing));
        let ended = process.ended();
        let connection = Arc::new(Self {
            process,
            since: Instant::now(),
            fingerprint,
            shared: Arc::clone(&shared),
            next_call: AtomicU64::new(1),
        });
        tokio::spawn(serve(stream, frames, shared, Arc::downgrade(&connection), ended));
        Ok(connection)
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.shared.is_closed.borrow()
    }

    /// Returns a number for a new call.
    pub(crate) fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins a call. If it has no answer after `time`, the process is killed.
    pub(crate) fn call(
        self: &Arc<Self>,
        call: u64,
        frame: Vec<u8>,
        context: CallContext,
        time: Duration,
    ) -> Result<PendingCall, RoundError> {
        let (sender, replies) = mpsc::unbounded_channel();
        self.shared.calls.lock().insert(call, WaitingCall { replies: sender, bytes: 0, context });
        let kill_at = tokio::time::Instant::now() + time;
        let pending = PendingCall { connection: Arc::clone(self), call, replies, kill_at, is_running: true };
        if self.is_closed() {
            self.shared.calls.lock().remove(&call);
            return Err(RoundError::Unavailable("the sandbox process has just ended".to_owned()));
        }
        self.shared.write(frame);
        Ok(pending)
    }

    /// Ends the process. Its calls fail as `how` says.
    fn kill(&self, how: &str, is_known: bool) {
        self.process.kill();
        // Not only once the stream has ended: another process may hold its other end.
        self.shared.close(Some(how), is_known);
    }

    /// Sends a request that has no answer of its own. It may be lost when the process ends.
    pub(crate) fn send(&self, request: &Request) {
        if let Ok(frame) = encode(request, &[]) {
            self.shared.write(frame);
        }
    }

    /// Registers a listener, which is woken when a datagram was received.
    pub(crate) fn subscribe(&self, listener: u64, wake: &Arc<Notify>) {
        self.shared.listeners.lock().insert(listener, Arc::downgrade(wake));
    }

    pub(crate) fn unsubscribe(&self, listener: u64) {
        self.shared.listeners.lock().remove(&listener);
    }

    /// Waits until the process has ended, without keeping it.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<> {
        let mut is_closed = self.shared.is_closed.subscribe();
        async move {
            let _ = is_closed.wait_for(|is_closed| *is_closed).await; // an error says the same
        }
    }
}

impl Shared {
    fn new(outgoing: mpsc::UnboundedSender<Zeroizing<Vec<u8>>>) -> Self {
        Self { calls: Mutex::default(), listeners: Mutex::default(), outgoing, is_closed: watch::Sender::default() }
    }

    /// Sends a frame by the connection's task. It is lost if the process has ended, which the reader notices.
    fn write(&self, frame: Vec<u8>) {
        let _ = self.outgoing.send(Zeroizing::new(frame));
    }

    fn dispatch(&self, frame: Vec<u8>) -> io::Result<()> {
        let (reply, payload) = decode::<Reply>(&frame)?;
        let payload_start = frame.len() - payload.len();
        match reply {
            Reply::Log { call, line } => {
                if let Some(log) = self.calls.lock().get_mut(&call).and_then(|waiting| waiting.context.log.as_mut()) {
                    log.write(line);
                }
                Ok(())
            }
            Reply::Received { listener } => {
                if let Some(wake) = self.listeners.lock().get(&listener).and_then(Weak::upgrade) {
                    wake.notify_one();
                }
                Ok(())
            }
            Reply::Devices { call }
            | Reply::Loaded { call, .. }
            | Reply::Validated { call, .. }
            | Reply::Discovered { call, .. } => self.pass_on(call, ReceivedReply { reply, frame, payload_start }),
        }
    }

    /// Passes a reply on to the caller. A reply that was not requested, or whose caller has gone, is dropped.
    fn pass_on(&self, call: u64, received: ReceivedReply) -> io::Result<()> {
        let mut calls = self.calls.lock();
        let Some(waiting) = calls.get_mut(&call) else { return Ok(()) };
        waiting.bytes = waiting.bytes.saturating_add(received.frame.len() + size_of::<ReceivedReply>());
        // While it is on the list: it counts as running when the process is ended for this.
        if waiting.bytes > LARGEST_REPLY {
            return Err(malformed("too many bytes of devices"));
        }
        let is_part = received.is_part();
        let _ = waiting.replies.send(Ok(received)); // the caller may be gone
        if !is_part {
            calls.remove(&call);
        }
        Ok(())
    }

    /// Ends the calls: the process has ended, and if not because nothing needs it, then `how`. The only call in it is the one that has
    /// ended it, unless another is known to have.
    fn close(&self, how: Option<&str>, is_known: bool) {
        self.is_closed.send_replace(true);
        let calls: Vec<WaitingCall> = self.calls.lock().drain().map(|(_, waiting)| waiting).collect();
        let is_alone = calls.len() == 1 && !is_known;
        for waiting in calls {
            let error = how.map_or_else(ended, |how| {
                waiting.context.crashes.process_exited();
                let message = format!("the sandbox process ended {how} while the handler ran in it");
                if is_alone { RoundError::ProcessEnded(message) } else { RoundError::Unavailable(message) }
            });
            let _ = waiting.replies.send(Err(error)); // the caller may be gone
        }
    }
}

fn ended() -> RoundError {
    RoundError::Unavailable("the sandbox process has ended".to_owned())
}

/// Writes frames until the stream fails, which the reader notices, too.
async fn write_frames(mut stream: OwnedWriteHalf, mut frames: mpsc::UnboundedReceiver<Zeroizing<Vec<u8>>>) {
    while let Some(frame) = frames.recv().await {
        if stream.write_all(&frame).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

/// Reads until the stream ends.
async fn dispatch_frames(stream: &mut (impl AsyncRead + Unpin), shared: &Shared) -> io::Result<()> {
    while let Some(mut frame) = frame::read(stream, LARGEST_REPLY).await? {
        // Not overwritten: what a handler caches, it may also return.
        shared.dispatch(std::mem::take(&mut *frame))?;
    }
    Ok(())
}

/// The task of a connection: it reads all replies, and writes what callers send.
async fn serve(
    stream: UnixStream,
    frames: mpsc::UnboundedReceiver<Zeroizing<Vec<u8>>>,
    shared: Arc<Shared>,
    connection: Weak<Connection>,
    process_ended: impl Future<Output = String>,
) {
    let error = {
        let (replies, requests) = stream.into_split();
        let mut replies = BufReader::new(replies); // a small frame is read at once
        let read = dispatch_frames(&mut replies, &shared);
        tokio::pin!(read);
        tokio::select! {
            ended = &mut read => ended.err(),
            () = write_frames(requests, frames) => None,
            // What it has written is read. Another process may hold its end of the stream, and is not waited for.
            _ = process_ended => timeout(END, read).await.ok().and_then(Result::err),
        }
    };
    // Without a connection it was ended by us.
    let Some(connection) = connection.upgrade() else { return shared.close(None, false) };
    // From here on nobody begins a call, and listeners look for the next process.
    shared.is_closed.send_replace(true);
    let process = &connection.process;
    if error.is_some() || timeout(END, process.ended()).await.is_err() {
        process.kill();
    }
    let ended = process.ended().await;
    let how = error.map_or_else(|| ended.clone(), |error| format!("{ended} ({error})"));
    warn!(pid = process.pid, "the sandbox process ended {how}");
    shared.close(Some(&how), false);
}

#[cfg(test)]
mod tests;
