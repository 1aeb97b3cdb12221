//! The directories of claims on disk. Containers write into them, so that whatever they hold is hostile.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_model::broker_info::{ClaimDirectory, Reading};
use akri_node::json_file::failed;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use tokio::sync::Notify;

use super::{BrokerInfo, reader};

/// Name of the directory of all these directories in the state directory.
const NAME: &str = "broker-info";

/// Every user of a container may write, and remove only what is its own. The directory above is closed to others.
const MODE: u32 = 0o1777;

/// Depth to which a directory is removed. Brokers have no reason to nest directories, and a container can nest so many that a
/// recursion would never end.
const MAX_DEPTH: usize = 8;

impl BrokerInfo {
    /// Opens the directories in a state directory, which the node may know under another path. The directory above them is created
    /// if needed, closed to other users.
    ///
    /// # Errors
    /// If they can't be read or created.
    pub fn open(state: &Path, host_state: &Path) -> io::Result<Arc<Self>> {
        let path = state.join(NAME);
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.map_err(|error| failed("create", &path, &error))?;
        let host_path = host_state.join(NAME).display().to_string();
        Ok(Arc::new(Self { path, host_path, created: Notify::new() }))
    }

    fn path_of(&self, directory: &ClaimDirectory) -> PathBuf {
        self.path.join(directory.to_string())
    }

    /// Returns all directories of claims.
    pub(super) fn list(&self) -> io::Result<BTreeSet<ClaimDirectory>> {
        let entries = fs::read_dir(&self.path).map_err(|error| failed("read", &self.path, &error))?;
        Ok(entries.filter_map(|entry| ClaimDirectory::parse(entry.ok()?.file_name().to_str()?)).collect())
    }

    /// Creates an empty directory.
    pub(super) fn create_one(&self, directory: &ClaimDirectory) -> io::Result<()> {
        let path = self.path_of(directory);
        let create = || {
            DirBuilder::new().mode(0o700).create(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(MODE)) // the umask does not apply
        };
        create().map_err(|error| failed("create", &path, &error))
    }

    /// Reads the files of a directory that may be published.
    pub(super) fn read(&self, directory: &ClaimDirectory) -> io::Result<Reading> {
        let path = self.path_of(directory);
        reader::read(&path).map_err(|error| failed("read", &path, &error))
    }

    /// Removes a directory with what is in it.
    pub(super) fn remove(&self, directory: &ClaimDirectory) -> io::Result<()> {
        let remove = || -> io::Result<()> {
            let name = CString::new(directory.to_string())?;
            remove(fs::File::open(&self.path)?.as_fd(), &name, MAX_DEPTH).map_err(io::Error::from)
        };
        remove().map_err(|error| failed("remove", &self.path_of(directory), &error))
    }
}

/// Removes a directory. Its container has ended, but may have left anything in it; should one still run, it can't lead this
/// elsewhere: each directory is opened without following links, and its entries are removed through its descriptor.
fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let inner = entry.file_name();
        if matches!(inner.to_bytes(), b"." | b"..") {
            continue;
        }
        match (unlinkat(&directory, inner, AtFlags::empty()), depth.checked_sub(1)) {
            (Err(Errno::ISDIR), Some(depth)) => remove(directory.as_fd(), inner, depth)?,
            (Err(Errno::ISDIR), None) => return Err(Errno::NOTEMPTY),
            (unlinked, _) => unlinked?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use akri_model::names::Key;

    use super::*;

    fn directory(generation: u64) -> ClaimDirectory {
        ClaimDirectory { instance: Key::new("default", "cam-8120fe"), slot: 0, generation }
    }

    #[test]
    fn directory_is_open_in_a_closed_one() {
        let state = tempfile::tempdir().unwrap();
        let directories = BrokerInfo::open(state.path(), state.path()).unwrap();
        directories.create_one(&directory(1)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&directories.path), 0o700);
        assert_eq!(mode(&directories.path_of(&directory(1))), MODE);
        assert!(directories.create_one(&directory(1)).is_err(), "a claim gets no directory that somebody wrote to");
        fs::create_dir(directories.path.join("lost+found")).unwrap();
        assert_eq!(directories.list().unwrap(), [directory(1)].into());
    }

    #[test] // rule 39
    fn removed_directory_takes_nothing_else_with_it() {
        let state = tempfile::tempdir().unwrap();
        let directories = BrokerInfo::open(state.path(), state.path()).unwrap();
        directories.create_one(&directory(1)).unwrap();
        let (path, precious) = (directories.path_of(&directory(1)), state.path().join("journal"));
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "precious").unwrap();
        symlink(&precious, path.join("link")).unwrap();
        fs::create_dir(path.join("inner")).unwrap();
        symlink(&precious, path.join("inner/link")).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        directories.remove(&directory(1)).unwrap();
        assert!(!path.exists() && precious.join("file").exists());
    }

    #[test] // rule 39, threat 17
    fn deeply_nested_directories_end_no_agent() {
        let state = tempfile::tempdir().unwrap();
        let directories = BrokerInfo::open(state.path(), state.path()).unwrap();
        directories.create_one(&directory(1)).unwrap();
        let mut path = directories.path_of(&directory(1));
        for _ in 0..500 {
            path.push("d");
            fs::create_dir(&path).unwrap();
        }
        let error = directories.remove(&directory(1)).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
    }
}
