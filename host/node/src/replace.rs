//! Atomic replacement of files: readers see the old file or the new one.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces the content of a file; with `sync` it survives a loss of power. The directory is created if needed. The
/// temporary file ends in `.new`.
pub fn replace(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    if fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    if sync {
        file.sync_data()?;
    }
    fs::rename(&beside, path)?;
    if sync { File::open(directory)?.sync_all() } else { Ok(()) }
}
