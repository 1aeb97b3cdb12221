//! The sandbox process: it serves one agent until that closes the connection.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use akri_engine::{Cache, Call, ForwardedLine, LocalComponent, LocalHost, LocalHostConfig, MODULES_DIR, Rates};
use akri_model::datagram::DatagramFilter;
use akri_model::discovery::RoundError;
use akri_model::property::Resolved;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::confine::confine_worker;
use crate::process::ReadablePaths;

use super::frame;
use super::protocol::{
    Arguments, CacheEntries, Export, LARGEST_REPLY, LARGEST_REQUEST, LoadedComponent, Reply, Request, decode, encode,
    encode_devices,
};

/// Budgets that are remembered; there is one for each Configuration.
const RATES: usize = 16_384;

/// Devices that are sent at once: the agent decodes them while the next are encoded.
const PART: usize = 512;

/// Bytes of all frames of an answer. The agent takes more, for the error in place of a larger one and for what it counts besides.
pub(super) const LARGEST_ANSWER: usize = LARGEST_REPLY - (64 << 10);

/// Log lines of a call that wait to be sent. A guest writes them faster than the agent reads.
const LINES: usize = 512;

/// Confines this process to its paths and so many bytes of memory, and serves the agent at the other end of standard input until that closes it. It has to be called
/// before any thread was started.
///
/// # Errors
/// If the process can't be confined, if the engine can't be set up, or if the agent sends what is no request.
pub fn serve_standard_input(paths: ReadablePaths, memory_bytes: u64) -> Result<(), String> {
    close_inherited().map_err(|error| format!("cannot close what was inherited: {error}"))?;
    let stream: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let stream = StdStream::from(stream);
    let ReadablePaths { compiled, sysfs, udev_data } = paths;
    let modules = compiled.join(MODULES_DIR);
    confine_worker(&[&modules, &sysfs, &udev_data], memory_bytes)?;
    let config = LocalHostConfig { cache_dir: Some(compiled), sysfs, udev_data };
    let host = LocalHost::new(config).map_err(|error| error.to_string())?;
    let guests = host.clone();
    // On the guests' threads: a call that comes in runs where it was read, and is answered from there.
    let served = host.block_on(async move {
        stream.set_nonblocking(true)?;
        serve(UnixStream::from_std(stream)?, guests, LARGEST_ANSWER).await
    });
    served.map_err(|error| error.to_string())?.map_err(|error| format!("the agent's request can't be read: {error}"))
}

/// Closes all files but the standard ones: the agent may itself have inherited some.
fn close_inherited() -> io::Result<()> {
    let mut open: Vec<i32> = Vec::new();
    for file in std::fs::read_dir("/proc/self/fd")? {
        open.extend(file?.file_name().to_string_lossy().parse::<i32>());
    }
    for file in open.into_iter().filter(|file| *file > 2) {
        let _ = nix::unistd::close(file); // the directory that was read is closed already
    }
    Ok(())
}

/// Serves requests until the stream ends. An answer of more than `largest_answer` bytes is an error.
pub(super) async fn serve(stream: UnixStream, host: LocalHost, largest_answer: usize) -> io::Result<()> {
    let (mut requests, replies) = stream.into_split();
    let replies = tokio::sync::Mutex::new(replies);
    let (components, calls, listeners, rates) = Default::default();
    let server = Arc::new(Server { host, largest_answer, replies, components, calls, listeners, rates });
    while let Some(frame) = frame::read(&mut requests, LARGEST_REQUEST).await? {
        let (request, payload) = decode::<Request>(&frame)?;
        server.begin(request, payload);
    }
    server.listeners.lock().clear();
    Ok(())
}

struct Server {
    host: LocalHost,
    largest_answer: usize,
    /// Each frame is written as a whole: tasks that write are never aborted.
    replies: tokio::sync::Mutex<OwnedWriteHalf>,
    components: Mutex<HashMap<u64, LocalComponent>>,
    /// Calls under way; the end of the sender cancels one.
    calls: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    listeners: Mutex<HashMap<u64, ServedListener>>,
    rates: Mutex<HashMap<u64, Rates>>,
}

