//! Files that others read at any time: they see the old one or the new one, and nothing in between.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Makes a file hold these bytes; `sync` if it has to outlive a loss of power. The directory is made if need be. The file
/// that is renamed over it ends in `.new`, which nobody reads.
pub(crate) fn replace(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
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
