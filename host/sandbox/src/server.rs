//! The sandbox process: it serves one agent until that closes the connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use akri_engine::{
    Cache, Call, ForwardedLine, LoadError, LocalComponent, LocalHost, LocalHostConfig, LogLine, MODULES_DIR, Rates,
};
use akri_model::property::Resolved;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::confine::confine_worker;

use super::frame;
use super::protocol::{
    Arguments, Bounded, CacheEntries, Failure, LARGEST_REPLY, LARGEST_REQUEST, Line, LoadFailure, LoadedComponent,
    ProtocolError, Reply, Request, decode, encode, encode_devices, number_of, split,
};

/// Budgets that are remembered; there is one for each Configuration.
const RATES: usize = 16_384;

/// Devices that are sent at once: the agent decodes them while the next are encoded.
const PART: usize = 512;

/// Bytes of all frames of an answer. The agent takes more, for the error in place of a larger one and for what it counts besides.
pub(super) const LARGEST_ANSWER: usize = LARGEST_REPLY - (64 << 10);

/// Log lines of a call that wait to be sent. A guest writes them faster than the agent reads.
const LINES: usize = 512;

/// The settings of a sandbox process.
#[derive(Debug, Clone)]
pub struct SandboxSettings {
    /// The directory of compiled components.
    pub compiled: PathBuf,
    /// The mount point of sysfs.
    pub sysfs: PathBuf,
    /// udev's database.
    pub udev_data: PathBuf,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// Confines this process, and serves the agent at the other end of standard input until that closes it. It has to be called
/// before any thread was started.
///
/// # Errors
/// If the process can't be confined, if the engine can't be set up, or if the agent sends what is no request.
pub fn serve_standard_input(settings: SandboxSettings) -> Result<(), String> {
    close_inherited().map_err(|error| format!("cannot close what was inherited: {error}"))?;
    let stream: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let stream = StdStream::from(stream);
    let SandboxSettings { compiled, sysfs, udev_data, memory_bytes } = settings;
    let modules = compiled.join(MODULES_DIR);
    let authorities: Vec<PathBuf> =
        ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let mut readable = vec![modules.as_path(), &sysfs, &udev_data];
    readable.extend(authorities.iter().map(PathBuf::as_path));
    confine_worker(&readable, memory_bytes)?;
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
    let server = Arc::new(Server {
        host,
        largest_answer,
        replies: tokio::sync::Mutex::new(replies),
        components: Mutex::default(),
        calls: Mutex::default(),
        listeners: Mutex::default(),
        rates: Mutex::default(),
    });
    while let Some(frame) = frame::read(&mut requests, LARGEST_REQUEST).await? {
        let (request, payload) = decode::<Request>(&frame).map_err(io::Error::other)?;
        server.begin(request, payload);
    }
    lock(&server.listeners).clear();
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
    written: mpsc::Receiver<Line>,
    /// The number of those beyond a limit.
    dropped: Arc<AtomicU64>,
}

/// A listener; its task ends with it.
struct ServedListener {
    next: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for ServedListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    fn begin(self: &Arc<Self>, request: Request, payload: &[u8]) {
        match request {
            Request::Load { call, component } => {
                let (server, bytes) = (Arc::clone(self), payload.to_vec());
                tokio::spawn(async move { server.load(call, component, bytes).await });
            }
            Request::Unload { component } => drop(lock(&self.components).remove(&component)),
            Request::Validate { call, component, arguments } => {
                let (server, cancelled) = (Arc::clone(self), self.register(call));
                tokio::spawn(async move { server.validate(call, component, *arguments, cancelled).await });
            }
            Request::Discover { call, component, arguments } => {
                let (server, cancelled) = (Arc::clone(self), self.register(call));
                tokio::spawn(async move { server.discover(call, component, *arguments, cancelled).await });
            }
            Request::Cancel { call } => drop(lock(&self.calls).remove(&call)),
            Request::Join { listener, group, interfaces, filters } => {
                self.join(listener, group, &interfaces.0, filters.0)
            }
            Request::Listen { listener } => {
                if let Some(served) = lock(&self.listeners).get(&listener) {
                    served.next.notify_one();
                }
            }
            Request::Leave { listener } => drop(lock(&self.listeners).remove(&listener)),
        }
    }

    fn register(&self, call: u64) -> oneshot::Receiver<()> {
        let (cancel, cancelled) = oneshot::channel();
        lock(&self.calls).insert(call, cancel);
        cancelled
    }

    async fn load(&self, call: u64, component: u64, bytes: Vec<u8>) {
        let result = match self.host.load(bytes).await {
            Ok(loaded) => {
                let about = LoadedComponent {
                    description: loaded.description().clone(),
                    exported: loaded.exported().to_owned(),
                    imports: loaded.imports().iter().cloned().collect(),
                };
                lock(&self.components).insert(component, loaded);
                Ok(about)
            }
            Err(LoadError::Describe(error)) => Err(LoadFailure::Describe(error.into())),
            Err(error) => Err(LoadFailure::Other(error.to_string())),
        };
        let reply = encode(&Reply::Loaded { call, result }, &[]);
        let failed = |why| Reply::Loaded { call, result: Err(LoadFailure::Other(why)) };
        self.answer(std::iter::once(reply), failed).await;
    }

