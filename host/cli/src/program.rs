//! This program: its file, its cache, its end.

use std::ffi::OsString;
use std::future::poll_fn;
use std::path::PathBuf;
use std::task::Poll;

use akri_sandbox::{Host, HostConfig, SandboxProgram};
use anyhow::Context as _;
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
    host.context("cannot start the component host")
}

/// Completes on the first signal that would end this process at once otherwise. A signal that is ignored, as SIGHUP below
/// `nohup`, stays so.
///
/// # Errors
/// If signals can't be received.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let mut signals = Vec::new();
    for (name, kind) in [
        ("SIGTERM", SignalKind::terminate()),
        ("SIGINT", SignalKind::interrupt()),
        ("SIGHUP", SignalKind::hangup()),
        ("SIGUSR1", SignalKind::user_defined1()),
        ("SIGUSR2", SignalKind::user_defined2()),
        ("SIGALRM", SignalKind::alarm()),
    ] {
        if ignored >> (kind.as_raw_value() - 1) & 1 == 0 {
            signals.push((name, signal(kind).with_context(|| format!("cannot wait for {name}"))?));
        }
    }
    Ok(poll_fn(move |cx| {
        let arrived = signals.iter_mut().find_map(|(name, signal)| signal.poll_recv(cx).is_ready().then_some(*name));
        arrived.map_or(Poll::Pending, |name| {
            info!("{name}");
            Poll::Ready(())
        })
    }))
}

/// Returns the signals that a process ignores, as bits, by its `/proc/PID/status`.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
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
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored_signals("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals(""), 0);
    }

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
