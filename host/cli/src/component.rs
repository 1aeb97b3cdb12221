//! Files of components.

use std::path::Path;

use akri_node::regular_file;
use akri_oci::MAX_COMPONENT;
use anyhow::Context as _;

use crate::output::plain;

/// Reads a component.
///
/// # Errors
/// If it can't be read, is no regular file, or is too large.
pub fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let read = regular_file::read(file, MAX_COMPONENT);
    read.with_context(|| format!("cannot read '{}'", plain(&file.display().to_string())))
}
