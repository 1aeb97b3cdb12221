//! Machine code on disk, with a record for each component. It is executed, so that a file is compared with its record before it
//! is loaded: code that was damaged is compiled again.
//!
//! ```text
//! records/DIGEST   hash of the engine's settings, file below modules/, SHA-256 of the file, platform; a line each
//! modules/...      machine code, as the engine names it
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use akri_engine::{MODULES_DIR, Platform, files_below};
use akri_model::text::{clean, hex};
use akri_node::{if_found, regular_file};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Directory of records, one per component.
pub(super) const RECORDS_DIR: &str = "records";
/// Prefix of the directories that compilers write into; the process that made one follows.
const SCRATCH: &str = "scratch-";
/// Bytes of machine code: components have up to 64 MiB.
pub(super) const MAX_CODE: u64 = 1 << 30;
/// Bytes of all machine code that is kept from one start to the next, beside the newest.
const MAX_KEPT: u64 = 1 << 30;

/// The record of a component's machine code.
#[derive(Debug)]
pub(super) struct Record {
    /// Hash of the engine's settings.
    engine: u64,
    /// The path of the file, below the directory of machine code.
    file: String,
    sha256: String,
    /// The platform of the nodes that can run it. Only people read it: the engine's settings differ, too.
    platform: String,
}

impl Record {
    fn new(engine: u64, file: &str, code: &[u8], platform: Platform) -> Self {
        let sha256 = hex(&Sha256::digest(code));
        Self { engine, file: file.to_owned(), sha256, platform: platform.to_string() }
    }

    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let damaged = || io::Error::other("its record is damaged");
        let mut lines = text.lines();
        let mut line = || lines.next().ok_or_else(damaged);
        let (engine, file, sha256, platform) = (line()?, line()?, line()?, line()?);
        let is_plain = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain {
            return Err(io::Error::other("its record names a path that leads elsewhere"));
        }
        let engine = engine.parse().map_err(|_| damaged())?;
        Ok(Self { engine, file: file.to_owned(), sha256: sha256.to_owned(), platform: clean(platform, 32) })
    }

    /// Returns the path of the machine code below the directory of both, if it is for this engine.
    pub(super) fn path_for(&self, engine: u64) -> Option<PathBuf> {
        (self.engine == engine).then(|| Path::new(MODULES_DIR).join(&self.file))
    }

    /// Checks that code is as it was made.
    pub(super) fn check(&self, code: &[u8]) -> io::Result<()> {
        let is_same = hex(&Sha256::digest(code)) == self.sha256;
        if is_same { Ok(()) } else { Err(io::Error::other("its code is not what its record says")) }
    }

    /// Says for what the code is, where it is of no use.
    pub(super) fn purpose(&self, here: Platform) -> String {
        let platform = &self.platform;
        if *platform == here.to_string() {
            "it is for another version of the engine, or for other features of the processor".to_owned()
        } else {
            format!("it is for {platform}, and this node is {here}")
        }
    }

    fn to_text(&self) -> String {
        let Self { engine, file, sha256, platform } = self;
        format!("{engine}\n{file}\n{sha256}\n{platform}\n")
    }
}

/// A directory in which machine code is kept.
#[derive(Debug)]
pub(super) struct Artifacts {
    directory: PathBuf,
    pub(super) engine: u64,
    pub(super) platform: Platform,
}

impl Artifacts {
    /// Opens a directory for code of an engine with these settings, on a platform.
    pub(super) fn open(directory: &Path, engine: u64, platform: Platform) -> io::Result<Self> {
        fs::create_dir_all(directory.join(RECORDS_DIR))?;
        remove_abandoned(directory)?;
        Ok(Self { directory: directory.to_owned(), engine, platform })
    }

    /// Creates a directory for the compiler to write into.
    pub(super) fn scratch(&self) -> io::Result<TempDir> {
        let prefix = format!("{SCRATCH}{}-", std::process::id());
        tempfile::Builder::new().prefix(&prefix).tempdir_in(&self.directory)
    }

