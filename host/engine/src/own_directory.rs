//! The directory of compiled components, whose content is executed: it belongs to this user alone.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Creates the directory, or closes it to other users. A directory that others could write to is emptied.
///
/// # Errors
/// If it belongs to another user, or if it can't be created or closed.
pub fn own_directory(path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("the path has to be absolute".to_owned());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| error.to_string())?;
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(directory = %path.display(), "others can enter the directory of compiled components (mode {mode:o}); closing it");
    let closed = if mode & 0o022 == 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))
    } else {
        fs::remove_dir_all(path).and_then(|()| DirBuilder::new().mode(0o700).create(path))
    };
    closed.map_err(|error| format!("its mode is {mode:o}, and it cannot be closed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_directory_is_made_for_us_alone() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("a/b");
        own_directory(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        own_directory(&path).unwrap();
    }

    #[test]
    fn cache_directory_that_others_can_enter_is_closed() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("compiled");
        for (mode, is_kept) in [(0o755, true), (0o770, false), (0o702, false)] {
            own_directory(&path).unwrap();
            fs::write(path.join("code"), "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            own_directory(&path).unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700, "{mode:o}");
            assert_eq!(path.join("code").exists(), is_kept, "what others could write is not run: {mode:o}");
        }
    }

    #[test]
    fn cache_directory_that_can_t_be_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(own_directory(&file.path().join("below")).is_err());
        assert!(own_directory(Path::new("relative")).unwrap_err().contains("absolute"));
    }
}
