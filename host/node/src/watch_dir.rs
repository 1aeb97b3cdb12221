//! Watches directories for changes. A change only marks the directory as dirty, and the caller reads everything again:
//! editors, ConfigMap volumes and partial writes all raise different events.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Changes within this time are one change, unless the caller sets another one.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Maximum delay while changes continue, in times of the one above.
const MAX_DELAY: u32 = 10;

/// Interval of rescans in case an event was missed: each wakes up a node at rest.
const RESCAN: Duration = Duration::from_secs(120);

/// Interval of rescans while the directory can't be watched, for example because it does not exist yet.
const SEARCH: Duration = Duration::from_secs(1);

/// A watched directory.
#[derive(Debug)]
pub struct WatchDir {
    directory: PathBuf,
    /// Changes within this time are one change.
    debounce: Duration,
    concerns: Concerns,
    dirty: watch::Receiver<u64>,
    sender: watch::Sender<u64>,
    /// The notifications, and the directory they are for.
    watcher: Option<(DirectoryId, RecommendedWatcher)>,
    /// The files elsewhere to which links in the directory lead, as they are watched.
    links: BTreeMap<PathBuf, DirectoryId>,
}

/// Returns whether a change of a file is one of the directory, by the file's path and whether it has gone.
pub type Concerns = fn(&Path, bool) -> bool;

/// Limit on watched links of a directory.
const LINKS: usize = 256;

/// The identity of a directory or file: device, inode and, since inodes are reused, the time of birth.
type DirectoryId = (u64, u64, Option<SystemTime>);

impl WatchDir {
    /// Watches a directory, which need not exist yet. Subdirectories are not watched.
    pub fn new(directory: &Path) -> Self {
        Self::of(directory, DEBOUNCE, |_, _| true)
    }

    /// Watches a directory for changes of some of its files; changes within this time are one change.
    pub fn of(directory: &Path, debounce: Duration, concerns: Concerns) -> Self {
        let (sender, dirty) = watch::channel(0);
        let (directory, links) = (directory.to_owned(), BTreeMap::new());
        let mut watched = Self { directory, debounce, concerns, dirty, sender, watcher: None, links };
        watched.ensure_watcher();
        watched
    }

    /// Returns whether changes raise events. Otherwise the directory is read again from time to time.
    pub fn is_watching(&self) -> bool {
        self.watcher.is_some()
    }

    /// Waits until the directory must be read again. It can be dropped before: the next call tells of the same change.
    pub async fn changed(&mut self) {
        if self.ensure_watcher() {
            return; // whatever happened before the new watch raised no event
        }
        let pause = if self.watcher.is_some() { RESCAN } else { SEARCH };
        if timeout_at(next_look(pause), self.dirty.changed()).await.is_err() {
            return self.watch_links();
        }
        self.dirty.mark_changed();
        let latest = Instant::now() + self.debounce * MAX_DELAY;
        let mut known = *self.dirty.borrow();
        while Instant::now() < latest {
            sleep(self.debounce).await;
            let before = std::mem::replace(&mut known, *self.dirty.borrow());
            if known == before {
                break;
            }
        }
        self.dirty.mark_unchanged();
        self.watch_links();
    }

    /// Watches the current directory of this name if it is not watched yet; returns whether the watch is new. A working
    /// watch is kept: its last events would be lost with it.
    fn ensure_watcher(&mut self) -> bool {
        let now = directory_id(&self.directory);
        if self.watcher.is_some() && self.watcher.as_ref().map(|(id, _)| *id) == now {
            return false;
        }
        self.watcher = now.and_then(|id| Some((id, self.watch()?))); // without a watcher the rescan remains
        self.links.clear();
        self.watch_links();
        self.watcher.is_some()
    }

    /// Watches the files to which links in the directory lead, before they are read: an edit in place raises no event in the directory.
    fn watch_links(&mut self) {
        let Some((_, watcher)) = &mut self.watcher else { return };
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink())).take(LINKS);
        let now: BTreeMap<PathBuf, DirectoryId> = links
            .map(|link| link.path())
            .filter(|link| link.is_file())
            .filter_map(|link| Some((link.clone(), directory_id(&link)?)))
            .collect();
        for (link, id) in &now {
            let before = self.links.get(link);
            if before != Some(id) {
                if before.is_some() {
                    let _ = watcher.unwatch(link); // the file of before may have gone, and its watch with it
                }
                let _ = watcher.watch(link, RecursiveMode::NonRecursive); // without it the rescan remains
            }
        }
        self.links = now;
    }

    fn watch(&self) -> Option<RecommendedWatcher> {
        let (sender, directory, concerns) = (self.sender.clone(), self.directory.clone(), self.concerns);
        let on_event = move |event: notify::Result<notify::Event>| {
            let is_change = |event: &notify::Event| is_change(&event.kind) && is_of(event, &directory, concerns);
            if event.as_ref().map_or(true, is_change) {
                sender.send_modify(|count| *count = count.wrapping_add(1));
            }
        };
        let mut watcher = notify::recommended_watcher(on_event).ok()?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive).ok()?;
        Some(watcher)
    }
}