    async fn validate(&self, call: u64, component: u64, arguments: Arguments, cancelled: oneshot::Receiver<()>) {
        let (arguments, lines) = self.arguments(arguments);
        let rates = arguments.rates.clone();
        let result = match self.component(component) {
            Ok(component) => self.run(call, lines, component.validate_here(arguments), cancelled).await,
            Err(error) => Err(error),
        };
        let (result, ticks) = (result.map(Bounded), rates.take_ticks());
        let reply = encode(&Reply::Validated { call, result, ticks }, &[]);
        let failed = |why| Reply::Validated { call, result: Err(Failure::LimitExceeded(why)), ticks };
        self.answer(std::iter::once(reply), failed).await;
    }

    async fn discover(&self, call: u64, component: u64, arguments: Arguments, cancelled: oneshot::Receiver<()>) {
        let (arguments, lines) = self.arguments(arguments);
        let (rates, cache) = (arguments.rates.clone(), arguments.cache.clone());
        let before = cache.entries();
        let result = match self.component(component) {
            Ok(component) => self.run(call, lines, component.discover_here(arguments), cancelled).await,
            Err(error) => Err(error),
        };
        let cache = Some(cache.entries()).filter(|after| !Arc::ptr_eq(after, &before)).map(CacheEntries);
        let (result, devices) = match result {
            Ok(set) => {
                let (found, devices) = split(set);
                (Ok(Box::new(found)), devices)
            }
            Err(failure) => (Err(failure), Vec::new()),
        };
        let (earlier, last) = devices.split_at(devices.len().saturating_sub(1) / PART * PART);
        let ticks = rates.take_ticks();
        let reply = Reply::Discovered { call, result, cache, ticks };
        let parts = earlier.chunks(PART).map(|part| encode_devices(&Reply::Devices { call }, part));
        let frames = parts.chain(std::iter::once_with(|| encode_devices(&reply, last)));
        let failed = |why| Reply::Discovered { call, result: Err(Failure::LimitExceeded(why)), cache: None, ticks };
        self.answer(frames, failed).await;
    }

    fn component(&self, component: u64) -> Result<LocalComponent, Failure> {
        let known = lock(&self.components).get(&component).cloned();
        known.ok_or_else(|| Failure::Unavailable("the sandbox process does not have the component".to_owned()))
    }

    /// Awaits a call, or its cancellation, and forwards what the guest logs meanwhile.
    async fn run<T>(
        &self,
        call: u64,
        mut lines: CallLines,
        work: impl Future<Output = Result<T, akri_model::discovery::RoundError>>,
        mut cancelled: oneshot::Receiver<()>,
    ) -> Result<T, Failure> {
        let mut work = Box::pin(work);
        let result = loop {
            tokio::select! {
                result = &mut work => break result.map_err(Failure::from),
                _ = &mut cancelled => break Err(Failure::Unavailable("cancelled".to_owned())),
                Some(line) = lines.written.recv() => self.forward(call, line).await,
            }
        };
        drop(work);
        lock(&self.calls).remove(&call);
        // All of it is there before the answer.
        while let Ok(line) = lines.written.try_recv() {
            self.forward(call, line).await;
        }
        let dropped = lines.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            self.forward(call, Line::Dropped(dropped)).await;
        }
        result
    }

    async fn forward(&self, call: u64, line: Line) {
        self.reply(&Reply::Log { call, line }).await;
    }

    /// Converts arguments; also returns the log of the call.
    fn arguments(&self, mut arguments: Arguments) -> (Call, CallLines) {
        let (sender, written) = mpsc::channel(LINES);
        let dropped = Arc::<AtomicU64>::default();
        let lines = CallLines { written, dropped: Arc::clone(&dropped) };
        let rates = {
            let mut rates = lock(&self.rates);
            if rates.len() >= RATES {
                rates.clear();
            }
            rates.entry(arguments.rates).or_default().clone()
        };
        let forward = move |line| {
            let more = match line {
                ForwardedLine::Dropped(count) => count,
                ForwardedLine::Written { line, is_copied } => {
                    let LogLine { level, context, message, is_refusal } = line;
                    let line = Line::Written { level: number_of(level), context, message, is_refusal, is_copied };
                    u64::from(sender.try_send(line).is_err())
                }
            };
            dropped.fetch_add(more, Ordering::Relaxed);
        };
        let cache = Cache::default();
        let secrets = arguments.take_secrets();
        cache.replace(arguments.cache);
        let call = Call {
            subject: arguments.subject,
            details: arguments.details,
            details_json: arguments.details_json,
            properties: Resolved { properties: arguments.properties, secrets },
            grants: arguments.grants,
            limits: arguments.limits,
            cache,
            rates: rates.forwarding(Arc::new(forward)),
            log: None,
            tape: None,
        };
        (call, lines)
    }

    fn join(
        self: &Arc<Self>,
        listener: u64,
        group: std::net::SocketAddr,
        interfaces: &[String],
        filters: Vec<akri_model::datagram::DatagramFilter>,
    ) {
        let mut listening = self.host.listen(group, interfaces, filters);
        let (server, next) = (Arc::downgrade(self), Arc::new(Notify::new()));
        let asked = Arc::clone(&next);
        let task = tokio::spawn(async move {
            loop {
                asked.notified().await;
                listening.received().await;
                let Some(server) = server.upgrade() else { return };
                // A task of its own, since this one may be aborted, and frames are written as a whole.
                tokio::spawn(async move { server.reply(&Reply::Received { listener }).await });
            }
        });
        let served = ServedListener { next, task: task.abort_handle() };
        lock(&self.listeners).insert(listener, served);
    }

    /// Sends the frames of an answer. If they are too large together, the last is what `failed` makes of the reason.
    async fn answer(
        &self,
        frames: impl Iterator<Item = Result<Vec<u8>, ProtocolError>>,
        failed: impl FnOnce(String) -> Reply,
    ) {
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
