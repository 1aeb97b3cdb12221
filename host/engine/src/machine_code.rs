//! Machine code of components, in a directory that wasmtime uses as its cache.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use wasmtime::component::Component;
use wasmtime::{Cache, CacheConfig, Engine};

use crate::host::engine_config;

/// Directory of machine code below that of the cache, as wasmtime names it.
pub const MODULES_DIR: &str = "modules";

/// Compiles a component into a directory, in this process.
///
/// # Errors
/// If it is no valid component.
pub fn compile_into(directory: &Path, component: &[u8]) -> Result<(), String> {
    let failed = |error: wasmtime::Error| format!("{error:#}");
    let cache = cache(directory.to_owned()).map_err(failed)?;
    let engine = Engine::new(&engine_config(Some(cache))).map_err(failed)?;
    Component::from_binary(&engine, component).map(drop).map_err(failed)
}

/// Returns a hash of the engine's settings and version. Machine code made with one is of no use with another.
///
/// # Errors
/// If the engine can't be set up.
pub fn settings_hash() -> Result<u64, String> {
    let engine = Engine::new(&engine_config(None)).map_err(|error| format!("{error:#}"))?;
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    Ok(hasher.finish())
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
