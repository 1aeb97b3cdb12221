//! Values that survive restarts of the agent.

use std::path::{Path, PathBuf};

use akri_node::json_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// A value in a JSON file of the state directory.
#[derive(Debug)]
pub(crate) struct Saved<T> {
    path: PathBuf,
    pub(crate) value: T,
}

impl<T: Default + Serialize + DeserializeOwned> Saved<T> {
    /// Reads the file. An absent or unreadable one counts as empty.
    pub(crate) fn open(state: &Path, file: &str) -> Self {
        let path = state.join(file);
        let value = json_file::read(&path).ok().flatten().unwrap_or_default();
        Self { path, value }
    }

    /// Writes the file, unless it holds the value already. A failure is logged.
    pub(crate) fn save(&self) {
        if let Err(error) = json_file::write(&self.path, &self.value, true) {
            warn!("{error}");
        }
    }
}
