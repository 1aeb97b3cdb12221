//! Atomic replacement of files: readers see the old file or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::regular_file;

/// Replaces the content of a file; with `sync` it survives a loss of power. The directory is created if needed. The
/// temporary file has the same name with `.new` after it.
pub fn replace(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    if regular_file::read(path, u64::MAX).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    fs::create_dir_all(directory_of(path))?;
    write(path, bytes, sync)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Like [`replace`] in a directory that exists, but also writes a content that the file seems to have: after a failure it may not be on
/// disk.
pub fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = create(Path::new(&beside))?;
    file.write_all(bytes)?;
    if sync {
        file.sync_data()?;
    }
    fs::rename(&beside, path)?;
    if sync { File::open(directory_of(path))?.sync_all() } else { Ok(()) }
}

/// Creates or empties a file. A link is not followed: who can write to the directory would choose what is overwritten.
fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that differ in the extension only are written at the same time.
    #[test]
    fn temporary_file_is_that_of_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("a.new")).unwrap();
        fs::create_dir(path("a.manifest.new")).unwrap();
        replace(&path("a.wasm"), b"new", true).unwrap();
        assert_eq!(fs::read(path("a.wasm")).unwrap(), b"new");
        assert!(!path("a.wasm.new").exists());
    }

    #[test]
    fn link_in_place_of_the_temporary_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("precious"), "kept").unwrap();
        std::os::unix::fs::symlink(path("precious"), path("a.json.new")).unwrap();
        assert!(replace(&path("a.json"), b"new", false).is_err());
        assert_eq!(fs::read(path("precious")).unwrap(), b"kept");
    }
}
