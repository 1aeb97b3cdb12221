//! The identities of the directories that the manifests were read from. A directory of the same path may be another
//! one: that below a volume which is not mounted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use akri_node::replace::replace;
use tracing::warn;

/// The identity of each directory by path, kept in the state directory.
#[derive(Debug)]
pub(super) struct DirectoryIdentities {
    file: PathBuf,
    known: BTreeMap<PathBuf, String>,
    changed: bool,
}

impl DirectoryIdentities {
    /// Reads the file; one that is unreadable is treated as empty.
    pub(super) fn open(state: &Path) -> Self {
        let file = state.join("directories.json");
        let text = fs::read(&file).unwrap_or_default(); // it does not exist at first
        Self { file, known: serde_json::from_slice(&text).unwrap_or_default(), changed: false }
    }

    /// Returns whether a directory is another one than was recorded.
    pub(super) fn is_other(&self, directory: &Path) -> bool {
        self.known.get(directory).is_some_and(|known| identity(directory).as_ref() != Some(known))
    }

    /// Records a directory as it is.
    pub(super) fn set(&mut self, directory: &Path) {
        let Some(now) = identity(directory) else { return };
        self.changed |= self.known.insert(directory.to_owned(), now.clone()) != Some(now);
    }

    /// Writes the file if something changed.
    pub(super) fn write(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let text = serde_json::to_vec(&self.known).unwrap_or_default(); // a path that is no UTF-8 is not recorded
        if let Err(error) = replace(&self.file, &text, false) {
            warn!("cannot write '{}': {error}", self.file.display());
        }
    }
}

/// The file system's device number and the inode.
fn identity(directory: &Path) -> Option<String> {
    let metadata = fs::metadata(directory).ok()?;
    Some(format!("{}:{}", metadata.dev(), metadata.ino()))
}
