//! Keeps one resource registered with the running kubelet.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use akri_grpc::deviceplugin::registration_client::RegistrationClient;
use akri_grpc::unix::{FileId, connect};
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::allocatable::KeptDevices;
use crate::kubelet::{KubeletState, KubeletWatch, SOCKET, Watcher};
use crate::lists::StreamEnd;
use crate::resource::Resource;
use crate::server::Server;
use crate::socket::Sockets;
use crate::{Kubelet, RegistrationCounts, convert, set_kubelet};

/// Maximum number of concurrent registrations.
const MAX_CONCURRENT: usize = 16;
/// Timeout of a registration; the kubelet dials back before it answers, with a timeout of 10 s.
const REGISTER: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("can't reach the kubelet: {0}")]
    Connect(io::Error),
    #[error("{0}")]
    Failed(String),
}

/// The state shared by all plugins.
pub(super) struct PluginContext {
    sockets: Arc<Sockets>,
    watch: KubeletWatch,
    kept: Arc<KeptDevices>,
    pub(super) counts: watch::Sender<RegistrationCounts>,
    registrations: Counter,
    permits: Semaphore,
    /// The connection that registrations under way share, and the socket that it was made to.
    connection: tokio::sync::Mutex<Weak<(Option<FileId>, Channel)>>,
    /// Set if a failure was logged since the last success: a failing kubelet fails for every resource at once.
    failure_logged: AtomicBool,
}

impl PluginContext {
    pub(super) fn new(kubelet_dir: &Path, registrations: Counter) -> Self {
        let sockets = Arc::new(Sockets::new(kubelet_dir.join("device-plugins")));
        let counts = watch::Sender::default();
        Self {
            watch: Watcher::start(Arc::clone(&sockets), counts.clone()),
            sockets,
            kept: Arc::new(KeptDevices::new(kubelet_dir.to_owned())),
            counts,
            registrations,
            permits: Semaphore::new(MAX_CONCURRENT),
            connection: tokio::sync::Mutex::default(),
            failure_logged: AtomicBool::new(false),
        }
    }

    /// Binds, serves and registers a resource; returns the kubelet it was registered with. Serving comes first: the
    /// kubelet dials back before it answers.
    async fn register(&self, resource: &Arc<dyn Resource>) -> Result<(Server, Option<FileId>), Error> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let dir = &self.sockets.dir;
        let connection = self.connect().await.map_err(Error::Connect)?;
        let (id, kubelet) = (connection.0, connection.1.clone());
        let server = Server::start(&self.sockets, &self.kept, Arc::clone(resource))
            .map_err(|error| Error::Failed(format!("can't serve in {}: {error}", dir.display())))?;
        let request = convert::register_request(resource.name(), &server.socket.name);
        let failed = match timeout(REGISTER, RegistrationClient::new(kubelet).register(request)).await {
            Ok(Ok(_)) => {
                self.failure_logged.store(false, Ordering::Relaxed);
                set_kubelet(&self.counts, Kubelet::Listens);
                server.registered();
                return Ok((server, id));
            }
            Ok(Err(status)) => format!("the kubelet refused: {}", status.message()),
            Err(_) => {
                set_kubelet(&self.counts, Kubelet::Silent);
                format!("the kubelet did not answer within {REGISTER:?}")
            }
        };
        server.close(StreamEnd::Silent).await;
        Err(Error::Failed(failed))
    }

    /// Connects to the kubelet, unless another registration is connected to it. A connection does not outlive these: the kubelet has no
    /// use for one at rest.
    async fn connect(&self) -> io::Result<Arc<(Option<FileId>, Channel)>> {
        let mut shared = self.connection.lock().await;
        let socket = self.sockets.dir.join(SOCKET);
        let id = FileId::of_socket(&socket);
        if let Some(connection) = shared.upgrade().filter(|connection| connection.0 == id) {
            return Ok(connection);
        }
        let connection = Arc::new((id, connect(&socket).await?));
        *shared = Arc::downgrade(&connection);
        Ok(connection)
    }

    fn failed(&self, resource: &str, error: &Error) {
        if matches!(error, Error::Connect(_)) {
            // The watcher checks the kubelet and logs its absence once for all resources.
            self.watch.recheck.notify_one();
        } else if !self.failure_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(resource, %error, "registration failed; retrying, further failures are logged at debug level");
            return;
        }
        tracing::debug!(resource, %error, "registration failed");
    }
}

