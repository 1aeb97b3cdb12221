//! Values that survive restarts of the agent.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use akri_node::json_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// A value in a JSON file of the state directory.
#[derive(Debug)]
pub(crate) struct Saved<T> {
    path: PathBuf,
    value: T,
    /// It was lent to be changed since it was saved.
    is_changed: bool,
}

impl<T> Deref for Saved<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Saved<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.is_changed = true;
        &mut self.value
    }
}

impl<T: Default + Serialize + DeserializeOwned> Saved<T> {
    /// Reads the file. An absent or unreadable one counts as empty.
    pub(crate) fn open(state: &Path, file: &str) -> Self {
        let path = state.join(file);
        let value = json_file::read(&path).ok().flatten().unwrap_or_default();
        Self { path, value, is_changed: false }
    }

    /// Writes the file, unless it holds the value already. A failure is logged, and the file written the next time.
    pub(crate) fn save(&mut self) {
        if self.is_changed {
            let written = json_file::write(&self.path, &self.value, true);
            self.is_changed = written.inspect_err(|error| warn!("{error}")).is_err();
        }
    }
}
