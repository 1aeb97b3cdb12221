//! Machine code that ships with the program, made by `akri handler compile --precompiled` when the image is made.
//!
//! It is as trusted as the program, so it is taken only from where nobody but root and this user can write. It is copied, and
//! recorded like the compiler's output.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use akri_engine::{LoadError, MAX_COMPONENT, Platform, settings_hash};
use akri_model::grant::CompileLimits;
use akri_model::text::hex;
use akri_node::{if_found, regular_file};
use rustix::fs::Mode;
use rustix::process::umask;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::artifacts::{Artifacts, MAX_CODE, RECORDS_DIR, Record};
use super::child;

/// Bytes of a record.
const MAX_RECORD: u64 = 4 << 10;
/// Bits of a mode: group and others may write; only owners may remove what is in the directory.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Copies the code of a component from a directory that ships with the program to where the compiler would have written it.
/// Returns `false` if there is none.
///
/// # Errors
/// If it is not for this engine, if others can write to it, or if it is not as it was made.
pub(super) fn copy(directory: &Path, artifacts: &Artifacts, digest: &str, scratch: &TempDir) -> io::Result<bool> {
    let Some(directory) = if_found(directory.canonicalize())? else { return Ok(false) };
    let record = read_trusted(&directory, &Path::new(RECORDS_DIR).join(digest), MAX_RECORD);
    let Some(record) = if_found(record)? else { return Ok(false) };
    let record = Record::parse(&String::from_utf8(record).map_err(io::Error::other)?)?;
    let file = record.path_for(artifacts.engine);
    let file = file.ok_or_else(|| io::Error::other(record.purpose(artifacts.platform)))?;
    let code = read_trusted(&directory, &file, MAX_CODE)?;
    record.check(&code)?;
    let target = scratch.path().join(file);
    target.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(target, code)?;
    Ok(true)
}

/// Reads a file below a directory, all parts of whose real path only root and this user can change.
fn read_trusted(directory: &Path, file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let path = directory.join(file);
    for part in path.ancestors() {
        // Above the directory, a sticky one such as /tmp keeps what is ours.
        let is_above = !part.starts_with(directory);
        check(part, &part.symlink_metadata()?, is_above)?;
    }
    let read = regular_file::read(&path, most);
    read.map_err(|error| io::Error::new(error.kind(), format!("'{}': {error}", path.display())))
}

/// Refuses what somebody else than root and this user can change.
fn check(path: &Path, metadata: &Metadata, sticky_is_enough: bool) -> io::Result<()> {
    let (owner, mode) = (metadata.uid(), metadata.mode());
    let refused = |why: String| Err(io::Error::other(format!("'{}' {why}", path.display())));
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return refused(format!("belongs to user {owner}"));
    }
    if metadata.is_symlink() {
        return refused("is a link".to_owned());
    }
    let is_kept = sticky_is_enough && mode & STICKY != 0;
    if mode & OTHERS_WRITE != 0 && !is_kept {
        return refused(format!("can be written by others (mode {:o})", mode & 0o7777));
    }
    Ok(())
}