/// Increments one of the [`RegistrationCounts`] while it lives.
struct Count<'c>(&'c watch::Sender<RegistrationCounts>, fn(&mut RegistrationCounts) -> &mut usize);

impl<'c> Count<'c> {
    fn up(counts: &'c watch::Sender<RegistrationCounts>, which: fn(&mut RegistrationCounts) -> &mut usize) -> Self {
        counts.send_modify(|counts| *which(counts) += 1);
        Self(counts, which)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|counts| *(self.1)(counts) -= 1);
    }
}

/// The signals that end a plugin. Only an explicit close makes the kubelet forget the devices: a task that stops or
/// panics keeps them.
struct EndSignals {
    ended: Option<StreamEnd>,
    close: oneshot::Receiver<()>,
    shutdown: watch::Receiver<bool>,
}

impl EndSignals {
    /// Waits for the end of the plugin. Once it has returned, it returns at once.
    async fn wait(&mut self) -> StreamEnd {
        if let Some(end) = self.ended {
            return end;
        }
        let removed = tokio::select! {
            biased;
            closed = &mut self.close => closed.is_ok(),
            _ = self.shutdown.wait_for(|shutdown| *shutdown) => false,
        };
        *self.ended.insert(if removed { StreamEnd::Empty } else { StreamEnd::Silent })
    }
}

/// The task that keeps one resource registered.
pub(super) struct Registration {
    common: Arc<PluginContext>,
    resource: Arc<dyn Resource>,
    state: watch::Receiver<KubeletState>,
    ending: EndSignals,
}

impl Registration {
    pub(super) fn new(
        common: Arc<PluginContext>,
        resource: Arc<dyn Resource>,
        close: oneshot::Receiver<()>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let state = common.watch.state.clone();
        let ending = EndSignals { ended: None, close, shutdown };
        Self { common, resource, state, ending }
    }

    /// Runs until its plugin or the agent ends.
    pub(super) async fn run(mut self) {
        let common = Arc::clone(&self.common);
        let _wanted = Count::up(&common.counts, |counts| &mut counts.wanted);
        let mut backoff = Backoff::new(RetryPolicy::REGISTRATION);
        while let kubelet @ Some(_) = self.kubelet().await {
            let registered = tokio::select! {
                biased;
                _ = self.ending.wait() => return,
                registered = Box::pin(common.register(&self.resource)) => registered, // a task that rests is small
            };
            match registered {
                Ok((server, kubelet)) => {
                    backoff.reset();
                    common.registrations.inc();
                    let registered = Count::up(&common.counts, |counts| &mut counts.registered);
                    let end = self.wait_until_void(&server, kubelet).await;
                    drop(registered);
                    server.close(end.unwrap_or(StreamEnd::Silent)).await;
                    if end.is_some() {
                        return;
                    }
                }
                Err(error) => {
                    common.failed(self.resource.name(), &error);
                    self.wait(backoff.failed(jitter()), kubelet).await;
                }
            }
        }
    }

    /// Waits for a kubelet; returns `None` when the plugin ends.
    async fn kubelet(&mut self) -> Option<FileId> {
        tokio::select! {
            biased;
            _ = self.ending.wait() => None,
            seen = self.state.wait_for(|state| state.kubelet.is_some()) => seen.ok()?.kubelet,
        }
    }

    /// Waits until a registration is void. Returns the reason if the plugin ends, `None` if the kubelet restarted, the
    /// socket was lost or the kubelet closed its stream.
    async fn wait_until_void(&mut self, server: &Server, kubelet: Option<FileId>) -> Option<StreamEnd> {
        let state = &mut self.state;
        let again = async {
            // Check first: the kubelet may have stopped during the registration.
            while !server.socket.file.is_lost() && !is_other(state.borrow_and_update().kubelet, kubelet) {
                if state.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            end = self.ending.wait() => Some(end),
            () = again => None,
            () = server.stream_missing() => None,
        }
    }

    /// Waits for the pause, the end of the plugin or another kubelet.
    async fn wait(&mut self, pause: Duration, kubelet: Option<FileId>) {
        tokio::select! {
            _ = self.ending.wait() => {}
            _ = self.state.wait_for(|state| is_other(state.kubelet, kubelet)) => {}
            () = sleep(pause) => {}
        }
    }
}

/// Returns whether there is a kubelet other than this one.
fn is_other(now: Option<FileId>, kubelet: Option<FileId>) -> bool {
    now.is_some() && now != kubelet
}
