//! Machine code on disk. It is run in this program, so it is sealed when it is made, and looked at before it is loaded: what
//! was changed since is made anew.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use akri_model::text::hex;
use blake2::Blake2bMac512;
use blake2::digest::{KeyInit as _, Mac as _};
use wasmtime::Engine;

/// The key of the seals, made once for each directory.
const KEY: &str = "seal.key";
const KEY_BYTES: usize = 32;
/// Directory of seals, one per component: the engine, the file and the seal, a line each.
const SEALS: &str = "seals";
/// Directory of machine code, as the engine names it.
pub const MODULES_DIR: &str = "modules";
/// Prefix of the directories that compilers write into; the process that made one follows.
const SCRATCH: &str = "scratch-";
/// Bytes of machine code: components have up to 64 MiB.
pub(super) const LARGEST: u64 = 1 << 30;

/// The directory in which machine code is kept.
#[derive(Debug)]
pub(crate) struct Artifacts {
    directory: PathBuf,
    key: [u8; KEY_BYTES],
    /// Hash of the engine's settings.
    engine: u64,
}

impl Artifacts {
    /// Opens a directory that is ours alone.
    pub(crate) fn open(directory: &Path, engine: &Engine) -> io::Result<Self> {
        fs::create_dir_all(directory.join(SEALS))?;
        remove_abandoned(directory)?;
        let key = key(&directory.join(KEY))?;
        Ok(Self { directory: directory.to_owned(), key, engine: engine_hash(engine) })
    }

    /// A directory for the compiler to write into, gone with what is returned.
    pub(crate) fn scratch(&self) -> io::Result<Scratch> {
        Scratch::new(&self.directory)
    }

    /// Returns whether there is code for a component, as it was made. What is not is removed.
    pub(crate) fn has(&self, digest: &str) -> bool {
        match self.check(digest) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(digest, "a compiled component was changed, and is made anew: {error}");
                let _ = fs::remove_file(self.record(digest));
                false
            }
        }
    }

    fn check(&self, digest: &str) -> io::Result<bool> {
        let record = match fs::read_to_string(self.record(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            record => record?,
        };
        let mut lines = record.lines();
        let (engine, file, seal) = (lines.next(), lines.next(), lines.next());
        let (Some(file), Some(seal)) = (file, seal) else { return Err(io::Error::other("its record is damaged")) };
        if engine != Some(&self.engine.to_string()) {
            return Ok(false);
        }
        let path = self.directory.join(MODULES_DIR).join(plain(file)?);
        let sealed = self.seal(digest, file, &path);
        let sealed = match sealed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            sealed => sealed?,
        };
        if sealed == seal {
            return Ok(true);
        }
        fs::remove_file(&path)?;
        Err(io::Error::other("its seal is broken"))
    }

    /// Takes over the one file that the compiler made.
    pub(crate) fn adopt(&self, digest: &str, scratch: &Scratch) -> io::Result<()> {
        let made = only_file(&scratch.0.join(MODULES_DIR))?;
        let file = made.strip_prefix(scratch.0.join(MODULES_DIR)).map_err(io::Error::other)?;
        let name = file.to_str().ok_or_else(|| io::Error::other("a name that is no text"))?;
        let target = self.directory.join(MODULES_DIR).join(plain(name)?);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&made, &target)?;
        let seal = self.seal(digest, name, &target)?;
        // Two objects of one component may be adopted at once.
        let beside = self.record(digest).with_extension(format!("{:x}", unique()));
        fs::write(&beside, format!("{}\n{name}\n{seal}\n", self.engine))?;
        fs::rename(beside, self.record(digest))
    }

    fn record(&self, digest: &str) -> PathBuf {
        self.directory.join(SEALS).join(digest)
    }

    fn seal(&self, digest: &str, name: &str, path: &Path) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
        let mut mac = Blake2bMac512::new_from_slice(&self.key).map_err(io::Error::other)?;
        for part in [digest.as_bytes(), name.as_bytes(), &self.engine.to_le_bytes(), &bytes] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Ok(hex(&mac.finalize().into_bytes()))
    }
}

/// A directory that is removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one below a directory.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!("{SCRATCH}{}-{:x}", std::process::id(), unique()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what stays is in nobody's way
    }
}