/// Compiles a component for a platform, into a directory that ships with the program, in a process that the `program` starts.
/// All may read the files, and only their owner may write them.
///
/// # Errors
/// If the file can't be read or is no component, or if the directory can't be written to.
pub fn precompile(
    program: &Path,
    file: &Path,
    platform: Platform,
    directory: &Path,
    limits: &CompileLimits,
) -> Result<(), LoadError> {
    let component = regular_file::read(file, MAX_COMPONENT as u64);
    let component = component.map_err(|error| LoadError::Refused(format!("it can't be read: {error}")))?;
    let engine = settings_hash(platform).map_err(LoadError::Refused)?;
    let kept = |error| LoadError::Refused(format!("cannot write to '{}': {error}", directory.display()));
    let compile = || {
        let artifacts = Artifacts::open(directory, engine, platform).map_err(kept)?;
        let scratch = artifacts.scratch().map_err(kept)?;
        child::compile(program, &component, platform, limits, limits.time, scratch.path())?;
        artifacts.adopt(&hex(&Sha256::digest(&component)), &scratch).map_err(kept)
    };
    let before = umask(Mode::from(OTHERS_WRITE));
    let compiled = compile();
    umask(before);
    compiled
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A directory with code for one component, named `d`, and where to copy it to.
    struct Shipped {
        directory: tempfile::TempDir,
        engine: u64,
    }

    const ARM64: &str = "linux/arm64";

    impl Shipped {
        fn new() -> Self {
            Self::for_platform(Platform::here())
        }

        fn for_platform(platform: Platform) -> Self {
            umask(Mode::from(OTHERS_WRITE));
            let (directory, engine) = (tempfile::tempdir().unwrap(), 1);
            let compiled = directory.path().join("compiled");
            let artifacts = Artifacts::open(&compiled, engine, platform).unwrap();
            let scratch = artifacts.scratch().unwrap();
            fs::create_dir_all(scratch.path().join("modules/wasmtime-1")).unwrap();
            fs::write(scratch.path().join("modules/wasmtime-1/code"), "machine code").unwrap();
            artifacts.adopt("d", &scratch).unwrap();
            Self { directory, engine }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join("compiled").join(name)
        }

        fn copy(&self, digest: &str) -> Result<Option<Vec<u8>>, String> {
            let artifacts = Artifacts::open(self.directory.path(), self.engine, Platform::here()).unwrap();
            let scratch = artifacts.scratch().unwrap();
            let copied = copy(&self.path(""), &artifacts, digest, &scratch);
            let code = || fs::read(scratch.path().join("modules/wasmtime-1/code")).unwrap();
            copied.map(|copied| copied.then(code)).map_err(|error| error.to_string())
        }

        fn refusal(&self) -> String {
            self.copy("d").unwrap_err()
        }
    }

    #[test] // rule 91
    fn precompiled_code_is_found_by_digest_and_engine() {
        let mut shipped = Shipped::new();
        assert_eq!(shipped.copy("d").unwrap().unwrap(), b"machine code");
        assert_eq!(shipped.copy("e"), Ok(None));
        shipped.engine = 2;
        assert!(shipped.refusal().contains("another version of the engine, or for other features of the processor"));
        fs::remove_dir_all(shipped.path("")).unwrap();
        assert_eq!(shipped.copy("d"), Ok(None), "an image may have none");
    }

    #[test] // rule 91
    fn precompiled_code_of_another_platform_is_refused() {
        let other = if Platform::here().to_string() == ARM64 { "linux/amd64" } else { ARM64 };
        let mut shipped = Shipped::for_platform(other.parse().unwrap());
        shipped.engine = 2;
        assert_eq!(shipped.refusal(), format!("it is for {other}, and this node is {}", Platform::here()));
    }

    #[test] // threat 11
    fn precompiled_code_that_others_can_write_is_refused() {
        for name in ["", "records", "records/d", "modules", "modules/wasmtime-1", "modules/wasmtime-1/code"] {
            for bit in [0o020, 0o002] {
                let shipped = Shipped::new();
                let path = shipped.path(name);
                let mode = path.metadata().unwrap().mode();
                fs::set_permissions(&path, Permissions::from_mode(mode | bit | STICKY)).unwrap();
                assert!(shipped.refusal().contains("can be written by others"), "{name}");
            }
        }
        let shipped = Shipped::new();
        fs::set_permissions(shipped.directory.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(shipped.refusal().contains("can be written by others"), "others can put another one in its place");
        fs::set_permissions(shipped.directory.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(shipped.copy("d").unwrap().is_some(), "here they can't");
    }

    #[test]
    fn precompiled_code_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return; // nobody else can give files away
        }
        let shipped = Shipped::new();
        std::os::unix::fs::chown(shipped.path("modules/wasmtime-1/code"), Some(65534), None).unwrap();
        assert!(shipped.refusal().contains("belongs to user 65534"));
    }

    #[test] // rule 91
    fn damaged_precompiled_code_is_refused() {
        for (file, text) in [
            ("modules/wasmtime-1/code", "other code"),
            ("records/d", ""),
            ("records/d", "1\n../../etc/passwd\n0\n"),
            ("records/d", "1\n/etc/passwd\n0\n"),
        ] {
            let shipped = Shipped::new();
            fs::write(shipped.path(file), text).unwrap();
            assert!(shipped.copy("d").is_err(), "{file}");
        }
        let shipped = Shipped::new();
        let code = shipped.path("modules/wasmtime-1/code");
        fs::rename(&code, shipped.path("elsewhere")).unwrap();
        symlink(shipped.path("elsewhere"), code).unwrap();
        assert!(shipped.copy("d").is_err(), "a link");
    }
}
