//! Keeps one resource registered with whatever kubelet is there.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use akri_grpc::deviceplugin::registration_client::RegistrationClient;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::kubelet::{SOCKET, Sight, Watch};
use super::lists::End;
use super::resource::{Advertised, Resource};
use super::server::Server;
use super::socket::{FileId, Sockets};
use super::{Registered, channel, convert};
use crate::metrics::Metrics;

/// How many registrations may be under way at once.
const AT_ONCE: usize = 16;
/// How long the kubelet may take to answer; it dials back meanwhile, for which it gives itself 10 s.
const REGISTER: Duration = Duration::from_secs(10);
/// The first and the longest pause after a registration that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("can't serve in {}: {error}", dir.display())]
    Serve { dir: PathBuf, error: io::Error },
    #[error("can't reach the kubelet: {0}")]
    Connect(io::Error),
    #[error("the kubelet refused: {}", .0.message())]
    Refused(Box<tonic::Status>),
    #[error("the kubelet did not answer within {REGISTER:?}")]
    Timeout,
}

/// What all resources have in common.
pub(super) struct Common {
    sockets: Arc<Sockets>,
    watch: Watch,
    pub(super) counts: watch::Sender<Registered>,
    metrics: Metrics,
    permits: Semaphore,
    /// Whether a failure was logged since the last success: when the kubelet fails, it fails for a thousand at once.
    complained: AtomicBool,
}

impl Common {
    pub(super) fn new(sockets: Arc<Sockets>, watch: Watch, metrics: Metrics) -> Self {
        let counts = watch::Sender::new(Registered::default());
        Self { sockets, watch, counts, metrics, permits: Semaphore::new(AT_ONCE), complained: AtomicBool::new(false) }
    }

    /// Binds, serves and registers; says with which kubelet. The order is the kubelet's: it dials back before it answers.
    async fn register(&self, resource: &Arc<dyn Resource>) -> Result<(Server, Option<FileId>), Error> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let dir = self.sockets.dir();
        let id = FileId::of_socket(&dir.join(SOCKET));
        let kubelet = channel::connect(&dir.join(SOCKET)).await.map_err(Error::Connect)?;
        let server = Server::start(&self.sockets, Arc::clone(resource))
            .map_err(|error| Error::Serve { dir: dir.to_owned(), error })?;
        let request = convert::register_request(resource.name(), server.name());
        let failed = match timeout(REGISTER, RegistrationClient::new(kubelet).register(request)).await {
            Ok(Ok(_)) => {
                self.complained.store(false, Ordering::Relaxed);
                server.registered();
                return Ok((server, id));
            }
            Ok(Err(status)) => Error::Refused(Box::new(status)),
            Err(_) => Error::Timeout,
        };
        server.close(End::Silent).await;
        Err(failed)
    }

    fn failed(&self, resource: &str, error: &Error) {
        if matches!(error, Error::Connect(_)) {
            // The watcher looks for itself and says so, once for all.
            self.watch.doubt.notify_one();
        } else if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(resource, %error, "not registered; trying again, and so with others that may fail like this");
            return;
        }
        tracing::debug!(resource, %error, "not registered");
    }
}

/// One of the counts of [`Registered`], one up for as long as this lives.
struct Count<'c>(&'c watch::Sender<Registered>, fn(&mut Registered) -> &mut usize);

impl<'c> Count<'c> {
    fn up(counts: &'c watch::Sender<Registered>, which: fn(&mut Registered) -> &mut usize) -> Self {
        counts.send_modify(|counts| *which(counts) += 1);
        Self(counts, which)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|counts| *(self.1)(counts) -= 1);
    }
}

/// What can end a plugin. Only what says in so many words that the resource is gone makes the kubelet forget its devices:
/// a task that stops or panics takes nothing away.
struct Ending {
    ended: Option<End>,
    close: oneshot::Receiver<()>,
    advertised: watch::Receiver<Advertised>,
    shutdown: watch::Receiver<bool>,
}

