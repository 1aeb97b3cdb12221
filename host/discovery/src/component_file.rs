//! Bounded reading of component files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use akri_model::grant::{CompileLimits, Isolation};
use akri_node::regular_file;
use akri_oci::{MAX_COMPONENT, digest_of};
use akri_sandbox::{Component, Host, LoadError};
use tokio::task::spawn_blocking;

use crate::registry::Refused;

/// The content of a component file, or of an image.
pub(crate) struct ComponentFile {
    /// The path of the file, or the reference of the image.
    pub(crate) path: PathBuf,
    bytes: Vec<u8>,
    /// SHA-256 in lower hex.
    pub(crate) digest: String,
}

impl ComponentFile {
    /// Reads the file of that name from the first directory that has it.
    pub(crate) async fn read(directories: &[PathBuf], name: &str) -> Result<Self, Refused> {
        let path = locate(directories, name);
        let bytes = read(&path).await?;
        Ok(Self::new(path, bytes))
    }

    /// The content of that file or image.
    pub(crate) fn new(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self { digest: digest_of(&bytes).hex().to_owned(), path, bytes }
    }

    /// Compiles the component within limits, and loads it.
    pub(crate) async fn load(
        self,
        host: &Host,
        limits: &CompileLimits,
        isolation: Isolation,
    ) -> Result<Component, Refused> {
        let loaded = host.load(self.bytes, limits, isolation).await;
        let path = self.path.display();
        loaded.map_err(|error| match error {
            LoadError::Unavailable(why) => {
                Refused::temporary("SandboxFailed", format!("component '{path}': {why}; retrying"))
            }
            error => Refused::new("Invalid", format!("component '{path}': {error}")),
        })
    }
}

fn locate(directories: &[PathBuf], name: &str) -> PathBuf {
    let mut paths = directories.iter().map(|directory| directory.join(name));
    let first = paths.clone().next().unwrap_or_else(|| PathBuf::from(name));
    paths.find(|path| path.exists()).unwrap_or(first)
}

async fn read(path: &Path) -> Result<Vec<u8>, Refused> {
    let (file, shown) = (path.to_owned(), path.display());
    let read = spawn_blocking(move || regular_file::read(&file, MAX_COMPONENT)).await;
    read.unwrap_or_else(|error| Err(error.into())).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => Refused::new("TooLarge", format!("component '{shown}' is {error}")),
        _ => Refused::new("Unreadable", format!("cannot read component '{shown}': {error}")),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[tokio::test] // rule 91
    async fn invalid_component_files_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("directory.wasm")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("endless.wasm")).unwrap();
        mkfifoat(CWD, path("pipe.wasm"), Mode::RUSR | Mode::WUSR).unwrap();
        fs::File::create(path("large.wasm")).unwrap().set_len(MAX_COMPONENT + 1).unwrap();
        for (name, reason, what) in [
            ("absent.wasm", "Unreadable", "No such file"),
            ("directory.wasm", "Unreadable", "Is a directory"),
            ("endless.wasm", "Unreadable", "not a regular file"),
            ("pipe.wasm", "Unreadable", "not a regular file"),
            ("large.wasm", "TooLarge", "is larger than 67108864 bytes"),
        ] {
            let read = ComponentFile::read(&[directory.path().to_owned()], name).await;
            let Err(refusal) = read else { panic!("{name}") };
            let expected = refusal.message;
            assert_eq!(refusal.reason, reason, "{name}");
            assert!(expected.contains(what) && expected.contains(path(name).to_str().unwrap()), "{expected}");
        }
    }

    #[tokio::test] // rule 91
    async fn first_directory_with_the_file_wins() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directories = [first.path().to_owned(), second.path().to_owned()];
        fs::write(second.path().join("x.wasm"), "").unwrap();
        let read = async || ComponentFile::read(&directories, "x.wasm").await.ok().map(|file| file.path);
        assert_eq!(read().await, Some(second.path().join("x.wasm")));
        fs::write(first.path().join("x.wasm"), "").unwrap();
        assert_eq!(read().await, Some(first.path().join("x.wasm")));
    }
}
