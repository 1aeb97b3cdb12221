//! The state directory: the journal in it says who has which device, and the compiled components in it are run. So nobody
//! else may write to it, or put another one in its place.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Bits of a directory's mode: others may write, the group may, and only owners may remove what is in it.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Makes the state directory for this user alone, and checks the way to it.
///
/// # Errors
/// If others could change what is in it.
pub(crate) fn prepare(path: &Path, handlers: &Path) -> Result<(), String> {
    let shown = path.display();
    let failed =
        |reason| format!("cannot create state directory '{shown}': {reason}; set another one with --state-dir");
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let real = path.canonicalize().map_err(failed)?;
    // It may not have been made yet.
    let handlers = handlers.canonicalize().unwrap_or_else(|_| handlers.to_owned());
    if real.starts_with(&handlers) {
        return Err(format!(
            "state directory '{shown}' is inside of '{}', which remote handlers may write to; name one elsewhere with --state-dir, \
             and move what is in this one there",
            handlers.display()
        ));
    }
    for parent in real.ancestors() {
        let metadata = parent.metadata().map_err(failed)?;
        if let Some(why) = weakness(&metadata) {
            let parent = parent.display();
            return Err(format!(
                "state directory '{shown}' is not safe: '{parent}' {why}; name another one with --state-dir"
            ));
        }
    }
    fs::set_permissions(&real, Permissions::from_mode(0o700)).map_err(failed)
}

/// Returns the reason why others can change the contents of a directory, if they can.
fn weakness(metadata: &Metadata) -> Option<&'static str> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let (mode, is_sticky) = (metadata.mode(), metadata.mode() & STICKY != 0);
    if !matches!(metadata.uid(), 0) && metadata.uid() != user {
        return Some("belongs to another user");
    }
    if is_sticky {
        return None;
    }
    if mode & OTHERS_WRITE != 0 {
        return Some("can be written by everybody");
    }
    // Many systems give each user a group of their own, which may write.
    let is_other_group = metadata.gid() != 0 && metadata.gid() != group;
    (mode & GROUP_WRITES != 0 && is_other_group).then_some("can be written by another group")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directory_is_private() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lib/state");
        prepare(&path, &root.path().join("handlers")).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        prepare(&path, &root.path().join("handlers")).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700, "one of before is closed");
    }

    #[test] // threat 10
    fn state_in_the_handlers_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let handlers = root.path().join("akri");
        fs::create_dir(&handlers).unwrap();
        std::os::unix::fs::symlink(&handlers, root.path().join("link")).unwrap();
        for path in [handlers.join("state"), handlers.clone(), root.path().join("link/state")] {
            let error = prepare(&path, &handlers).unwrap_err();
            assert!(error.contains("which remote handlers may write to"), "{error}");
        }
        prepare(&root.path().join("akri-agent"), &handlers).unwrap();
    }

    #[test]
    fn parent_writable_by_others_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().join("open");
        fs::create_dir(&parent).unwrap();
        fs::set_permissions(&parent, Permissions::from_mode(0o777)).unwrap();
        let error = prepare(&parent.join("state"), &root.path().join("handlers")).unwrap_err();
        assert!(error.contains("is not safe"), "{error}");
        fs::set_permissions(&parent, Permissions::from_mode(0o1777)).unwrap();
        prepare(&parent.join("state"), &root.path().join("handlers")).unwrap();
    }
}
