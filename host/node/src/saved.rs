//! Values that survive restarts of the agent.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::json_file;

/// A value in a JSON file of a state directory.
#[derive(Debug)]
pub struct Saved<T> {
    path: Option<PathBuf>,
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
    /// Reads the file. An absent or unreadable one counts as empty; without a state directory the value is forgotten at the end.
    pub fn open(state: Option<&Path>, file: &str) -> Self {
        let path = state.map(|state| state.join(file));
        let read = path.as_deref().map(json_file::read).transpose();
        let value = read.inspect_err(|error| warn!("{error}; it counts as empty")).ok().flatten().flatten();
        Self { path, value: value.unwrap_or_default(), is_changed: false }
    }

    /// Writes the file, unless it holds the value already. A failure is logged, and the file written the next time.
    pub fn save(&mut self) {
        if let Some(path) = self.path.as_deref().filter(|_| self.is_changed) {
            let written = json_file::write(path, &self.value, true);
            self.is_changed = written.inspect_err(|error| warn!("{error}")).is_err();
        }
    }
}
