//! This program: its file, its cache, its end.

use std::ffi::OsString;
use std::path::PathBuf;

use akri_sandbox::{Host, HostConfig, SandboxProgram};
use anyhow::{Context as _, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::args::HostArgs;

/// This program, also when its file was replaced by an upgrade.
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// Bytes of memory of sandbox processes: `limits.memory` may be larger than what an agent has for all rounds.
const SANDBOX_MEMORY: u64 = 4 << 30;

/// Returns this program as that of sandbox processes, which get the flags of its log.
pub fn sandbox_program(memory_bytes: u64, logging: Vec<String>) -> SandboxProgram {
    SandboxProgram { path: OWN_PROGRAM.into(), arguments: logging, memory_bytes }
}

/// Returns a host of components; without arguments it can't read devices.
///
/// # Errors
/// If the directory for compiled components can't be used.
pub fn component_host(args: Option<&HostArgs>) -> anyhow::Result<Host> {
    let nowhere = || (PathBuf::from("/nonexistent"), PathBuf::from("/nonexistent"));
    let (sysfs, udev_data) = args.map_or_else(nowhere, |args| (args.sysfs.clone(), args.udev_data.clone()));
    let program = sandbox_program(SANDBOX_MEMORY, Vec::new());
    let host = Host::new(HostConfig { program, cache_dir: cache_dir(), precompiled: None, sysfs, udev_data });
    host.map_err(|error| anyhow!("cannot start the component host: {error}"))
}

/// Completes on SIGINT or SIGTERM.
///
/// # Errors
/// If signals can't be received.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM"),
            _ = interrupt.recv() => info!("SIGINT"),
        }
    })
}

/// Returns the directory for compiled components in the user's cache directory. A variable that is empty or a relative path
/// counts as unset, as the XDG specification says.
pub fn cache_dir() -> Option<PathBuf> {
    let caches = user_caches(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))?;
    std::fs::create_dir_all(&caches).ok().map(|()| caches.join("akri"))
}

fn user_caches(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let directory = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    directory(xdg).or_else(|| Some(directory(home)?.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_cache_variable_counts_as_unset() {
        let home = || Some("/home/a".into());
        for (xdg, home, expected) in [
            (Some("/cache"), home(), Some("/cache")),
            (Some(""), home(), Some("/home/a/.cache")),
            (Some("cache"), home(), Some("/home/a/.cache")),
            (None, home(), Some("/home/a/.cache")),
            (None, Some("".into()), None),
        ] {
            assert_eq!(user_caches(xdg.map(Into::into), home), expected.map(PathBuf::from), "{xdg:?}");
        }
    }
}
