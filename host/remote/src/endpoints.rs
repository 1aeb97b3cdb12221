//! The registered endpoints of this node: every change is observable, and a file keeps them across restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use akri_model::names::Key;
use akri_model::remote::{Endpoint, EndpointRecord, Endpoints, RegistrationRefusal};
use akri_node::sleep_until_some;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::dial::is_dead;
use crate::endpoint_file;

/// Shortest interval between writes of the file.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Pause before the file is written again after that has failed.
const SAVE_AGAIN: Duration = Duration::from_secs(10);

/// All endpoints; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct EndpointRegistry {
    endpoints: Arc<watch::Sender<Arc<Endpoints>>>,
    /// The origin of the endpoints' times, on both clocks.
    started: (Instant, SystemTime),
    /// The state directory, locked for one writer at a time.
    state: Arc<Mutex<PathBuf>>,
}

impl EndpointRegistry {
    pub(super) fn new(state: &Path) -> Self {
        let endpoints = Arc::new(watch::Sender::new(Arc::default()));
        Self { endpoints, started: (Instant::now(), SystemTime::now()), state: Arc::new(Mutex::new(state.to_owned())) }
    }

    /// Returns all endpoints, and every change.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Endpoints>> {
        self.endpoints.subscribe()
    }

    /// Registers an endpoint; returns whether it is new or changed.
    pub(super) fn register(&self, endpoint: Endpoint, shared: bool) -> Result<bool, RegistrationRefusal> {
        let mut registered = Ok(false);
        self.change(|all, now| {
            let is_new = all.get(&endpoint).is_none_or(|record| record.shared != shared);
            registered = all.register(endpoint, shared, now, is_dead).map(|()| is_new);
        });
        registered
    }

    /// Records that a Configuration uses an endpoint; repeated calls are allowed.
    pub(super) fn add_user(&self, endpoint: &Endpoint, user: &Key) {
        // This is called at every change: updating copies everything, and reading does not.
        let is_changed = self.endpoints.borrow().get(endpoint).is_some_and(|record| !record.has_user(user));
        if is_changed {
            self.change(|all, _| all.add_user(endpoint, user));
        }
    }

    /// Changes the endpoints, at a time since the start.
    pub(super) fn change(&self, change: impl FnOnce(&mut Endpoints, Duration)) {
        self.endpoints.send_if_modified(|all| {
            let before = Arc::clone(all);
            change(Arc::make_mut(all), self.started.0.elapsed());
            *before != **all
        });
    }

    /// Keeps the file up to date, and removes endpoints that were offline for the timeout.
    pub(super) async fn run(self, offline_timeout: Duration) {
        let mut watched = self.watch();
        loop {
            let offline_since = watched.borrow_and_update().offline_since();
            let expiry = sleep_until_some(offline_since.map(|since| self.started.0 + since + offline_timeout));
            let again = (!self.save().await).then(|| Instant::now() + SAVE_AGAIN);
            tokio::select! {
                changed = watched.changed() => if changed.is_err() { return },
                () = expiry => self.expire(offline_timeout),
                () = sleep_until_some(again) => {}
            }
            sleep(DEBOUNCE).await;
        }
    }

    /// Writes the current endpoints to the file. Returns whether it was written.
    pub(super) async fn save(&self) -> bool {
        let state = Arc::clone(&self.state).lock_owned().await;
        let endpoints = self.endpoints.borrow().clone();
        let (_, started) = self.started;
        let written = tokio::task::spawn_blocking(move || endpoint_file::write(&state, &endpoints, started)).await;
        let written = written.unwrap_or_else(|error| Err(error.into()));
        written.inspect_err(|error| warn!("cannot save remote handlers; retrying: {error}")).is_ok()
    }

    /// Removes the endpoints that differ from the component of their handler in `shared`.
    pub(super) fn remove_differing(&self, handler: &str, shared: bool) {
        let differs = |record: &EndpointRecord| record.shared != shared;
        if !self.endpoints.borrow().of(handler).any(|(_, record)| differs(record)) {
            return;
        }
        let mut removed = Vec::new();
        self.change(|all, _| removed = all.remove_differing(handler, shared));
        for endpoint in removed {
            let Endpoint { handler, address } = endpoint;
            warn!(handler, endpoint = %address, "endpoint removed: the component of that name has shared={shared}");
        }
    }

    fn expire(&self, offline_timeout: Duration) {
        let mut expired = Vec::new();
        self.change(|all, now| expired = all.forget(now.saturating_sub(offline_timeout)));
        for endpoint in expired {
            info!(handler = endpoint.handler, endpoint = %endpoint.address, "endpoint removed: it was offline for too long");
        }
    }
}
