//! Confines the compiler's process: it can compute, and write into one directory.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use akri_model::grant::CompileLimits;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};

/// The newest rules that are asked for; older kernels have fewer.
const LANDLOCK: ABI = ABI::V6;
/// Open files.
const FILES: u64 = 64;
/// Bytes of a file.
const FILE: u64 = 1 << 30;

/// System calls that are refused.
const REFUSED: [i64; 42] = [
    libc::SYS_accept4,
    libc::SYS_add_key,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_connect,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_listen,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_mknodat,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_sendto,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vmsplice,
];

/// Limits this process for the rest of its life. What an older kernel does not have is left out and said on standard error.
///
/// # Errors
/// If the bounds on memory and time can't be set.
pub(super) fn confine(output: &Path, limits: &CompileLimits) -> Result<(), String> {
    let memory = limits.memory_bytes as u64;
    let seconds = limits.time.as_secs().max(1);
    limit(Resource::Data, memory, memory)?;
    limit(Resource::Cpu, seconds, seconds + 1)?;
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Nofile, FILES, FILES)?;
    limit(Resource::Fsize, FILE, FILE)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000"); // where memory is short, it ends and not the agent
    // It must not outlive who asked for it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    for what in [restrict_files(output), refuse_calls()].into_iter().filter_map(Result::err) {
        eprintln!("warning: {what}");
    }
    Ok(())
}

fn limit(resource: Resource, current: u64, maximum: u64) -> Result<(), String> {
    let wanted = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(resource, wanted).map_err(|error| format!("cannot limit {resource:?}: {error}"))
}

/// No files but those below the directory, and no network.
fn restrict_files(output: &Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("Landlock can't be used: {error}");
    let directory = PathFd::new(output).map_err(|error| failed(&error))?;
    let allowed = PathBeneath::new(directory.as_fd(), AccessFs::from_all(LANDLOCK));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK)))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.add_rule(allowed))
        .and_then(|rules| rules.restrict_self())
        .map_err(|error| failed(&error))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(failed(&"this kernel does not have it")),
        _ => Ok(()),
    }
}

/// No network, no other programs, nothing of other processes.
fn refuse_calls() -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("seccomp can't be used: {error}");
    let rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).map_err(|error| failed(&error))?;
    let program: seccompiler::BpfProgram =
        filter.try_into().map_err(|error: seccompiler::BackendError| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}
