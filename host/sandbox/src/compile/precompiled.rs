//! Machine code that ships with the program, made by `akri handler compile --precompiled` when the image is made.
//!
//! It is as trusted as the program, so it is taken only from where nobody but root and this user can write. It is copied, and
//! recorded like the compiler's output.

use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use akri_engine::{MAX_COMPONENT, MODULES_DIR, settings_hash};
use akri_model::grant::CompileLimits;
use akri_model::text::hex;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use super::artifacts::{Artifacts, MAX_CODE, RECORDS_DIR, Record, Scratch};
use super::{CompileError, child, read};

/// Bytes of a record.
const MAX_RECORD: u64 = 4 << 10;
/// Bits of a mode: group and others may write; only owners may remove what is in the directory.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Modes of what is shipped, whatever the umask would add for a group.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// A directory of machine code that ships with the program.
#[derive(Debug)]
pub(super) struct Precompiled {
    directory: PathBuf,
    engine: u64,
}

impl Precompiled {
    /// Names the directory, which is read when a component needs code.
    pub(super) fn new(directory: &Path, engine: u64) -> Self {
        Self { directory: directory.to_owned(), engine }
    }

    /// Copies the code of a component to where the compiler would have written it. Returns `false` if there is none for this
    /// engine.
    ///
    /// # Errors
    /// If others can write to it, or if it is not as it was made.
    pub(super) fn copy(&self, digest: &str, scratch: &Scratch) -> io::Result<bool> {
        let directory = match self.directory.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            directory => directory?,
        };
        let record = match read_trusted(&directory, &Path::new(RECORDS_DIR).join(digest), MAX_RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            record => Record::parse(&String::from_utf8(record?).map_err(io::Error::other)?)?,
        };
        let Some(file) = record.path_for(self.engine) else {
            tracing::info!(digest, "the precompiled code is for another version of the engine");
            return Ok(false);
        };
        let code = read_trusted(&directory, &file, MAX_CODE)?;
        record.check(&code)?;
        let target = scratch.path().join(file);
        target.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(target, code)?;
        Ok(true)
    }
}

/// Reads a file below a directory, all parts of whose real path only root and this user can change.
fn read_trusted(directory: &Path, file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let path = directory.join(file);
    for parent in path.ancestors().skip(1) {
        // Above the directory, a sticky one such as /tmp keeps what is ours.
        let is_above = !parent.starts_with(directory);
        check(parent, &parent.symlink_metadata()?, is_above)?;
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(&path)?;
    let metadata = opened.metadata()?;
    check(&path, &metadata, false)?;
    if !metadata.is_file() || metadata.len() > most {
        return Err(io::Error::other(format!("'{}' is not a file of at most {most} bytes", path.display())));
    }
    let mut bytes = Vec::new();
    opened.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
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

/// Compiles components into a directory that ships with the program, each in a process that the `program` starts.
///
/// # Errors
/// If a file can't be read or is no component, or if the directory can't be written to.
pub fn precompile(
    program: &Path,
    files: &[PathBuf],
    directory: &Path,
    limits: &CompileLimits,
) -> Result<(), PrecompileError> {
    let engine = settings_hash().map_err(PrecompileError::Engine)?;
    files.iter().try_for_each(|file| {
        let failed = |source| PrecompileError::File { file: file.clone(), source };
        let component = read(Some(file.as_path())).map_err(failed)?;
        if component.len() > MAX_COMPONENT {
            return Err(failed(io::Error::other(format!("it is larger than {MAX_COMPONENT} bytes"))));
        }
        let kept = |source| PrecompileError::Directory { directory: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).map_err(kept)?;
        let artifacts = Artifacts::open(directory, engine).map_err(kept)?;
        let scratch = artifacts.scratch().map_err(kept)?;
        let compiled = child::compile(program, &component, limits, limits.time, scratch.path());
        compiled.map_err(|source| PrecompileError::Compile { file: file.clone(), source })?;
        artifacts.adopt(&hex(&Sha256::digest(&component)), &scratch).map_err(kept)?;
        close(directory).map_err(kept)
    })
}

/// Makes what is shipped readable by all, and writable by its owner only.
fn close(directory: &Path) -> io::Result<()> {
    [RECORDS_DIR, MODULES_DIR].iter().try_for_each(|name| set_modes(&directory.join(name)))
}

fn set_modes(path: &Path) -> io::Result<()> {
    let is_directory = path.symlink_metadata()?.is_dir();
    fs::set_permissions(path, Permissions::from_mode(if is_directory { DIRECTORY_MODE } else { FILE_MODE }))?;
    if is_directory {
        fs::read_dir(path)?.try_for_each(|entry| set_modes(&entry?.path()))?;
    }
    Ok(())
}

/// An error of compiling components ahead.
#[derive(Debug, thiserror::Error)]
pub enum PrecompileError {
    /// wasmtime refused its settings.
    #[error("the engine could not be set up: {0}")]
    Engine(String),
    /// A component can't be read.
    #[error("cannot read '{}': {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A component can't be compiled.
    #[error("'{}': {source}", file.display())]
    Compile {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: CompileError,
    },
    /// Machine code can't be kept.
    #[error("cannot write to '{}': {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory with code for one component, named `d`, and where to copy it to.
    struct Shipped {
        directory: tempfile::TempDir,
        engine: u64,
    }

    impl Shipped {
        fn new() -> Self {
            let (directory, engine) = (tempfile::tempdir().unwrap(), 1);
            let compiled = directory.path().join("compiled");
            let artifacts = Artifacts::open(&compiled, engine).unwrap();
            let scratch = artifacts.scratch().unwrap();
            fs::create_dir_all(scratch.path().join("modules/wasmtime-1")).unwrap();
            fs::write(scratch.path().join("modules/wasmtime-1/code"), "machine code").unwrap();
            artifacts.adopt("d", &scratch).unwrap();
            fs::set_permissions(&compiled, Permissions::from_mode(DIRECTORY_MODE)).unwrap();
            fs::set_permissions(compiled.join("modules"), Permissions::from_mode(0o777)).unwrap();
            close(&compiled).unwrap();
            Self { directory, engine }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join("compiled").join(name)
        }

        fn copy(&self, digest: &str) -> Result<Option<Vec<u8>>, String> {
            let scratch = Artifacts::open(self.directory.path(), self.engine).unwrap().scratch().unwrap();
            let copied = Precompiled::new(&self.path(""), self.engine).copy(digest, &scratch);
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
        assert_eq!(shipped.copy("d"), Ok(None), "it is for another engine");
        fs::remove_dir_all(shipped.path("")).unwrap();
        assert_eq!(shipped.copy("d"), Ok(None), "an image may have none");
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
