//! Our sockets in the kubelet's directory: names, ownership and incoming connections.

use std::collections::HashSet;
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use akri_grpc::unix::{FileId, OwnSocket, is_refused};
use parking_lot::Mutex;
use tokio::net::UnixListener;

/// Limit on connections to one socket; a kubelet opens one.
pub(super) const CONNECTIONS: usize = 16;

/// The sockets of this process in the kubelet's directory.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) dir: PathBuf,
    nonce: u32,
    generation: AtomicU32,
    /// File names.
    bound: Mutex<HashSet<String>>,
}

impl Sockets {
    /// Removes the sockets of agents that were killed: nobody else does before the kubelet starts anew.
    pub(super) fn new(dir: PathBuf) -> Self {
        let found = fs::read_dir(&dir).into_iter().flatten().flatten().map(|file| file.path());
        let is_abandoned = |path: &PathBuf| is_our_name(path) && is_refused(path);
        found.filter(is_abandoned).for_each(|path| drop(fs::remove_file(path))); // the kubelet may have removed it
        let random = RandomState::new().build_hasher().finish();
        Self { dir, nonce: (random >> 32) as u32, generation: AtomicU32::new(0), bound: Mutex::default() }
    }

    /// Binds a new socket for a resource and listens on it.
    pub(super) fn bind(self: &Arc<Self>, resource: &str) -> io::Result<(PluginSocket, UnixListener)> {
        let name = self.next_name(resource);
        let path = self.dir.join(&name);
        let listener = UnixListener::bind(&path)?;
        let file = OwnSocket::new(path)?;
        self.bound.lock().insert(name.clone());
        Ok((PluginSocket { name, file, sockets: Arc::clone(self) }, listener))
    }

    /// Returns a name that is unique in this process and, by a nonce, on the node. It has at most 32 bytes, since the
    /// path must stay below 108 (`sun_path`, unix(7)).
    fn next_name(&self, resource: &str) -> String {
        let mut hasher = DefaultHasher::new();
        resource.hash(&mut hasher);
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        format!("akri-{:04x}-{:08x}-{generation:x}.sock", hasher.finish() >> 48, self.nonce)
    }

    /// Returns whether files of ours are missing in the directory. It is not listed: that would raise an event for whoever watches it.
    pub(super) fn any_missing(&self) -> bool {
        self.bound.lock().iter().any(|name| FileId::of(&self.dir.join(name)).is_none())
    }
}

fn is_our_name(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("akri-") && name.ends_with(".sock"))
}

/// The socket of one plugin, removed on drop.
#[derive(Debug)]
pub(super) struct PluginSocket {
    /// The name of the file in the kubelet's directory.
    pub(super) name: String,
    pub(super) file: OwnSocket,
    sockets: Arc<Sockets>,
}

impl Drop for PluginSocket {
    fn drop(&mut self) {
        self.sockets.bound.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test] // rule 3
    fn names_are_short_and_unique_by_resource_and_process() {
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

    #[tokio::test] // rule 3
    async fn sockets_of_killed_agents_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let _running = UnixListener::bind(path("akri-1.sock")).unwrap();
        drop(UnixListener::bind(path("akri-2.sock")).unwrap());
        drop(UnixListener::bind(path("others.sock")).unwrap());
        fs::write(path("akri-file"), "").unwrap();
        Sockets::new(dir.path().to_owned());
        let left = ["akri-1.sock", "akri-2.sock", "others.sock", "akri-file"].map(|name| path(name).exists());
        assert_eq!(left, [true, false, true, true]);
    }

    #[tokio::test] // rule 3
    async fn socket_is_removed_with_its_owner_unless_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let sockets = Arc::new(Sockets::new(dir.path().to_owned()));
        let (own, _listener) = sockets.bind("akri.sh/a").unwrap();
        let path = dir.path().join(&own.name);
        assert!(!own.file.is_lost() && !sockets.any_missing());
        drop(own);
        assert!(!path.exists() && !sockets.any_missing());

        let (own, _listener) = sockets.bind("akri.sh/a").unwrap();
        let path = dir.path().join(&own.name);
        // Kept under another name, so that the file system can't reuse its inode for the new socket.
        fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(own.file.is_lost() && sockets.any_missing());
        let _other = UnixListener::bind(&path).unwrap();
        assert!(own.file.is_lost());
        drop(own);
        assert!(path.exists());
    }
}