/// The log lines of a call.
struct CallLines {
    written: mpsc::Receiver<ForwardedLine>,
    /// The number of those beyond a limit.
    dropped: Arc<AtomicU64>,
}

/// A listener; its task ends with it.
struct ServedListener {
    next: Arc<Notify>,
    _task: JoinSet<()>,
}

impl Server {
    fn begin(self: &Arc<Self>, request: Request, payload: &[u8]) {
        match request {
            Request::Load { call, component } => {
                let (server, bytes) = (Arc::clone(self), payload.to_vec());
                tokio::spawn(async move { server.load(call, component, bytes).await });
            }
            Request::Unload { component } => drop(self.components.lock().remove(&component)),
            Request::Call { call, component, export, arguments } => {
                let (cancel, cancelled) = oneshot::channel();
                self.calls.lock().insert(call, cancel);
                let server = Arc::clone(self);
                tokio::spawn(async move {
                    match export {
                        Export::Validate => server.validate(call, component, *arguments, cancelled).await,
                        Export::Discover => server.discover(call, component, *arguments, cancelled).await,
                    }
                });
            }
            Request::Cancel { call } => drop(self.calls.lock().remove(&call)),
            Request::Join { listener, group, interfaces, filters } => self.join(listener, group, &interfaces, filters),
            Request::Listen { listener } => {
                if let Some(served) = self.listeners.lock().get(&listener) {
                    served.next.notify_one();
                }
            }
            Request::Leave { listener } => drop(self.listeners.lock().remove(&listener)),
        }
    }

    async fn load(&self, call: u64, component: u64, bytes: Vec<u8>) {
        let result = self.host.load(bytes).await.map(|loaded| {
            let about = LoadedComponent {
                description: loaded.description().clone(),
                exported: loaded.exported().to_owned(),
                imports: loaded.imports().to_vec(),
            };
            self.components.lock().insert(component, loaded);
            about
        });
        self.reply(&Reply::Loaded { call, result }).await;
    }

    async fn validate(&self, call: u64, component: u64, arguments: Arguments, cancelled: oneshot::Receiver<()>) {
        let (arguments, lines) = self.arguments(arguments);
        let rates = arguments.rates.clone();
        let validate = async { self.component(component)?.validate_here(arguments).await };
        let result = self.run(call, lines, validate, cancelled).await;
        let ticks = rates.take_ticks();
        let reply = encode(&Reply::Validated { call, result, ticks }, &[]);
        let failed = |why| Reply::Validated { call, result: Err(RoundError::LimitExceeded(why)), ticks };
        self.answer(std::iter::once(reply), failed).await;
    }

    async fn discover(&self, call: u64, component: u64, arguments: Arguments, cancelled: oneshot::Receiver<()>) {
        let (arguments, lines) = self.arguments(arguments);
        let (rates, cache) = (arguments.rates.clone(), arguments.cache.clone());
        let before = cache.entries();
        let discover = async { self.component(component)?.discover_here(arguments).await };
        let mut result = self.run(call, lines, discover, cancelled).await.map(Box::new);
        let cache = Some(cache.entries()).filter(|after| !Arc::ptr_eq(after, &before)).map(CacheEntries);
        let found = result.as_mut().map(|set| std::mem::take(&mut set.devices)).unwrap_or_default();
        let (earlier, last) = found.split_at(found.len().saturating_sub(1) / PART * PART);
        let (devices, ticks) = (found.len(), rates.take_ticks());
        let reply = Reply::Discovered { call, devices, result, cache, ticks };
        let parts = earlier.chunks(PART).map(|part| encode_devices(&Reply::Devices { call }, part));
        let frames = parts.chain(std::iter::once_with(|| encode_devices(&reply, last)));
        let failed = |why| {
            let result = Err(RoundError::LimitExceeded(why));
            Reply::Discovered { call, devices: 0, result, cache: None, ticks }
        };
        self.answer(frames, failed).await;
    }

    fn component(&self, component: u64) -> Result<LocalComponent, RoundError> {
        let known = self.components.lock().get(&component).cloned();
        known.ok_or_else(|| RoundError::Unavailable("the sandbox process does not have the component".to_owned()))
    }