/// Returns the next time at which all directories are looked at: a node at rest is woken up once for all.
fn next_look(pause: Duration) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let passed = START.elapsed().as_nanos() / pause.as_nanos();
    *START + pause * u32::try_from(passed + 1).unwrap_or(u32::MAX)
}

fn directory_id(directory: &Path) -> Option<DirectoryId> {
    let metadata = fs::metadata(directory).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.created().ok()))
}

/// Waits until one of the directories must be read again; forever if there is none.
pub async fn any_changed(watched: &mut [WatchDir]) {
    if watched.is_empty() {
        return std::future::pending().await;
    }
    let changes = watched.iter_mut().map(|directory| Box::pin(directory.changed()));
    futures::future::select_all(changes).await;
}

/// Returns whether an event is a change. Reading the directory raises access events, which must not cause another read.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// Returns whether an event is of the directory itself or of one of the files that count.
fn is_of(event: &notify::Event, directory: &Path, concerns: Concerns) -> bool {
    let is_gone = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
    event.paths.is_empty() || event.paths.iter().any(|path| path == directory || concerns(path, is_gone))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn change_is_noticed_and_reading_is_not_a_change() {
        let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, new) = (directory.path().join("a.yaml"), elsewhere.path().join("a.yaml"));
        fs::write(&new, "x").unwrap();
        let mut watched = WatchDir::new(directory.path());
        fs::rename(&new, &file).unwrap(); // a write would be three events
        tokio::time::timeout(Duration::from_secs(10), watched.changed()).await.unwrap();
        fs::read_dir(directory.path()).unwrap().for_each(drop);
        fs::read(&file).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(500), watched.changed()).await.is_err());
    }

    #[tokio::test]
    async fn change_of_a_file_that_does_not_count_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut watched = WatchDir::of(directory.path(), DEBOUNCE, |path, is_gone| is_gone && path.ends_with("a"));
        let within = async |watched: &mut WatchDir, time| tokio::time::timeout(time, watched.changed()).await.is_ok();
        fs::write(path("a"), "x").and_then(|()| fs::write(path("b"), "x")).unwrap();
        fs::rename(path("b"), path("c")).unwrap();
        assert!(!within(&mut watched, Duration::from_millis(500)).await);
        fs::rename(path("a"), path("c")).unwrap();
        assert!(within(&mut watched, Duration::from_secs(10)).await);
        fs::write(path("a"), "x").unwrap();
        fs::remove_file(path("a")).unwrap();
        assert!(within(&mut watched, Duration::from_secs(10)).await);
        directory.close().unwrap();
        assert!(within(&mut watched, Duration::from_secs(10)).await);
    }

    #[tokio::test]
    async fn linked_file_that_is_edited_in_place_is_a_change() {
        let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = elsewhere.path().join("a.yaml");
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, directory.path().join("a.yaml")).unwrap();
        let mut watched = WatchDir::new(directory.path());
        for text in ["y", "z"] {
            fs::write(&file, text).unwrap();
            tokio::time::timeout(RESCAN / 2, watched.changed()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn change_is_not_lost_with_a_call_that_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let mut watched = WatchDir::new(directory.path());
        std::fs::write(directory.path().join("a.yaml"), "x").unwrap();
        let mut dirty = watched.dirty.clone();
        dirty.changed().await.unwrap();
        assert!(watched.changed().now_or_never().is_none());
        tokio::time::timeout(Duration::from_secs(10), watched.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn late_or_recreated_directory_is_read_once_watched() {
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
            // From here on, every change and the removal of the directory are noticed.
            fs::write(directory.join("a.yaml"), "x").unwrap();
            changed(&mut watched).await;
            fs::remove_dir_all(&directory).unwrap();
            changed(&mut watched).await;
        }
    }
}
