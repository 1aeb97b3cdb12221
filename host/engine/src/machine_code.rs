//! Machine code of components, in a directory that wasmtime uses as its cache.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
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
