//! Tells that something in a directory may have changed. Whoever listens reads everything again: events are only ever
//! taken as "dirty", since editors, ConfigMap volumes and half-written files all raise different ones.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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
    /// The notifications, and the directory they are for.
    watcher: Option<(DirectoryId, RecommendedWatcher)>,
}

/// Tells a directory from one that takes its place: device, inode, and, since inodes are used again, the time of birth.
type DirectoryId = (u64, u64, Option<SystemTime>);

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
        if self.ensure_watcher() {
            return; // whatever happened before the new watch raised no event
        }
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

    /// Watches the directory that is there now, unless that is so; says whether the watch is a new one. Another directory
    /// of the name needs another watch. A watch is not replaced without need: its last events would be lost with it.
    fn ensure_watcher(&mut self) -> bool {
        let now = directory_id(&self.directory);
        if self.watcher.is_some() && self.watcher.as_ref().map(|(id, _)| *id) == now {
            return false;
        }
        self.watcher = now.and_then(|id| Some((id, self.watch()?))); // without one, the rescan has to do
        self.watcher.is_some()
    }

    fn watch(&self) -> Option<RecommendedWatcher> {
        let sender = self.sender.clone();
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.as_ref().map_or(true, |event| is_change(&event.kind)) {
                sender.send_modify(|count| *count = count.wrapping_add(1));
            }
        };
        let mut watcher = notify::recommended_watcher(on_event).ok()?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive).ok()?;
        Some(watcher)
    }
}

fn directory_id(directory: &Path) -> Option<DirectoryId> {
    let metadata = fs::metadata(directory).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.created().ok()))
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

    #[tokio::test]
    async fn a_directory_that_comes_later_or_anew_is_read_after_it_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("late");
        let mut watched = WatchDir::new(&directory);
        let changed = async |watched: &mut WatchDir| {
            tokio::time::timeout(Duration::from_secs(10), watched.changed()).await.unwrap();
        };
        for _ in 0..3 {
            fs::create_dir(&directory).unwrap();
            while watched.watcher.as_ref().map(|(id, _)| *id) != directory_id(&directory) {
                changed(&mut watched).await;
            }
            // The one who waits reads now. What is written from here on is noticed, and so is the end.
            fs::write(directory.join("a.yaml"), "x").unwrap();
            changed(&mut watched).await;
            fs::remove_dir_all(&directory).unwrap();
            changed(&mut watched).await;
        }
    }
}
