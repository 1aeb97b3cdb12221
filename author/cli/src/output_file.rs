//! Files that commands write.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::path::Path;

use akri_node::if_found;
use anyhow::Context as _;

/// Writes a file as a whole: one that is there stays until the new one is complete, which gets its permissions. What is no file, such
/// as a pipe, gets the bytes.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = match path.symlink_metadata() {
        Ok(found) if !found.is_file() => fs::write(path, bytes),
        found => replace(path, bytes, found.ok().map(|found| found.permissions())),
    };
    written.with_context(|| format!("cannot write '{}'", path.display()))
}

/// Writes a new file beside it, by a name that is no user's, and renames that.
fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    let beside = path.with_file_name(format!(".akri-{}", std::process::id()));
    if_found(fs::remove_file(&beside))?; // of a command that was killed
    let mut file = File::create_new(&beside)?;
    let permitted = permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions));
    let written = permitted.and_then(|()| file.write_all(bytes)).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| drop(fs::remove_file(&beside))) // the first error says more
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn replaced_file_keeps_its_mode_and_its_neighbours() {
        let root = std::env::temp_dir().join(format!("akri-output-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let (file, neighbour) = (root.join("a.jsonl"), root.join("a.jsonl.new"));
        fs::write(&neighbour, "kept").unwrap();
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        write(&file, b"new").unwrap();
        assert_eq!((fs::read(&file).unwrap(), fs::read(&neighbour).unwrap()), (b"new".to_vec(), b"kept".to_vec()));
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
        fs::remove_dir_all(&root).unwrap();
    }
}
