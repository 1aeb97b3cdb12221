//! Confines this process for the rest of its life: the compiler, which can compute and write into one directory, and the
//! sandbox process, which can compute, read the node's devices and use the network.
//!
//! The rules of Landlock and seccomp are those of the calling thread and of all that it starts, so that it has to be the first.

mod architectures;
mod calls;
mod files;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use akri_model::grant::CompileLimits;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior, setrlimit};

use self::calls::{clone3_calls, compiler_calls, refuse_calls, worker_calls};
use self::files::{restrict_to_output, restrict_to_reading};

/// Open files of the compiler.
const FILES: u64 = 64;
/// Open files of the sandbox process: four rounds with 1,024 connections each, and listeners.
const WORKER_FILES: u64 = 8192;
/// Bytes of a file.
const FILE: u64 = 1 << 30;
/// The files by which the C library resolves names, and those that it loads to do so.
const RESOLVER: &str = "/etc/resolv.conf /etc/hosts /etc/nsswitch.conf /etc/host.conf /etc/gai.conf /etc/services \
                        /etc/ld.so.cache /lib /lib64 /usr/lib /usr/lib64";
/// The directories in which distributions keep the certificates of authorities.
const AUTHORITIES: &str = "/etc/ssl/certs /etc/ssl/cert.pem /etc/ssl/ca-bundle.pem /etc/pki/tls/certs \
                           /etc/pki/ca-trust/extracted /etc/ca-certificates/extracted /usr/share/ca-certificates \
                           /usr/local/share/ca-certificates";

/// Returns the paths of the system that a sandbox process reads: what resolves names and verifies servers.
pub(crate) fn system_paths() -> impl Iterator<Item = PathBuf> {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    named.chain(RESOLVER.split(' ').chain(AUTHORITIES.split(' ')).map(PathBuf::from))
}

/// Confines the compiler's process to one directory. What an older kernel does not have is left out and said on standard
/// error.
///
/// # Errors
/// If the bounds on memory and time can't be set.
pub(crate) fn confine_compiler(output: &Path, limits: &CompileLimits) -> Result<(), String> {
    let memory = limits.memory_bytes as u64;
    let seconds = limits.time.as_secs().max(1);
    limit(Resource::Data, memory, memory)?;
    limit(Resource::Cpu, seconds, seconds + 1)?;
    limit(Resource::Nofile, FILES, FILES)?;
    limit(Resource::Fsize, FILE, FILE)?;
    end_before_others()?;
    warn([restrict_to_output(output), refuse_calls(compiler_calls, libc::EPERM), refuse_clone3()]);
    Ok(())
}

/// Confines the sandbox process to reading these files and directories, and what resolves names and verifies servers. What
/// an older kernel does not have is left out and said on standard error.
///
/// # Errors
/// If the bound on memory can't be set.
pub(crate) fn confine_worker(readable: &[&Path], memory_bytes: u64) -> Result<(), String> {
    limit(Resource::Data, memory_bytes, memory_bytes)?;
    let files = getrlimit(Resource::Nofile).maximum.map_or(WORKER_FILES, |most| most.min(WORKER_FILES));
    limit(Resource::Nofile, files, files)?;
    end_before_others()?;
    let system: Vec<PathBuf> = system_paths().collect();
    let readable: Vec<&Path> = readable.iter().copied().chain(system.iter().map(PathBuf::as_path)).collect();
    warn([restrict_to_reading(&readable), refuse_calls(worker_calls, libc::EPERM), refuse_clone3()]);
    Ok(())
}

/// Makes this process be the first to end where memory is short, and end with its parent, without a core file. Other processes
/// of its user may not attach to it or read its memory.
fn end_before_others() -> Result<(), String> {
    limit(Resource::Core, 0, 0)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000"); // it may be so already
    // From here on its files in /proc are root's.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| format!("cannot hide its memory: {error}"))?;
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    Ok(())
}

/// Refuses `clone3` as a kernel does that does not have it.
fn refuse_clone3() -> Result<(), String> {
    refuse_calls(|architecture| Ok(clone3_calls(architecture)), libc::ENOSYS)
}

fn warn(results: [Result<(), String>; 3]) {
    for what in results.into_iter().filter_map(Result::err) {
        eprintln!("warning: {what}");
    }
}

fn limit(resource: Resource, current: u64, maximum: u64) -> Result<(), String> {
    let wanted = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(resource, wanted).map_err(|error| format!("cannot limit {resource:?}: {error}"))
}
