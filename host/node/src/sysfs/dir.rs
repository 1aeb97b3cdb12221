//! Files and directories below a root, by `openat2(2)`: no link leads out of it, whatever the tree holds.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};

/// A directory that was reached without following a link.
#[derive(Debug)]
pub(super) struct Dir(OwnedFd);

impl Dir {
    /// The root itself; its own path may hold links, since the operator chose it.
    pub(super) fn root(path: &Path) -> io::Result<Self> {
        Ok(Self(fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// The directory at a path below this one.
    pub(super) fn dir(&self, path: &str) -> io::Result<Self> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY).map(Self)
    }

    /// Reads a file into `buffer`; what does not fit is left out.
    ///
    /// One `read` is enough: sysfs and tmpfs give all they have at once. Without `NONBLOCK` a named pipe would hang.
    pub(super) fn read<'b>(&self, name: &str, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let file = self.open(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let length = rustix::io::read(&file, &mut *buffer)?;
        Ok(buffer.get(..length).unwrap_or_default())
    }

    /// Returns whether there is an entry of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.open(name, OFlags::PATH).is_ok()
    }

    /// The text of the link `name`, which has to be a single component.
    pub(super) fn link(&self, name: &str) -> Option<String> {
        let target = fs::readlinkat(&self.0, name, Vec::new()).ok()?;
        target.into_string().ok()
    }

    /// Returns the last component of the link `name`.
    pub(super) fn link_name(&self, name: &str) -> Option<String> {
        let target = self.link(name)?;
        target.rsplit('/').next().map(str::to_owned)
    }

    /// The names of its entries of a type.
    pub(super) fn names(&self, wanted: FileType) -> io::Result<Names> {
        let mut names = Vec::new();
        for entry in fs::Dir::new(self.open(".", OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type() == wanted && name != c"." && name != c".." {
                names.push(name.to_str().ok().map(str::to_owned));
            }
        }
        Ok(names)
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(fs::openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }
}

/// Names in a directory; those that are not UTF-8 are none.
pub(super) type Names = Vec<Option<String>>;

/// Resolves a link in `directory` to a path from the root such as `/devices/virtual/tty/tty1`; `None` if it is absolute
/// or leads above the root.
pub(super) fn resolve(directory: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.iter().fold(String::with_capacity(directory.len() + target.len()), |path, part| path + "/" + part))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_resolve_from_where_they_lie() {
        for (directory, target, path) in [
            ("/class/tty", "../../devices/virtual/tty/tty1", Some("/devices/virtual/tty/tty1")),
            ("/devices/a/b", "../c", Some("/devices/a/c")),
            ("/devices", "./a//b", Some("/devices/a/b")),
            ("/class/tty", "../../../etc", None),
            ("/class/tty", "/etc/passwd", None),
        ] {
            assert_eq!(resolve(directory, target).as_deref(), path, "{target}");
        }
    }

    #[test]
    fn nothing_outside_the_root_is_opened() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let inside = tempfile::tempdir().unwrap();
        symlink(outside.path(), inside.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), inside.path().join("secret")).unwrap();
        symlink("self", inside.path().join("self")).unwrap();
        let root = Dir::root(inside.path()).unwrap();
        let mut buffer = [0; 16];
        for name in ["secret", "out/secret", "self", "../secret", "/etc/passwd", "."] {
            assert!(root.read(name, &mut buffer).is_err(), "{name}");
        }
        for name in ["out", "..", "/", "self"] {
            assert!(root.dir(name).is_err(), "{name}");
        }
    }

    #[test]
    fn pipe_without_a_writer_does_not_hang_a_read() {
        let inside = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, inside.path().join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        let root = Dir::root(inside.path()).unwrap();
        assert_eq!(root.read("pipe", &mut [0; 16]).unwrap(), b"");
    }

    #[test]
    fn long_file_is_cut() {
        let inside = tempfile::tempdir().unwrap();
        std::fs::write(inside.path().join("long"), [b'x'; 100]).unwrap();
        let root = Dir::root(inside.path()).unwrap();
        assert_eq!(root.read("long", &mut [0; 10]).unwrap().len(), 10);
    }
}
