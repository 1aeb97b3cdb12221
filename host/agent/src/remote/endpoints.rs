//! The endpoints of this node: everybody sees every change, and a file remembers them for the next start and shows them to
//! people.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use akri_model::names::Key;
use akri_model::remote::{Address, Endpoint, Endpoints, Refusal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::memory;

/// The file is written at most this often.
const SETTLE: Duration = Duration::from_millis(100);

/// All endpoints, for everybody; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    endpoints: Arc<watch::Sender<Arc<Endpoints>>>,
    started: Instant,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { endpoints: Arc::new(watch::Sender::new(Arc::default())), started: Instant::now() }
    }

    /// All endpoints now, and every change.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Endpoints>> {
        self.endpoints.subscribe()
    }

    /// Takes an endpoint in, or takes note that it is there again; says whether it is new.
    pub(super) fn register(
        &self,
        endpoint: Endpoint,
        shared: bool,
        is_dead: impl Fn(&Address) -> bool,
    ) -> Result<bool, Refusal> {
        let mut registered = Ok(false);
        self.change(|all, now| {
            let is_new = all.get(&endpoint).is_none();
            registered = all.register(endpoint, shared, now, is_dead).map(|()| is_new);
        });
        registered
    }

    /// Takes in an endpoint that is remembered or was found.
    pub(super) fn recall(&self, endpoint: Endpoint, shared: Option<bool>) {
        self.change(|all, now| all.recall(endpoint, shared, now));
    }

    /// A Configuration is connected to the endpoint, or could not reach it or lost the connection, or does not try.
    pub(super) fn connected(&self, endpoint: &Endpoint, user: &Key, connected: Option<bool>) {
        self.change(|all, now| all.connected(endpoint, user, connected, now));
    }

    /// What the endpoint last told a Configuration: so many devices, or what went wrong.
    pub(super) fn told(&self, endpoint: &Endpoint, user: &Key, result: Result<usize, String>) {
        self.change(|all, _| all.told(endpoint, user, result));
    }

    /// A Configuration no longer asks the endpoint.
    pub(super) fn released(&self, endpoint: &Endpoint, user: &Key) {
        self.change(|all, now| all.released(endpoint, user, now));
    }

    fn change(&self, change: impl FnOnce(&mut Endpoints, Duration)) {
        self.endpoints.send_if_modified(|all| {
            let before = Arc::clone(all);
            change(Arc::make_mut(all), self.started.elapsed());
            *before != **all
        });
    }

    /// Forgets endpoints in time, and keeps the file up to date.
    pub(super) async fn keep(self, state: PathBuf) {
        let since = SystemTime::now().checked_sub(self.started.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut watched = self.watch();
        loop {
            let now = watched.borrow_and_update().clone();
            write(&state, &now, since).await;
            let expiry = now.next_expiry().map(|at| self.started + at);
            tokio::select! {
                changed = watched.changed() => if changed.is_err() { return },
                () = moment(expiry) => self.expire(),
            }
            sleep(SETTLE).await;
        }
    }

    fn expire(&self) {
        let mut expired = Vec::new();
        self.change(|all, now| expired = all.expire(now));
        for endpoint in expired {
            info!(handler = endpoint.handler, endpoint = %endpoint.address, "forgotten: it was offline for too long");
        }
    }
}

async fn write(state: &Path, endpoints: &Arc<Endpoints>, started: SystemTime) {
    let (state, endpoints) = (state.to_owned(), Arc::clone(endpoints));
    let written = tokio::task::spawn_blocking(move || memory::write(&state, &endpoints, started)).await;
    if let Ok(Err(error)) = written {
        warn!("remote handlers are not remembered: {error}");
    }
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
