//! Watches for the kubelet: whether it listens on `kubelet.sock`, whether it restarted, and whether our own sockets
//! still exist. A starting kubelet removes every socket in its directory.

use std::sync::Arc;
use std::time::Duration;

use akri_grpc::unix::FileId;
use akri_node::watch_dir::WatchDir;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::socket::Sockets;
use crate::{Kubelet, RegistrationCounts, set_kubelet};

/// The kubelet's registration socket.
pub(super) const SOCKET: &str = "kubelet.sock";

/// Interval of checks while there is no kubelet, a socket of ours is missing, or no file notifications come. Otherwise the directory is
/// looked at from time to time with all others, since each look wakes up a node at rest.
const RESCAN: Duration = Duration::from_secs(2);
/// Changes within this time are one change.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(1);

/// The observed state of the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KubeletState {
    /// The identity of the socket on which a kubelet accepts connections.
    pub(super) kubelet: Option<FileId>,
    /// Counts up while sockets of ours are missing; each resource then checks its own.
    pub(super) losses: u64,
}

/// Watches one directory until every receiver of its state is dropped.
pub(super) struct Watcher {
    sockets: Arc<Sockets>,
    state: watch::Sender<KubeletState>,
    directory: WatchDir,
    counts: watch::Sender<RegistrationCounts>,
    /// Set if the absence of the kubelet was logged.
    absence_logged: bool,
}

/// The public side of a [`Watcher`].
#[derive(Debug, Clone)]
pub(super) struct KubeletWatch {
    pub(super) state: watch::Receiver<KubeletState>,
    /// Notified by a caller that could not reach the kubelet.
    pub(super) recheck: Arc<Notify>,
}

impl Watcher {
    /// Starts watching in a separate task.
    pub(super) fn start(sockets: Arc<Sockets>, counts: watch::Sender<RegistrationCounts>) -> KubeletWatch {
        let (state, receiver) = watch::channel(KubeletState::default());
        // The kubelet writes its checkpoint here for each list and each claim: that would raise a look at all sockets each time.
        let directory = WatchDir::of(&sockets.dir, DEBOUNCE, |path, is_gone| {
            path.ends_with(SOCKET) || is_gone && path.extension().is_some_and(|extension| extension == "sock")
        });
        let recheck = Arc::new(Notify::new());
        let watch = KubeletWatch { state: receiver, recheck: Arc::clone(&recheck) };
        let watcher = Self { sockets, state, directory, counts, absence_logged: false };
        tokio::spawn(watcher.run(recheck));
        watch
    }

    async fn run(mut self, recheck: Arc<Notify>) {
        let mut must_recheck = false;
        loop {
            let is_well = self.observe(must_recheck).await;
            let is_quiet = self.directory.is_watching() && is_well;
            must_recheck = tokio::select! {
                () = self.state.closed() => return,
                () = recheck.notified() => {
                    sleep(DEBOUNCE).await; // many resources may have failed at once
                    true
                }
                () = self.directory.changed() => false,
                () = sleep(RESCAN), if !is_quiet => false,
            };
        }
    }

    /// Returns whether there is a kubelet and no socket of ours is missing.
    async fn observe(&mut self, must_recheck: bool) -> bool {
        let missing = self.sockets.any_missing();
        let before = self.state.borrow().kubelet;
        let now = FileId::of_socket(&self.sockets.dir.join(SOCKET));
        // Connect only if the state of this kubelet is unknown.
        let (kubelet, seen) = match now {
            Some(_) if (before == now && !must_recheck) || self.accepts().await => (now, Kubelet::Listens),
            Some(_) => (None, Kubelet::Ended),
            None => (None, Kubelet::Absent),
        };
        if kubelet != before || kubelet.is_none() {
            set_kubelet(&self.counts, seen);
        }
        self.log_change(before, kubelet);
        self.state.send_if_modified(|state| {
            let next = KubeletState { kubelet, losses: state.losses + u64::from(missing) };
            std::mem::replace(state, next) != next
        });
        kubelet.is_some() && !missing
    }

    async fn accepts(&self) -> bool {
        matches!(timeout(CONNECT, UnixStream::connect(self.sockets.dir.join(SOCKET))).await, Ok(Ok(_)))
    }

    /// Logs a change: one line for all resources together.
    fn log_change(&mut self, before: Option<FileId>, now: Option<FileId>) {
        let socket = self.sockets.dir.join(SOCKET);
        if now.is_some() && now != before {
            tracing::info!(socket = %socket.display(), "the kubelet is available");
        } else if now.is_none() && !self.absence_logged {
            tracing::warn!(socket = %socket.display(), "waiting for the kubelet");
        }
        self.absence_logged = now.is_none();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::net::UnixListener;

    use super::*;

    async fn until(watch: &mut KubeletWatch, condition: impl FnMut(&KubeletState) -> bool) -> KubeletState {
        let seen = timeout(Duration::from_secs(20), watch.state.wait_for(condition)).await;
        *seen.expect("seen in time").expect("the watcher lives")
    }

    fn start(sockets: Sockets) -> KubeletWatch {
        Watcher::start(Arc::new(sockets), watch::Sender::default())
    }

    #[tokio::test] // rule 3
    async fn watcher_follows_a_kubelet_that_comes_and_goes() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        let mut watch = start(Sockets::new(dir.clone()));
        until(&mut watch, |state| state.kubelet.is_none()).await;

        // Neither the directory nor the socket has to exist at the start.
        fs::create_dir(&dir).unwrap();
        let kubelet = UnixListener::bind(dir.join(SOCKET)).unwrap();
        let first = until(&mut watch, |state| state.kubelet.is_some()).await.kubelet;

        fs::remove_file(dir.join(SOCKET)).unwrap();
        let other = UnixListener::bind(dir.join(SOCKET)).unwrap();
        until(&mut watch, |state| state.kubelet.is_some() && state.kubelet != first).await;

        // A socket file without a listener is not a kubelet.
        drop((kubelet, other));
        watch.recheck.notify_one();
        until(&mut watch, |state| state.kubelet.is_none()).await;
    }

    #[tokio::test]
    async fn watcher_reports_only_our_missing_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let _kubelet = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let sockets = Arc::new(Sockets::new(dir.path().to_owned()));
        let theirs = Arc::new(Sockets::new(dir.path().to_owned()));
        let (ours, theirs) = (sockets.bind("akri.sh/a").unwrap(), theirs.bind("akri.sh/a").unwrap());
        let mut watch = Watcher::start(sockets, watch::Sender::default());
        assert_eq!(until(&mut watch, |state| state.kubelet.is_some()).await.losses, 0);
        fs::remove_file(dir.path().join(&theirs.0.name)).unwrap();
        fs::remove_file(dir.path().join(SOCKET)).unwrap();
        assert_eq!(until(&mut watch, |state| state.kubelet.is_none()).await.losses, 0);
        fs::remove_file(dir.path().join(&ours.0.name)).unwrap();
        until(&mut watch, |state| state.losses > 0).await;
    }

    #[tokio::test]
    async fn recreated_directory_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        let mut watch = start(Sockets::new(dir.clone()));
        for _ in 0..2 {
            fs::create_dir(&dir).unwrap();
            let kubelet = UnixListener::bind(dir.join(SOCKET)).unwrap();
            until(&mut watch, |state| state.kubelet.is_some()).await;
            fs::remove_dir_all(&dir).unwrap();
            drop(kubelet);
            until(&mut watch, |state| state.kubelet.is_none()).await;
        }
    }
}
