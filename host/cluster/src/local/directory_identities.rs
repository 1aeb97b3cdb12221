//! The identities of the directories that the manifests were read from. A directory of the same path may be another
//! one: that below a volume which is not mounted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::saved::Saved;

/// The identity of each directory by path, kept in the state directory.
#[derive(Debug)]
pub(super) struct DirectoryIdentities(Saved<BTreeMap<PathBuf, String>>);

impl DirectoryIdentities {
    /// Reads the file of a state directory.
    pub(super) fn open(state: &Path) -> Self {
        Self(Saved::open(state, "directories.json"))
    }

    /// Returns whether a directory is another one than was recorded.
    pub(super) fn is_other(&self, directory: &Path) -> bool {
        self.0.value.get(directory).is_some_and(|known| identity(directory).as_ref() != Some(known))
    }

    /// Records a directory as it is.
    pub(super) fn set(&mut self, directory: &Path) {
        let Some(now) = identity(directory) else { return };
        if self.0.value.insert(directory.to_owned(), now.clone()) != Some(now) {
            self.0.save();
        }
    }
}

/// Returns the file system's device number and the inode.
fn identity(directory: &Path) -> Option<String> {
    let metadata = fs::metadata(directory).ok()?;
    Some(format!("{}:{}", metadata.dev(), metadata.ino()))
}