impl Ending {
    /// Waits until the plugin is to end. Once it has returned, it returns at once.
    async fn wait(&mut self) -> End {
        if let Some(end) = self.ended {
            return end;
        }
        let gone = tokio::select! {
            biased;
            closed = &mut self.close => closed.is_ok(),
            closed = self.advertised.wait_for(|advertised| advertised.closed) => closed.is_ok(),
            _ = self.shutdown.wait_for(|shutdown| *shutdown) => false,
        };
        *self.ended.insert(if gone { End::Empty } else { End::Silent })
    }
}

/// Keeps one resource registered, as a task.
pub(super) struct Registration {
    common: Arc<Common>,
    resource: Arc<dyn Resource>,
    sight: watch::Receiver<Sight>,
    ending: Ending,
}

impl Registration {
    pub(super) fn new(
        common: Arc<Common>,
        resource: Arc<dyn Resource>,
        close: oneshot::Receiver<()>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let sight = common.watch.sight.clone();
        let ending = Ending { ended: None, close, advertised: resource.advertised(), shutdown };
        Self { common, resource, sight, ending }
    }

    /// Runs until the resource, its plugin or the agent ends.
    pub(super) async fn run(mut self) {
        let common = Arc::clone(&self.common);
        let _wanted = Count::up(&common.counts, |counts| &mut counts.wanted);
        let mut pause = FIRST_PAUSE;
        while let kubelet @ Some(_) = self.kubelet().await {
            let registered = tokio::select! {
                biased;
                _ = self.ending.wait() => return,
                registered = common.register(&self.resource) => registered,
            };
            match registered {
                Ok((server, kubelet)) => {
                    pause = FIRST_PAUSE;
                    common.metrics.registered();
                    let registered = Count::up(&common.counts, |counts| &mut counts.registered);
                    let end = self.over(&server, kubelet).await;
                    drop(registered);
                    server.close(end.unwrap_or(End::Silent)).await;
                    if end.is_some() {
                        return;
                    }
                }
                Err(error) => {
                    common.failed(self.resource.name(), &error);
                    self.wait(jitter(pause), kubelet).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits for a kubelet; `None` once the plugin is to end.
    async fn kubelet(&mut self) -> Option<FileId> {
        tokio::select! {
            biased;
            _ = self.ending.wait() => None,
            seen = self.sight.wait_for(|sight| sight.kubelet.is_some()) => seen.ok()?.kubelet,
        }
    }

    /// Waits for what ends a registration: the end of the plugin, or, as `None`, another kubelet, a lost socket or a
    /// kubelet that let go of us.
    async fn over(&mut self, server: &Server, kubelet: Option<FileId>) -> Option<End> {
        let sight = &mut self.sight;
        let again = async {
            // Also at once: the kubelet may have gone while we registered.
            while !server.lost() && !is_other(sight.borrow_and_update().kubelet, kubelet) {
                if sight.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            end = self.ending.wait() => Some(end),
            () = again => None,
            () = server.unattended() => None,
        }
    }

    /// Waits for the pause, the end or another kubelet.
    async fn wait(&mut self, pause: Duration, kubelet: Option<FileId>) {
        tokio::select! {
            _ = self.ending.wait() => {}
            _ = self.sight.wait_for(|sight| is_other(sight.kubelet, kubelet)) => {}
            () = sleep(pause) => {}
        }
    }
}

/// Whether there is a kubelet, and not this one.
fn is_other(now: Option<FileId>, kubelet: Option<FileId>) -> bool {
    now.is_some() && now != kubelet
}

/// Between half and all of a pause, so that a thousand resources don't come at the same moment.
fn jitter(pause: Duration) -> Duration {
    let share = RandomState::new().build_hasher().finish() % 512;
    pause * u32::try_from(512 + share).unwrap_or(1024) / 1024
}
