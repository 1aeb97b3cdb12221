//! Machine code that ships with the program, made by `akri handler compile --precompiled` when the image is made.
//!
//! It is as trusted as the program, so it is taken only from where nobody but root and this user can write. What is taken is
//! copied and sealed like the compiler's output.
//!
//! ```text
//! records/DIGEST   hash of the engine's settings, file below modules/, SHA-256 of the file; a line each
//! modules/...      machine code, as the engine names it
//! ```

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use akri_model::grant::CompileLimits;
use akri_model::text::hex;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;

use super::artifacts::{LARGEST, MODULES_DIR, Scratch, engine_hash, only_file, plain};
use super::{CompileError, child, read};
use crate::component::COMPONENT;
use crate::host::engine_config;

/// Directory of records, one per component.
const RECORDS: &str = "records";
/// Bytes of a record.
const RECORD: u64 = 4 << 10;
/// Bits of a mode: group and others may write; only owners may remove what is in the directory.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Modes of what is shipped, whatever the umask would add for a group.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// A directory of machine code that ships with the program.
#[derive(Debug)]
pub(crate) struct Precompiled {
    directory: PathBuf,
    engine: u64,
}

impl Precompiled {
    /// Names the directory, which is read when a component needs code.
    pub(crate) fn new(directory: &Path, engine: &Engine) -> Self {
        Self { directory: directory.to_owned(), engine: engine_hash(engine) }
    }

    /// Copies the code of a component to where the compiler would have written it. Returns `false` if there is none for this
    /// engine.
    ///
    /// # Errors
    /// If others can write to it, or if it is not as it was made.
    pub(crate) fn copy(&self, digest: &str, scratch: &Scratch) -> io::Result<bool> {
        let directory = match self.directory.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            directory => directory?,
        };
        let record = match read_trusted(&directory, &Path::new(RECORDS).join(plain(digest)?), RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            record => String::from_utf8(record?).map_err(io::Error::other)?,
        };
        let mut lines = record.lines();
        let (engine, file, sum) = (lines.next(), lines.next(), lines.next());
        let (Some(engine), Some(file), Some(sum)) = (engine, file, sum) else {
            return Err(io::Error::other("its record is damaged"));
        };
        if engine != self.engine.to_string() {
            tracing::info!(digest, "the precompiled code is for another version of the engine");
            return Ok(false);
        }
        let file = Path::new(MODULES_DIR).join(plain(file)?);
        let code = read_trusted(&directory, &file, LARGEST)?;
        if hex(&Sha256::digest(&code)) != sum {
            return Err(io::Error::other("its code is not what its record says"));
        }
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
    let engine = Engine::new(&engine_config(None)).map_err(|error| PrecompileError::Engine(format!("{error:#}")))?;
    files.iter().try_for_each(|file| {
        let failed = |source| PrecompileError::File { file: file.clone(), source };
        let component = read(Some(file.as_path())).map_err(failed)?;
        if component.len() > COMPONENT {
            return Err(failed(io::Error::other(format!("it is larger than {COMPONENT} bytes"))));
        }
        let kept = |source| PrecompileError::Directory { directory: directory.to_owned(), source };
        create_directory(directory).map_err(kept)?;
        let scratch = Scratch::new(directory).map_err(kept)?;
        let compiled = child::compile(program, &component, limits, scratch.path());
        compiled.map_err(|source| PrecompileError::Compile { file: file.clone(), source })?;
        let digest = hex(&Sha256::digest(&component));
        ship(directory, &digest, engine_hash(&engine), &scratch).map_err(kept)
    })
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

/// Puts what the compiler made into the directory, the record last.
fn ship(directory: &Path, digest: &str, engine: u64, scratch: &Scratch) -> io::Result<()> {
    let modules = scratch.path().join(MODULES_DIR);
    let made = only_file(&modules)?;
    let file = made.strip_prefix(&modules).map_err(io::Error::other)?;
    let name = file.to_str().ok_or_else(|| io::Error::other("a name that is not UTF-8"))?;
    let code = fs::read(&made)?;
    write(&directory.join(MODULES_DIR).join(plain(name)?), &code)?;
    let record = format!("{engine}\n{name}\n{}\n", hex(&Sha256::digest(&code)));
    write(&directory.join(RECORDS).join(digest), record.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), create_directory)?;
    let beside = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file: File = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&beside)?;
    file.write_all(bytes)?;
    fs::rename(beside, path)
}

fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A directory with code for one component, named `d`, and where to copy it to.
    struct Shipped {
        directory: tempfile::TempDir,
        engine: Engine,
    }

    impl Shipped {
        fn new() -> Self {
            let (directory, engine) = (tempfile::tempdir().unwrap(), Engine::default());
            let scratch = Scratch::new(directory.path()).unwrap();
            fs::create_dir_all(scratch.path().join("modules/wasmtime-1")).unwrap();
            fs::write(scratch.path().join("modules/wasmtime-1/code"), "machine code").unwrap();
            ship(&directory.path().join("compiled"), "d", engine_hash(&engine), &scratch).unwrap();
            Self { directory, engine }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join("compiled").join(name)
        }

        fn copy(&self, digest: &str) -> Result<Option<Vec<u8>>, String> {
            let scratch = Scratch::new(self.directory.path()).unwrap();
            let copied = Precompiled::new(&self.path(""), &self.engine).copy(digest, &scratch);
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
        let mut config = wasmtime::Config::new();
        config.epoch_interruption(true);
        shipped.engine = Engine::new(&config).unwrap();
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
        let engine = engine_hash(&Engine::default());
        for (file, text) in [
            ("modules/wasmtime-1/code", "other code".to_owned()),
            ("records/d", String::new()),
            ("records/d", format!("{engine}\n../../etc/passwd\n0\n")),
            ("records/d", format!("{engine}\n/etc/passwd\n0\n")),
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
