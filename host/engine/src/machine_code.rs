//! Machine code of components, in a directory that wasmtime uses as its cache.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use akri_node::if_found;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;
use wasmtime::{Cache, CacheConfig, Engine};

use crate::host::engine_config;
use crate::platform::Platform;

/// Directory of machine code below that of the cache, as wasmtime names it.
pub const MODULES_DIR: &str = "modules";

/// The smallest component.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

/// Compiles a component into a directory, in this process. Code for another platform is where its engine looks for it.
///
/// # Errors
/// If it is no valid component, or if this program has no compiler for the platform.
pub fn compile_into(directory: &Path, component: &[u8], platform: Platform) -> Result<(), String> {
    let failed = |error: wasmtime::Error| format!("{error:#}");
    let cached = |component: &[u8]| {
        let engine = engine(Some(cache(directory.to_owned()).map_err(failed)?), Platform::here())?;
        Component::from_binary(&engine, component).map(drop).map_err(failed)
    };
    if platform == Platform::here() {
        return cached(component);
    }
    let engine = engine(None, platform)?;
    let code = engine.precompile_component(component).map_err(failed)?;
    // The cache takes only code that runs here. What it makes of the smallest component shows how it names files.
    cached(EMPTY)?;
    let written = |error: io::Error| format!("cannot write '{}': {error}", directory.display());
    let shown = first_code(&directory.join(MODULES_DIR)).map_err(written)?;
    if !shown.ends_with(file_name(&self::engine(None, Platform::here())?, EMPTY, Platform::here())) {
        return Err("wasmtime's cache names its files in another way than this program knows".to_owned());
    }
    fs::remove_file(&shown).map_err(written)?;
    let code = zstd::encode_all(&*code, zstd::DEFAULT_COMPRESSION_LEVEL).map_err(written)?;
    fs::write(shown.with_file_name(file_name(&engine, component, platform)), code).map_err(written)
}

/// Returns a hash of the engine's settings and version on a platform. Machine code made with one is of no use with another.
///
/// # Errors
/// If the engine can't be set up.
pub fn settings_hash(platform: Platform) -> Result<u64, String> {
    let engine = engine(None, platform)?;
    let mut hasher = PlatformHasher { digest: Sha256::new(), platform };
    engine.precompile_compatibility_hash().hash(&mut hasher);
    Ok(hasher.finish())
}

fn engine(cache: Option<Cache>, platform: Platform) -> Result<Engine, String> {
    Engine::new(&engine_config(cache, platform)).map_err(|error| format!("no engine for {platform}: {error:#}"))
}

/// Returns the name by which wasmtime's cache, in a program of a platform, looks for the code of a component.
fn file_name(engine: &Engine, component: &[u8], platform: Platform) -> String {
    let mut hasher = PlatformHasher { digest: Sha256::new(), platform };
    let (debug_information, intrinsics) = (None::<&[u8]>, None::<&str>);
    (engine.precompile_compatibility_hash(), component, debug_information, intrinsics).hash(&mut hasher);
    BASE64_URL_SAFE_NO_PAD.encode(hasher.digest.finalize())
}

/// Returns the paths two levels below a directory, if there is one: there the cache has its code, and counts of its use.
///
/// # Errors
/// If they can't be read.
pub fn files_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for versions in if_found(fs::read_dir(directory))?.into_iter().flatten() {
        for file in fs::read_dir(versions?.path())? {
            found.push(file?.path());
        }
    }
    Ok(found)
}

fn first_code(directory: &Path) -> io::Result<PathBuf> {
    let code = files_below(directory)?.into_iter().find(|path| path.extension().is_none());
    code.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Hashes as a program of a platform does, whose sizes are those of its pointers.
struct PlatformHasher {
    digest: Sha256,
    platform: Platform,
}

impl Hasher for PlatformHasher {
    fn finish(&self) -> u64 {
        self.digest.clone().finalize().iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }

    fn write(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    fn write_usize(&mut self, number: usize) {
        self.write((number as u64).to_le_bytes().get(..self.platform.pointer).unwrap_or_default());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_usize(number.cast_unsigned());
    }
}

/// Opens a directory as wasmtime's cache. Files are never recompressed: their SHA-256 is on record.
pub(crate) fn cache(directory: PathBuf) -> wasmtime::Result<Cache> {
    let mut config = CacheConfig::new();
    config.with_directory(directory).with_optimized_compression_usage_counter_threshold(u64::MAX);
    Cache::new(config)
}

/// Creates the directory of compiled components, whose content is executed, or closes it to other users: it belongs to this
/// user alone. A directory that others could write to is emptied.
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
    use crate::platform::PLATFORMS;

    /// The names of files with code of the smallest component, compiled for a platform.
    fn compiled_for(platform: Platform) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        compile_into(directory.path(), EMPTY, platform).unwrap();
        let file = first_code(&directory.path().join(MODULES_DIR)).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        (directory, name)
    }

    #[test]
    fn each_platform_has_code_and_settings_of_its_own() {
        let names: std::collections::BTreeSet<_> = PLATFORMS.map(|platform| compiled_for(platform).1).into();
        let hashes: std::collections::BTreeSet<_> = PLATFORMS.map(|platform| settings_hash(platform).unwrap()).into();
        assert_eq!((names.len(), hashes.len()), (3, 3));
    }

    #[test]
    fn cache_finds_code_made_for_another_platform() {
        // As if this one were another: by the name that is computed.
        let (made, name) = compiled_for(Platform::here());
        let engine = engine(None, Platform::here()).unwrap();
        assert_eq!(file_name(&engine, EMPTY, Platform::here()), name);
        let file = first_code(&made.path().join(MODULES_DIR)).unwrap();
        let code = zstd::encode_all(&*engine.precompile_component(EMPTY).unwrap(), 1).unwrap();
        fs::write(&file, code).unwrap();
        let cache = cache(made.path().to_owned()).unwrap();
        let engine = super::engine(Some(cache.clone()), Platform::here()).unwrap();
        Component::from_binary(&engine, EMPTY).unwrap();
        assert_eq!((cache.cache_hits(), cache.cache_misses()), (1, 0));
    }

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
