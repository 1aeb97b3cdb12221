//! Reading of regular files, whatever lies at their path: opening a pipe would wait for a writer, and a device has no end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Opens a regular file, also behind a link. Anything else is not opened, not even for a moment: that arms a watchdog.
///
/// # Errors
/// If it can't be opened, or is something else.
pub fn open(path: &Path) -> io::Result<File> {
    let found = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    match found.metadata()?.file_type() {
        kind if kind.is_file() => File::open(format!("/proc/self/fd/{}", found.as_raw_fd())),
        kind if kind.is_dir() => Err(Errno::ISDIR.into()),
        _ => Err(io::Error::other("not a regular file")),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// If it can't be read, is something else, or is larger ([`ErrorKind::FileTooLarge`]).
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let size = file.metadata()?.len().min(most);
    read_bounded(file, most, Vec::with_capacity(usize::try_from(size).unwrap_or_default()))
}

/// Reads at most `most` bytes from a source, after those of `bytes`.
///
/// # Errors
/// If it can't be read, or has more ([`ErrorKind::FileTooLarge`]).
pub fn read_bounded(source: impl Read, most: u64, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("larger than {most} bytes")));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `most` bytes as a text.
///
/// # Errors
/// As [`read`], or if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// Returns bytes as a text.
///
/// # Errors
/// If they are not UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::other("not a text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink("/dev/zero", path("endless")).unwrap();
        mkfifoat(CWD, path("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_text(&path(name), 4).unwrap(), "text");
            assert_eq!(read(&path(name), 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        }
        for name in ["endless", "pipe"] {
            assert_eq!(read(&path(name), 4).unwrap_err().to_string(), "not a regular file", "{name}");
        }
        assert_eq!(read(directory.path(), 4).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(read(&path("absent"), 4).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// A watchdog is armed by an open. A terminal without a master, like a pipe without a reader, tells whether it was opened.
    #[test] // threat 61
    fn devices_are_looked_at_and_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("x.yaml");
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        let writer = || rustix::fs::open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let watched = std::thread::scope(|scope| {
            let opened = scope.spawn(|| (0..20_000).any(|_| writer().is_ok()));
            for _ in 0..20_000 {
                assert!(open(&pipe).is_err());
            }
            opened.join().unwrap()
        });
        assert!(!watched, "a writer found a reader");
        assert_eq!(writer().unwrap_err(), Errno::NXIO);
    }
}
