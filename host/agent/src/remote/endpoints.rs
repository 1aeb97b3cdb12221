//! The endpoints of this node: everybody sees every change, and a file remembers them for the next start and shows them to
//! people.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use akri_model::names::Key;
use akri_model::remote::{Address, Endpoint, Endpoints, Refusal};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::memory;
use crate::discovery::moment;

/// The file is written at most this often.
const SETTLE: Duration = Duration::from_millis(100);

/// All endpoints, for everybody; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    endpoints: Arc<watch::Sender<Arc<Endpoints>>>,
    /// The moment that times of endpoints are from, on both clocks.
    started: (Instant, SystemTime),
    /// The state directory, for one writer at a time.
    state: Arc<Mutex<PathBuf>>,
}

impl Shared {
    pub(super) fn new(state: &Path) -> Self {
        let endpoints = Arc::new(watch::Sender::new(Arc::default()));
        Self { endpoints, started: (Instant::now(), SystemTime::now()), state: Arc::new(Mutex::new(state.to_owned())) }
    }

    /// All endpoints now, and every change.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Endpoints>> {
        self.endpoints.subscribe()
    }

    /// Takes an endpoint in, or takes note that it is there again; says whether it is new or another one than before.
    pub(super) fn register(
        &self,
        endpoint: Endpoint,
        shared: bool,
        is_dead: impl Fn(&Address) -> bool,
    ) -> Result<bool, Refusal> {
        let mut registered = Ok(false);
        self.change(|all, now| {
            let is_new = all.get(&endpoint).is_none_or(|record| record.shared != Some(shared));
            registered = all.register(endpoint, shared, now, is_dead).map(|()| is_new);
        });
        registered
    }

    /// Takes in an endpoint that is remembered or was found.
    pub(super) fn recall(&self, endpoint: Endpoint, shared: Option<bool>) {
        self.change(|all, now| all.recall(endpoint, shared, now));
    }

    /// A Configuration begins to ask an endpoint, or says again that it does.
    pub(super) fn used(&self, endpoint: &Endpoint, user: &Key) {
        // Every Configuration says so at every change: a change takes a copy of everything, and looking does not.
        let is_news = self.endpoints.borrow().get(endpoint).is_some_and(|record| !record.has_user(user));
        if is_news {
            self.change(|all, _| all.used(endpoint, user));
        }
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
            change(Arc::make_mut(all), self.started.0.elapsed());
            *before != **all
        });
    }

    /// Forgets endpoints that have been offline for so long, and keeps the file up to date.
    pub(super) async fn keep(self, patience: Duration) {
        let mut watched = self.watch();
        loop {
            let expiry = watched.borrow_and_update().offline_since().map(|since| self.started.0 + since + patience);
            self.save().await;
            tokio::select! {
                changed = watched.changed() => if changed.is_err() { return },
                () = moment(expiry) => self.expire(patience),
            }
            sleep(SETTLE).await;
        }
    }

    /// Makes the file say what is so now.
    pub(super) async fn save(&self) {
        let state = Arc::clone(&self.state).lock_owned().await;
        let endpoints = self.endpoints.borrow().clone();
        let (_, started) = self.started;
        let written = tokio::task::spawn_blocking(move || memory::write(&state, &endpoints, started)).await;
        if let Ok(Err(error)) = written {
            warn!("remote handlers are not remembered: {error}");
        }
    }

    fn expire(&self, patience: Duration) {
        let mut expired = Vec::new();
        self.change(|all, now| expired = all.forget(now.saturating_sub(patience)));
        for endpoint in expired {
            info!(handler = endpoint.handler, endpoint = %endpoint.address, "forgotten: it was offline for too long");
        }
    }
}
