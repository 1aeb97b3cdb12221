//! JSON files that are replaced atomically.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::regular_file;
use crate::replace::replace;

/// Reads a value; `None` if there is no such file.
///
/// # Errors
/// If the file can't be read or holds something else; the error names it.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match regular_file::read(path, u64::MAX) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed("read", path, &error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// Replaces the content of a file; with `sync` it survives a loss of power.
///
/// # Errors
/// If the file can't be written; the error names it.
pub fn write<T: Serialize + ?Sized>(path: &Path, value: &T, sync: bool) -> io::Result<()> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::from);
    bytes.and_then(|bytes| replace(path, &bytes, sync)).map_err(|error| failed("write", path, &error))
}

/// Adds to an error what failed, and the file's path.
pub fn failed(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} '{}': {error}", path.display()))
}
