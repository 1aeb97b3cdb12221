//! Socket files: the identity of a file, and sockets that are removed with their owner.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The identity of the file at a path. A path that is unlinked and bound again has another identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    /// The change time distinguishes files, since file systems reuse the inodes of removed files.
    changed: (i64, i64),
}

impl FileId {
    /// Returns the identity of the file at this path, without following links; `None` if there is none or it can't be
    /// read.
    pub fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|metadata| Self::from(&metadata))
    }

    /// Like [`FileId::of`], but only for sockets.
    pub fn of_socket(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        metadata.file_type().is_socket().then(|| Self::from(&metadata))
    }

    /// Returns whether both have the same inode. Change times are ignored: the owner or mode of a file may change.
    fn same_inode(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), changed: (metadata.ctime(), metadata.ctime_nsec()) }
    }
}

/// Returns whether nobody listens on a socket, without waiting: one with a full backlog is in use.
pub fn is_refused(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let connected = socket.and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    connected == Err(Errno::CONNREFUSED)
}

/// A socket file bound by this process. It is removed on drop if it is still the same file.
#[derive(Debug)]
pub struct OwnSocket {
    path: PathBuf,
    id: FileId,
}

impl OwnSocket {
    /// Takes ownership of a file that was just bound.
    ///
    /// # Errors
    /// If the file no longer exists.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let id = FileId::of(&path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { path, id })
    }

    /// Renames the socket, replacing any file of the new name.
    ///
    /// # Errors
    /// If the file can't be renamed; the socket is then removed.
    pub fn rename(mut self, path: PathBuf) -> io::Result<Self> {
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(self)
    }

    /// Returns whether the path no longer leads to this socket.
    pub fn is_lost(&self) -> bool {
        FileId::of(&self.path).is_none_or(|id| !id.same_inode(self.id))
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if !self.is_lost() {
            // If the file is already gone nothing is left to do; other errors can't be handled here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn own_socket_is_removed_on_drop_unless_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let own = OwnSocket::new(path.clone()).unwrap();
        assert!(!own.is_lost());
        drop(own);
        assert!(!path.exists());

        let _listener = UnixListener::bind(&path).unwrap();
        let own = OwnSocket::new(path.clone()).unwrap().rename(dir.path().join("b.sock")).unwrap();
        let path = dir.path().join("b.sock");
        // Kept under another name, so that the file system can't reuse its inode for the new socket.
        fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(own.is_lost());
        let _other = UnixListener::bind(&path).unwrap();
        assert!(own.is_lost());
        drop(own);
        assert!(path.exists());
    }

    #[test]
    fn file_id_of_socket_is_none_for_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        assert_eq!(FileId::of_socket(&path), None);
        fs::write(&path, "").unwrap();
        assert_eq!(FileId::of_socket(&path), None);
        assert!(FileId::of(&path).is_some());
    }
}