/// Returns a hash of the engine's settings and version.
pub(super) fn engine_hash(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

/// Removes what agents that were killed have left.
fn remove_abandoned(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.split_once('-'));
        if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Reads the key, made if there is none. Of two processes that make one, the first counts for both.
fn key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    if !path.exists() {
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        let beside = path.with_extension(format!("{:x}", unique()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(&beside)?.write_all(&key)?;
        let linked = fs::hard_link(&beside, path);
        fs::remove_file(beside)?;
        linked.or_else(|error| if path.exists() { Ok(()) } else { Err(error) })?;
    }
    File::open(path)?.read_exact(&mut key)?;
    Ok(key)
}

/// A path of plain names.
pub(super) fn plain(name: &str) -> io::Result<&Path> {
    let path = Path::new(name);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain { Ok(path) } else { Err(io::Error::other("a path that leads elsewhere")) }
}

/// The one file with machine code below a directory, two levels deep; beside it the engine keeps how often it was used.
pub(super) fn only_file(directory: &Path) -> io::Result<PathBuf> {
    let mut found = Vec::new();
    for versions in fs::read_dir(directory)? {
        for file in fs::read_dir(versions?.path())? {
            let file = file?;
            let is_code = file.path().extension().is_none() && file.file_type()?.is_file();
            found.extend(is_code.then(|| file.path()));
        }
    }
    match found.pop() {
        Some(file) if found.is_empty() => Ok(file),
        _ => Err(io::Error::other("the compiler did not make one file")),
    }
}

fn unique() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With code for one component, named `d`.
    fn artifacts(directory: &Path) -> Artifacts {
        let artifacts = Artifacts::open(directory, &Engine::default()).unwrap();
        let scratch = artifacts.scratch().unwrap();
        fs::create_dir_all(scratch.path().join("modules/wasmtime-1")).unwrap();
        fs::write(scratch.path().join("modules/wasmtime-1/code"), "machine code").unwrap();
        fs::write(scratch.path().join("modules/wasmtime-1/code.stats"), "").unwrap();
        artifacts.adopt("d", &scratch).unwrap();
        artifacts
    }

    #[test]
    fn sealed_machine_code_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        assert!(artifacts(directory.path()).has("d"));
        let again = Artifacts::open(directory.path(), &Engine::default()).unwrap();
        assert!(again.has("d") && !again.has("e"), "also by the next agent");
        let mut config = wasmtime::Config::new();
        config.epoch_interruption(true);
        let other = Artifacts::open(directory.path(), &Engine::new(&config).unwrap()).unwrap();
        assert!(!other.has("d"), "it is for another engine");
        assert!(fs::read_dir(directory.path()).unwrap().count() == 3, "key, seals and modules; nothing is left over");
    }

    #[test]
    fn changed_machine_code_is_not_used() {
        for (file, text) in [("modules/wasmtime-1/code", "other code"), ("seals/d", "1\n../x\n"), ("seals/d", "")] {
            let directory = tempfile::tempdir().unwrap();
            let artifacts = artifacts(directory.path());
            fs::write(directory.path().join(file), text).unwrap();
            assert!(!artifacts.has("d"), "{file}");
        }
        let directory = tempfile::tempdir().unwrap();
        let artifacts = artifacts(directory.path());
        fs::remove_file(directory.path().join(KEY)).unwrap();
        let other = Artifacts::open(directory.path(), &Engine::default()).unwrap();
        assert!(artifacts.has("d") && !other.has("d"), "sealed by another key");
    }

    #[test]
    fn scratch_directories_of_dead_processes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let dead = directory.path().join(format!("{SCRATCH}4194305-1")); // more than any process id
        fs::create_dir(&dead).unwrap();
        let artifacts = Artifacts::open(directory.path(), &Engine::default()).unwrap();
        let scratch = artifacts.scratch().unwrap();
        let _other = Artifacts::open(directory.path(), &Engine::default()).unwrap();
        assert!(!dead.exists() && scratch.path().exists());
    }

    #[test]
    fn compiler_output_is_one_regular_file() {
        let directory = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open(directory.path(), &Engine::default()).unwrap();
        let scratch = artifacts.scratch().unwrap();
        assert!(artifacts.adopt("d", &scratch).is_err());
        fs::create_dir_all(scratch.path().join("modules/v")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", scratch.path().join("modules/v/code")).unwrap();
        assert!(artifacts.adopt("d", &scratch).is_err());
        fs::write(scratch.path().join("modules/v/one"), "").unwrap();
        fs::write(scratch.path().join("modules/v/two"), "").unwrap();
        assert!(artifacts.adopt("d", &scratch).is_err());
    }
}
