//! Watches for the kubelet: whether one listens on `kubelet.sock`, whether it is another one than before, and whether
//! our own sockets are still there. A kubelet that starts removes every socket in its directory.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::socket::{FileId, Sockets};

/// The kubelet's registration socket.
pub(super) const SOCKET: &str = "kubelet.sock";

/// The net under file notifications: how often to look without one.
const RESCAN: Duration = Duration::from_secs(2);
/// Events come in bursts; this long after the first one we look.
const SETTLE: Duration = Duration::from_millis(10);
/// How long a listener may take to accept.
const CONNECT: Duration = Duration::from_secs(1);

/// What is known about the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// The socket on which a kubelet accepts connections.
    pub(super) kubelet: Option<FileId>,
    /// Counts up while sockets of ours are missing: look at your own.
    pub(super) losses: u64,
}

/// Watches one directory until every receiver of its sight is gone.
pub(super) struct Watcher {
    sockets: Arc<Sockets>,
    sight: watch::Sender<Sight>,
    /// Something may have changed.
    dirty: Arc<Notify>,
    /// The file notifications, and the directory they are for.
    notifications: Option<(FileId, RecommendedWatcher)>,
    /// Whether the absence of the kubelet has been logged.
    missed: bool,
}

/// What others hold of a [`Watcher`].
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) sight: watch::Receiver<Sight>,
    /// To be notified by whoever could not reach the kubelet that is in sight.
    pub(super) doubt: Arc<Notify>,
}

impl Watcher {
    /// Watches in a task of its own.
    pub(super) fn start(sockets: Arc<Sockets>) -> Watch {
        let (sight, receiver) = watch::channel(Sight::default());
        let dirty = Arc::new(Notify::new());
        let doubt = Arc::new(Notify::new());
        let watch = Watch { sight: receiver, doubt: Arc::clone(&doubt) };
        let watcher = Self { sockets, sight, dirty, notifications: None, missed: false };
        tokio::spawn(watcher.run(doubt));
        watch
    }

    async fn run(mut self, doubt: Arc<Notify>) {
        let mut doubted = false;
        loop {
            self.watch_directory();
            self.look(doubted).await;
            let dirty = Arc::clone(&self.dirty);
            tokio::select! {
                () = self.sight.closed() => return,
                () = doubt.notified() => doubted = true,
                () = dirty.notified() => doubted = false,
                () = sleep(RESCAN) => doubted = false,
            }
            sleep(SETTLE).await;
        }
    }

    /// Asks for notifications, anew if the directory was made anew. Without them there is still the rescan.
    fn watch_directory(&mut self) {
        let dir = self.sockets.dir();
        let now = fs::metadata(dir).ok().map(|metadata| FileId::from(&metadata));
        let watched = self.notifications.as_ref().map(|(id, _)| *id);
        if now.zip(watched).is_some_and(|(now, watched)| now.same_inode(watched)) {
            return;
        }
        self.notifications = now.and_then(|id| match notifications(dir, &self.dirty) {
            Ok(watcher) => Some((id, watcher)),
            Err(error) => {
                tracing::debug!(%error, dir = %dir.display(), "no file notifications, only looking now and then");
                None
            }
        });
    }

    async fn look(&mut self, doubted: bool) {
        let missing = self.sockets.any_missing();
        let before = self.sight.borrow().kubelet;
        let now = FileId::of_socket(&self.sockets.dir().join(SOCKET));
        // Connecting is only asked of a kubelet whose answer we don't know.
        let kubelet = match now {
            Some(id) if (before == now && !doubted) || self.accepts().await => Some(id),
            _ => None,
        };
        self.tell(before, kubelet);
        self.sight.send_if_modified(|sight| {
            let next = Sight { kubelet, losses: sight.losses + u64::from(missing) };
            std::mem::replace(sight, next) != next
        });
    }

    async fn accepts(&self) -> bool {
        matches!(timeout(CONNECT, UnixStream::connect(self.sockets.dir().join(SOCKET))).await, Ok(Ok(_)))
    }

    /// Logs what changed: one line for all resources together.
    fn tell(&mut self, before: Option<FileId>, now: Option<FileId>) {
        let socket = self.sockets.dir().join(SOCKET);
        if now.is_some() && now != before {
            tracing::info!(socket = %socket.display(), "the kubelet is there");
        } else if now.is_none() && !self.missed {
            tracing::info!(socket = %socket.display(), "waiting for the kubelet");
        }
        self.missed = now.is_none();
    }
}

fn notifications(dir: &Path, dirty: &Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let dirty = Arc::clone(dirty);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Our own look at the directory is an access, and must not cause the next one.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            dirty.notify_one();
        }
    })?;
    watcher.watch(dir, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    async fn until(watch: &mut Watch, condition: impl FnMut(&Sight) -> bool) -> Sight {
        let seen = timeout(Duration::from_secs(20), watch.sight.wait_for(condition)).await;
        *seen.expect("seen in time").expect("the watcher lives")
    }

    #[tokio::test]
    async fn a_kubelet_that_comes_goes_and_comes_again_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        let mut watch = Watcher::start(Arc::new(Sockets::new(dir.clone())));
        until(&mut watch, |sight| sight.kubelet.is_none()).await;

        // Neither the directory nor, then, the socket has to be there.
        fs::create_dir(&dir).unwrap();
        let kubelet = UnixListener::bind(dir.join(SOCKET)).unwrap();
        let first = until(&mut watch, |sight| sight.kubelet.is_some()).await.kubelet;

        fs::remove_file(dir.join(SOCKET)).unwrap();
        let other = UnixListener::bind(dir.join(SOCKET)).unwrap();
        until(&mut watch, |sight| sight.kubelet.is_some() && sight.kubelet != first).await;

        // The file alone is no kubelet.
        drop((kubelet, other));
        watch.doubt.notify_one();
        until(&mut watch, |sight| sight.kubelet.is_none()).await;
    }

    #[tokio::test]
    async fn a_missing_socket_of_ours_is_seen_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let _kubelet = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let sockets = Arc::new(Sockets::new(dir.path().to_owned()));
        let theirs = Arc::new(Sockets::new(dir.path().to_owned()));
        let (ours, theirs) = (sockets.bind("akri.sh/a").unwrap(), theirs.bind("akri.sh/a").unwrap());
        let mut watch = Watcher::start(sockets);
        assert_eq!(until(&mut watch, |sight| sight.kubelet.is_some()).await.losses, 0);
        fs::remove_file(dir.path().join(theirs.0.name())).unwrap();
        fs::remove_file(dir.path().join(SOCKET)).unwrap();
        assert_eq!(until(&mut watch, |sight| sight.kubelet.is_none()).await.losses, 0);
        fs::remove_file(dir.path().join(ours.0.name())).unwrap();
        until(&mut watch, |sight| sight.losses > 0).await;
    }

    #[tokio::test]
    async fn a_directory_made_anew_is_watched_anew() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        let mut watch = Watcher::start(Arc::new(Sockets::new(dir.clone())));
        for _ in 0..2 {
            fs::create_dir(&dir).unwrap();
            let kubelet = UnixListener::bind(dir.join(SOCKET)).unwrap();
            until(&mut watch, |sight| sight.kubelet.is_some()).await;
            fs::remove_dir_all(&dir).unwrap();
            drop(kubelet);
            until(&mut watch, |sight| sight.kubelet.is_none()).await;
        }
    }
}
