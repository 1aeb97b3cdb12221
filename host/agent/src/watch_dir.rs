//! Tells that something in a directory may have changed. Whoever listens reads everything again: events are only ever
//! taken as "dirty", since editors, ConfigMap volumes and half-written files all raise different ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Changes that come this close together are one.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A directory that never comes to rest is read this often all the same.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// A look without an event: a net under missed ones.
const RESCAN: Duration = Duration::from_secs(30);

/// The same while the directory can't be watched: so is one found that appears later.
const SEARCH: Duration = Duration::from_secs(1);

/// A watched directory.
#[derive(Debug)]
pub(crate) struct WatchDir {
    directory: PathBuf,
    dirty: watch::Receiver<u64>,
    sender: watch::Sender<u64>,
    watcher: Option<RecommendedWatcher>,
}

impl WatchDir {
    /// Watches a directory, which need not exist yet. Subdirectories are not watched.
    pub(crate) fn new(directory: &Path) -> Self {
        let (sender, dirty) = watch::channel(0);
        let mut watched = Self { directory: directory.to_owned(), dirty, sender, watcher: None };
        watched.ensure_watcher();
        watched
    }

    /// Waits until it is time to read the directory again.
    pub(crate) async fn changed(&mut self) {
        self.ensure_watcher();
        let deadline = Instant::now() + if self.watcher.is_some() { RESCAN } else { SEARCH };
        if timeout_at(deadline, self.dirty.changed()).await.is_err() {
            return;
        }
        let latest = Instant::now() + MAX_DELAY;
        while Instant::now() < latest {
            sleep(DEBOUNCE).await;
            match self.dirty.has_changed() {
                Ok(true) => self.dirty.mark_unchanged(),
                _ => break,
            }
        }
    }

    /// A directory that was removed and made again needs a new watch; making one again for the same does no harm.
    fn ensure_watcher(&mut self) {
        let sender = self.sender.clone();
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.as_ref().map_or(true, |event| is_change(&event.kind)) {
                sender.send_modify(|count| *count = count.wrapping_add(1));
            }
        };
        let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        self.watcher = watcher.ok(); // without one, the rescan has to do
    }
}

/// Waits until one of the directories is to be read again; for ever if there is none.
pub(crate) async fn any_changed(watched: &mut [WatchDir]) {
    if watched.is_empty() {
        return std::future::pending().await;
    }
    let changes = watched.iter_mut().map(|directory| Box::pin(directory.changed()));
    futures::future::select_all(changes).await;
}

/// Reading the directory raises access events itself: answering those would never end.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_is_noticed_and_reading_is_not_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let mut watched = WatchDir::new(directory.path());
        std::fs::write(directory.path().join("a.yaml"), "x").unwrap();
        tokio::time::timeout(Duration::from_secs(10), watched.changed()).await.unwrap();
        std::fs::read_dir(directory.path()).unwrap().for_each(drop);
        std::fs::read(directory.path().join("a.yaml")).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(500), watched.changed()).await.is_err());
    }
}
