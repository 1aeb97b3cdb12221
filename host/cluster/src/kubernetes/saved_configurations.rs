//! The last valid version of each Configuration, in a file: an agent that starts while one is invalid, or that is stricter
//! than the one before, keeps serving what was in force (rule 44).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use akri_api::Configuration;
use akri_node::replace::replace;
use tracing::warn;

/// Configurations by UID, as of their last valid version.
#[derive(Debug, Default)]
pub(super) struct SavedConfigurations {
    /// None: nothing is written.
    path: Option<PathBuf>,
    objects: BTreeMap<String, Configuration>,
    /// The content of the file.
    text: Vec<u8>,
}

impl SavedConfigurations {
    /// Reads the file of a state directory. A file that can't be read counts as missing.
    pub(super) fn open(state: &Path) -> Self {
        let path = state.join("configurations-in-force.json");
        let text = fs::read(&path).unwrap_or_default(); // there is none at first
        let objects = serde_json::from_slice(&text).unwrap_or_default();
        Self { path: Some(path), objects, text }
    }

    /// Returns the last valid version of the object with this UID.
    pub(super) fn get(&self, uid: &str) -> Option<&Configuration> {
        self.objects.get(uid)
    }

    /// Keeps a version that is valid.
    pub(super) fn put(&mut self, uid: &str, configuration: Configuration) {
        self.objects.insert(uid.to_owned(), configuration);
    }

    /// Forgets an object that was deleted.
    pub(super) fn remove(&mut self, uid: &str) {
        self.objects.remove(uid);
    }

    /// Keeps the objects that a test holds for.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.objects.retain(|uid, _| exists(uid));
    }

    /// Writes the file if it changed.
    pub(super) fn write(&mut self) {
        let Some(path) = &self.path else { return };
        let text = serde_json::to_vec(&self.objects).unwrap_or_default(); // plain data always has a JSON form
        if text == self.text {
            return;
        }
        match replace(path, &text, true) {
            Ok(()) => self.text = text,
            Err(error) => warn!("cannot write '{}': {error}", path.display()),
        }
    }
}
