//! Files that commands write.

use std::fs;
use std::path::Path;

use akri_node::replace;
use anyhow::Context as _;

/// Writes a file as a whole: one that is there stays until the new one is complete. What is no file, such as a pipe, gets the
/// bytes.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let is_file = path.symlink_metadata().map_or(true, |found| found.is_file());
    let written = if is_file { replace::write(path, bytes, false) } else { fs::write(path, bytes) };
    written.with_context(|| format!("cannot write '{}'", path.display()))
}
