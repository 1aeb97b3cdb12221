//! Reads the directory of a claim, in which a container may have put anything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use akri_model::broker_info::{FileRefusal, MAX_FILE, NOT_REGULAR, Reading, TOO_LONG, UNREADABLE};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

/// Limit on the entries read: a directory may have millions.
const MAX_ENTRIES: usize = 1024;

/// Returns the files that may be published. The directory itself can't be replaced by a container.
pub(super) fn read(directory: &Path) -> io::Result<Reading> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory)?.take(MAX_ENTRIES) {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    let directory = File::open(directory)?;
    Ok(Reading::of(&names, |name| bytes(directory.as_fd(), name)))
}

/// Returns the content of a regular file, at most one byte more than the longest that is published.
fn bytes(directory: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, FileRefusal> {
    let found = find(directory, name).map_err(refusal)?;
    let status = fstat(&found).map_err(refusal)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(NOT_REGULAR);
    }
    if usize::try_from(status.st_size).map_or(true, |size| size > MAX_FILE) {
        return Err(TOO_LONG);
    }
    let mut bytes = Vec::new();
    let file = File::from(reopen(&found).map_err(refusal)?);
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|_| UNREADABLE)?;
    Ok(bytes)
}

/// Looks a name up without opening it: opening a device can do harm, and opening a FIFO waits for its other end.
/// Kernels before 5.6, and some seccomp profiles, have no openat2; a name without a slash leads nowhere else either.
fn find(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let beneath =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match openat2(directory, name, flags, Mode::empty(), beneath) {
        Err(Errno::NOSYS | Errno::PERM) => openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty()),
        found => found,
    }
}

/// Opens exactly the file that was found, whatever has its name by now. A lease that its owner holds does not delay that.
fn reopen(found: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

fn refusal(error: Errno) -> FileRefusal {
    match error {
        Errno::LOOP | Errno::XDEV => NOT_REGULAR,
        _ => UNREADABLE,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, mkfifoat};
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    #[test] // rule 39, threat 16
    fn only_regular_text_files_are_read() {
        let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| directory.path().join(name);
        fs::write(outside.path().join("secret"), "opensesame").unwrap();
        fs::write(path("version"), "2.1").unwrap();
        fs::write(path("binary"), [0xff, 0x00]).unwrap();
        File::create(path("huge")).unwrap().set_len(1 << 30).unwrap();
        fs::write(path("long"), vec![b'x'; MAX_FILE + 1]).unwrap();
        fs::write(path(".part"), "unfinished").unwrap();
        symlink(outside.path().join("secret"), path("absolute")).unwrap();
        symlink("version", path("relative")).unwrap();
        symlink("/proc/self/environ", path("magic")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        mkfifoat(CWD, path("fifo"), Mode::from_raw_mode(0o666)).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        fs::create_dir(path("inner")).unwrap();
        fs::write(path("inner/file"), "x").unwrap();
        let reading = read(directory.path()).unwrap();
        assert_eq!(reading.files, [("version".to_owned(), "2.1".to_owned())].into());
        let of = |wanted| {
            let refused = reading.refused.iter().filter(move |(_, why)| **why == wanted);
            refused.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let links = ["absolute", "dangling", "fifo", "inner", "magic", "relative", "socket"];
        assert_eq!(of(NOT_REGULAR), links);
        assert_eq!(of(TOO_LONG), ["huge", "long"]);
        assert_eq!(of(akri_model::broker_info::NOT_UTF8), ["binary"]);
    }

    #[test] // rule 39
    fn file_that_is_replaced_by_a_link_is_read_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("version");
        fs::write(&path, "2.1").unwrap();
        let opened = File::open(directory.path()).unwrap();
        let found = find(opened.as_fd(), "version").unwrap();
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        let mut text = String::new();
        File::from(reopen(&found).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "2.1");
    }

    #[test]
    fn full_directory_costs_a_bounded_amount() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..2 * MAX_ENTRIES {
            fs::write(directory.path().join(format!("f{number}")), "x").unwrap();
        }
        let reading = read(directory.path()).unwrap();
        assert_eq!(reading.files.len(), 16);
        assert!(reading.refused.values().all(|why| *why == akri_model::broker_info::TOO_MANY));
    }

    #[test]
    fn unreadable_file_is_refused_and_the_others_are_read() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["closed", "open"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        fs::set_permissions(directory.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        // Root may read everything, until it gives that up, as this thread does.
        let read = || {
            let held = capabilities(None).unwrap();
            let effective = held.effective - CapabilitySet::DAC_OVERRIDE - CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
            read(directory.path()).unwrap()
        };
        let reading = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
        assert_eq!(reading.refused, [("closed".to_owned(), UNREADABLE)].into());
        assert_eq!(reading.files.len(), 1);
    }
}