    /// Awaits a call, or its cancellation, and forwards what the guest logs meanwhile.
    async fn run<T>(
        &self,
        call: u64,
        mut lines: CallLines,
        work: impl Future<Output = Result<T, RoundError>>,
        mut cancelled: oneshot::Receiver<()>,
    ) -> Result<T, RoundError> {
        let mut work = Box::pin(work);
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = &mut cancelled => break Err(RoundError::Unavailable("cancelled".to_owned())),
                Some(line) = lines.written.recv() => self.forward(call, line).await,
            }
        };
        drop(work);
        self.calls.lock().remove(&call);
        // All of it is there before the answer.
        while let Ok(line) = lines.written.try_recv() {
            self.forward(call, line).await;
        }
        let dropped = lines.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            self.forward(call, ForwardedLine::Dropped(dropped)).await;
        }
        result
    }

    async fn forward(&self, call: u64, line: ForwardedLine) {
        self.reply(&Reply::Log { call, line }).await;
    }

    /// Converts arguments; also returns the log of the call.
    fn arguments(&self, arguments: Arguments) -> (Call, CallLines) {
        let (sender, written) = mpsc::channel(LINES);
        let dropped = Arc::<AtomicU64>::default();
        let lines = CallLines { written, dropped: Arc::clone(&dropped) };
        let rates = {
            let mut rates = self.rates.lock();
            if rates.len() >= RATES {
                rates.clear();
            }
            rates.entry(arguments.rates).or_default().clone()
        };
        let forward = move |line| {
            let more = match line {
                ForwardedLine::Dropped(count) => count,
                written => u64::from(sender.try_send(written).is_err()),
            };
            dropped.fetch_add(more, Ordering::Relaxed);
        };
        let cache = Cache::default();
        cache.replace(arguments.cache);
        let call = Call {
            subject: arguments.subject,
            details: arguments.details,
            details_json: arguments.details_json,
            properties: Resolved { properties: arguments.properties, secrets: arguments.secrets },
            grants: arguments.grants,
            limits: arguments.limits,
            cache,
            rates: rates.forwarding(Arc::new(forward)),
            log: None,
            tape: None,
        };
        (call, lines)
    }

    fn join(self: &Arc<Self>, listener: u64, group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>) {
        let mut listening = self.host.listen(group, interfaces, filters);
        let (server, next) = (Arc::downgrade(self), Arc::new(Notify::new()));
        let requested = Arc::clone(&next);
        let task = async move {
            loop {
                requested.notified().await;
                listening.received().await;
                let Some(server) = server.upgrade() else { return };
                // A task of its own, since this one may be aborted, and frames are written as a whole.
                tokio::spawn(async move { server.reply(&Reply::Received { listener }).await });
            }
        };
        let served = ServedListener { next, _task: JoinSet::from_iter([task]) };
        self.listeners.lock().insert(listener, served);
    }

    /// Sends the frames of an answer. If they are too large together, the last is what `failed` makes of the reason.
    async fn answer(&self, frames: impl Iterator<Item = io::Result<Vec<u8>>>, failed: impl FnOnce(String) -> Reply) {
        let mut left = self.largest_answer;
        for frame in frames {
            let why = match frame {
                Ok(frame) if frame.len() <= left => {
                    left -= frame.len();
                    self.send(&frame).await;
                    continue;
                }
                Ok(_) => format!("the result takes more than {} bytes", self.largest_answer),
                Err(error) => error.to_string(),
            };
            return self.reply(&failed(why)).await;
        }
    }

    /// Sends a short reply.
    async fn reply(&self, reply: &Reply) {
        match encode(reply, &[]) {
            Ok(frame) => self.send(&frame).await,
            Err(error) => tracing::warn!(%error, "a message to the agent could not be written"),
        }
    }

    async fn send(&self, frame: &[u8]) {
        // If the agent has gone, reading ends, too.
        let _ = self.replies.lock().await.write_all(frame).await;
    }
}

#[cfg(test)]
mod tests;
