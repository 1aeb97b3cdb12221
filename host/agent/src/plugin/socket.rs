//! Our sockets in the kubelet's directory: their names, who owns a file, what comes in.

use std::collections::HashSet;
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::fs::{self, Metadata};
use std::hash::{BuildHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use tokio::net::{UnixListener, UnixStream};

use super::authority::Filter;

/// Pause after a failed accept: most likely there are no file descriptors left, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Which file a path led to. A path that is unlinked and bound again leads to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    /// File systems give the inode of a removed file to the next one; its change time tells the two apart.
    changed: (i64, i64),
}

impl FileId {
    /// The file at this path itself, be it a link; `None` if there is none or it can't be looked at.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|metadata| Self::from(&metadata))
    }

    /// The same, if the file is a socket.
    pub(crate) fn of_socket(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        metadata.file_type().is_socket().then(|| Self::from(&metadata))
    }

    /// Whether both are one inode. Change times are left out: a file's owner or mode may change and it is still ours.
    pub(crate) fn same_inode(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), changed: (metadata.ctime(), metadata.ctime_nsec()) }
    }
}

/// The sockets this process has in the kubelet's directory.
#[derive(Debug)]
pub(super) struct Sockets {
    dir: PathBuf,
    nonce: u32,
    generation: AtomicU32,
    /// File names.
    bound: Mutex<HashSet<String>>,
}

impl Sockets {
    pub(super) fn new(dir: PathBuf) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { dir, nonce: (random >> 32) as u32, generation: AtomicU32::new(0), bound: Mutex::default() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Binds a new socket for a resource and listens on it.
    pub(super) fn bind(self: &Arc<Self>, resource: &str) -> io::Result<(OwnSocket, UnixListener)> {
        let name = self.next_name(resource);
        let path = self.dir.join(&name);
        let listener = UnixListener::bind(&path)?;
        let id = FileId::of(&path).ok_or(io::ErrorKind::NotFound)?;
        self.bound().insert(name.clone());
        Ok((OwnSocket { name, path, id, sockets: Arc::clone(self) }, listener))
    }

    /// A name that is unique in this process and, by a nonce, on the node. At most 32 bytes, for the whole path has to
    /// stay below 108 (`sun_path`, unix(7)).
    fn next_name(&self, resource: &str) -> String {
        let mut hasher = DefaultHasher::new();
        resource.hash(&mut hasher);
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        format!("akri-{:04x}-{:08x}-{generation:x}.sock", hasher.finish() >> 48, self.nonce)
    }

    /// Whether files of ours are missing in the directory. Goes by names, for one look at a thousand of them.
    pub(super) fn any_missing(&self) -> bool {
        let mut missing = self.bound().clone();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            entry.file_name().to_str().map(|name| missing.remove(name));
        }
        !missing.is_empty()
    }

    fn bound(&self) -> MutexGuard<'_, HashSet<String>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket file we bound, removed on drop, but only while it is still ours.
#[derive(Debug)]
pub(super) struct OwnSocket {
    name: String,
    path: PathBuf,
    id: FileId,
    sockets: Arc<Sockets>,
}

impl OwnSocket {
    /// The file's name in the kubelet's directory.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the path no longer leads to our socket.
    pub(super) fn lost(&self) -> bool {
        FileId::of(&self.path).is_none_or(|id| !id.same_inode(self.id))
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.sockets.bound().remove(&self.name);
        if !self.lost() {
            // Should it be gone by now, nothing is left to do; no other error is of any use to anyone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The connections that come in, filtered, for as long as the stream is polled.
pub(super) fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<Filter<UnixStream>>> {
    unfold(listener, |listener| async {
        let accepted = listener.accept().await;
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        Some((accepted.map(|(stream, _)| Filter::new(stream)), listener))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_differ_by_resource_generation_and_process() {
        let (one, other) = (Sockets::new("a".into()), Sockets::new("a".into()));
        let name = |sockets: &Sockets, resource| sockets.next_name(resource);
        let names =
            [name(&one, "akri.sh/a"), name(&one, "akri.sh/a"), name(&one, "akri.sh/b"), name(&other, "akri.sh/a")];
        for (i, name) in names.iter().enumerate() {
            assert!(name.len() <= 32 && !names[..i].contains(name), "{name}");
        }
        one.generation.store(u32::MAX, Ordering::Relaxed);
        assert!(name(&one, "akri.sh/a").len() <= 32);
    }

    #[tokio::test]
    async fn a_socket_is_removed_with_its_owner_but_not_one_that_took_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let sockets = Arc::new(Sockets::new(dir.path().to_owned()));
        let (own, _listener) = sockets.bind("akri.sh/a").unwrap();
        let path = dir.path().join(own.name());
        assert!(!own.lost() && !sockets.any_missing());
        drop(own);
        assert!(!path.exists() && !sockets.any_missing());

        let (own, _listener) = sockets.bind("akri.sh/a").unwrap();
        let path = dir.path().join(own.name());
        // Kept under another name, so that the file system can't give its inode to the new socket.
        fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(own.lost() && sockets.any_missing());
        let _other = UnixListener::bind(&path).unwrap();
        assert!(own.lost());
        drop(own);
        assert!(path.exists());
    }

    #[test]
    fn only_a_socket_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        assert_eq!(FileId::of_socket(&path), None);
        fs::write(&path, "").unwrap();
        assert_eq!(FileId::of_socket(&path), None);
        assert!(FileId::of(&path).is_some());
    }
}