    /// Returns whether there is code for a component, as it was made. Damaged code is removed.
    pub(super) fn has(&self, digest: &str) -> bool {
        self.check(digest).unwrap_or_else(|error| {
            tracing::warn!(digest, "a compiled component was changed, and is made anew: {error}");
            let _ = fs::remove_file(self.record(digest));
            false
        })
    }

    fn check(&self, digest: &str) -> io::Result<bool> {
        let Some(record) = if_found(fs::read_to_string(self.record(digest)))? else { return Ok(false) };
        let record = Record::parse(&record)?;
        let Some(path) = record.path_for(self.engine).map(|path| self.directory.join(path)) else { return Ok(false) };
        let Some(code) = if_found(regular_file::read(&path, MAX_CODE))? else { return Ok(false) };
        if let Err(error) = record.check(&code) {
            fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(true)
    }

    /// Takes over the one file that the compiler made.
    pub(super) fn adopt(&self, digest: &str, scratch: &TempDir) -> io::Result<()> {
        let modules = scratch.path().join(MODULES_DIR);
        let made = only_file(&modules)?;
        let name = made.strip_prefix(&modules).map_err(io::Error::other)?;
        let name = name.to_str().ok_or_else(|| io::Error::other("a name that is not UTF-8"))?;
        let record = Record::new(self.engine, name, &regular_file::read(&made, MAX_CODE)?, self.platform);
        let target = self.directory.join(MODULES_DIR).join(name);
        target.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::rename(&made, target)?;
        // Two objects of one component may be adopted at once.
        let beside = scratch.path().join(digest);
        fs::write(&beside, record.to_text())?;
        fs::rename(beside, self.record(digest))
    }

    /// Removes code of other engines, and beyond the limit what was made first. It must not be in use yet: a process that misses
    /// it compiles the component itself.
    pub(super) fn prune(&self) {
        let pruned = self.remove_old(MAX_KEPT);
        pruned.unwrap_or_else(|error| tracing::warn!("old machine code can't be removed: {error}"));
    }

    fn remove_old(&self, most: u64) -> io::Result<()> {
        let mut records = Vec::new();
        for record in fs::read_dir(self.directory.join(RECORDS_DIR))? {
            let record = record?;
            let text = fs::read_to_string(record.path()).unwrap_or_default();
            let code = Record::parse(&text).ok().and_then(|parsed| parsed.path_for(self.engine));
            let code = code.map(|code| self.directory.join(code));
            records.push((record.metadata()?.modified()?, record.path(), code));
        }
        records.sort_unstable_by(|one, other| other.cmp(one));
        let (mut kept, mut size) = (BTreeSet::new(), 0);
        for (_, record, code) in records {
            let bytes = code.as_ref().and_then(|code| code.metadata().ok()).map(|code| code.len());
            size += bytes.unwrap_or(0);
            match code.filter(|_| bytes.is_some() && (size <= most || kept.is_empty())) {
                Some(code) => drop(kept.insert(code)),
                None => fs::remove_file(record)?,
            }
        }
        for code in files_below(&self.directory.join(MODULES_DIR))? {
            let is_kept = kept.contains(&code.with_extension(""));
            if_found(if is_kept { Ok(()) } else { fs::remove_file(code) })?;
        }
        Ok(())
    }

    fn record(&self, digest: &str) -> PathBuf {
        self.directory.join(RECORDS_DIR).join(digest)
    }
}

/// Removes the directories of agents that were killed. In a container each may have the id of this one, which has none yet.
fn remove_abandoned(directory: &Path) -> io::Result<()> {
    let own_id = std::process::id().to_string();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.split_once('-'));
        let is_gone = |pid: &str| pid == own_id || !Path::new("/proc").join(pid).exists();
        if owner.is_some_and(|(pid, _)| is_gone(pid)) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the one file with machine code below a directory.
fn only_file(directory: &Path) -> io::Result<PathBuf> {
    let mut found = files_below(directory)?;
    found.retain(|path| path.extension().is_none() && path.symlink_metadata().is_ok_and(|file| file.is_file()));
    let count = found.len();
    let only = found.pop().filter(|_| count == 1);
    only.ok_or_else(|| io::Error::other(format!("the compiler made {count} files, not one")))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// With code for one component, named `d`.
    fn artifacts(directory: &Path) -> Artifacts {
        let artifacts = Artifacts::open(directory, 1, Platform::here()).unwrap();
        let scratch = artifacts.scratch().unwrap();
        fs::create_dir_all(scratch.path().join("modules/wasmtime-1")).unwrap();
        fs::write(scratch.path().join("modules/wasmtime-1/code"), "machine code").unwrap();
        fs::write(scratch.path().join("modules/wasmtime-1/code.stats"), "").unwrap();
        artifacts.adopt("d", &scratch).unwrap();
        artifacts
    }

    #[test]
    fn recorded_machine_code_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        assert!(artifacts(directory.path()).has("d"));
        let again = Artifacts::open(directory.path(), 1, Platform::here()).unwrap();
        assert!(again.has("d") && !again.has("e"), "also by the next agent");
        assert!(!Artifacts::open(directory.path(), 2, Platform::here()).unwrap().has("d"), "it is for another engine");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "records and modules; nothing is left over");
    }

    #[test]
    fn old_code_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let other = artifacts(directory.path());
        let artifacts = Artifacts::open(directory.path(), 2, Platform::here()).unwrap();
        let add = |digest: &str, hour: u64| {
            let scratch = artifacts.scratch().unwrap();
            fs::create_dir_all(scratch.path().join("modules/wasmtime-2")).unwrap();
            fs::write(scratch.path().join("modules/wasmtime-2").join(digest), "machine code").unwrap();
            artifacts.adopt(digest, &scratch).unwrap();
            let made = SystemTime::UNIX_EPOCH + Duration::from_secs(hour * 3600);
            File::options().write(true).open(artifacts.record(digest)).unwrap().set_modified(made).unwrap();
        };
        [("newest", 3), ("oldest", 1), ("older", 2)].into_iter().for_each(|(digest, hour)| add(digest, hour));
        let has = || ["newest", "older", "oldest"].map(|digest| artifacts.has(digest));
        artifacts.prune();
        assert!(!other.has("d") && has() == [true; 3]);
        artifacts.remove_old(24).unwrap();
        assert_eq!(has(), [true, true, false]);
        artifacts.remove_old(0).unwrap();
        assert_eq!(has(), [true, false, false], "the newest is used now");
        let left = files_below(&directory.path().join("modules")).unwrap();
        assert_eq!(left, [directory.path().join("modules/wasmtime-2/newest")]);
    }

    #[test] // rule 91, threat 10
    fn changed_machine_code_is_not_used() {
        for (file, text) in [("modules/wasmtime-1/code", "other code"), ("records/d", "1\n../x\n"), ("records/d", "")] {
            let directory = tempfile::tempdir().unwrap();
            let artifacts = artifacts(directory.path());
            fs::write(directory.path().join(file), text).unwrap();
            assert!(!artifacts.has("d"), "{file}");
        }
    }

    #[test]
    fn scratch_directories_of_dead_processes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [own, init] = [std::process::id(), 1]; // and more than any process id
        let [dead, earlier, living] =
            [4_194_305, own, init].map(|id| directory.path().join(format!("{SCRATCH}{id}-1")));
        [&dead, &earlier, &living].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        Artifacts::open(directory.path(), 1, Platform::here()).unwrap();
        assert_eq!([dead, earlier, living].map(|path| path.exists()), [false, false, true]);
    }

    #[test]
    fn compiler_output_is_one_regular_file() {
        let directory = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open(directory.path(), 1, Platform::here()).unwrap();
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
