//! The system calls that a process may make, by seccomp.

use std::collections::BTreeMap;

use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};

/// A list of system calls.
macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// System calls that neither process needs: they are for other programs, other processes, the kernel, and what a file is
/// besides its contents, which Landlock does not cover.
const REFUSED: &[i64] = calls! {
    SYS_accept SYS_accept4 SYS_add_key SYS_bpf SYS_chroot SYS_clock_settime SYS_delete_module SYS_execve
    SYS_execveat SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_finit_module SYS_fremovexattr SYS_fsetxattr
    SYS_init_module SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_ioprio_set SYS_kcmp
    SYS_kexec_load SYS_keyctl SYS_kill SYS_listen SYS_lremovexattr SYS_lsetxattr SYS_migrate_pages SYS_mknodat
    SYS_mount SYS_move_mount SYS_move_pages SYS_name_to_handle_at SYS_open_by_handle_at SYS_open_tree
    SYS_perf_event_open SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_pivot_root SYS_process_madvise
    SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace SYS_reboot SYS_removexattr SYS_request_key SYS_setns
    SYS_setpriority SYS_setxattr SYS_swapon SYS_tkill SYS_truncate SYS_umount2 SYS_unshare SYS_userfaultfd
    SYS_utimensat SYS_vmsplice
};
/// `fchmodat2`, `setxattrat` and `removexattrat`, which libc does not name everywhere. Their numbers are the same on all
/// architectures.
const REFUSED_BY_NUMBER: &[i64] = &[452, 463, 466];
/// Calls that other architectures do not have.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = calls! {
    SYS_chmod SYS_chown SYS_fork SYS_futimesat SYS_lchown SYS_mknod SYS_utime SYS_utimes SYS_vfork
};
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Calls whose first argument is a process, which must be this one.
const OWN_PROCESS: [i64; 3] = [libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_tgkill];
/// Calls whose first argument is a thread, which must be 0 for the one that calls.
const OWN_THREAD: [i64; 4] =
    [libc::SYS_sched_setaffinity, libc::SYS_sched_setattr, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler];
/// Commands by which the kernel sends a signal for a file to whichever process.
const FILE_OWNERS: [(i64, i32); 5] = [
    (libc::SYS_fcntl, libc::F_SETOWN),
    (libc::SYS_fcntl, 10),     // F_SETSIG
    (libc::SYS_fcntl, 15),     // F_SETOWN_EX
    (libc::SYS_ioctl, 0x8901), // FIOSETOWN
    (libc::SYS_ioctl, 0x8902), // SIOCSPGRP
];

/// System calls that the compiler does not need either.
const NETWORK: [i64; 5] = [libc::SYS_bind, libc::SYS_connect, libc::SYS_sendto, libc::SYS_socket, libc::SYS_socketpair];

/// Kinds of Unix sockets by which services are reached, such as the kubelet's. The kind that is left out is the one by which
/// the C library looks up the number of a network interface.
const UNIX_KINDS: [i32; 4] = [libc::SOCK_STREAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET];
/// Bits of a socket's type that are not flags.
const SOCKET_KIND: u64 = 0xf;

pub(super) type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn no_seccomp(error: &dyn std::fmt::Display) -> String {
    format!("seccomp can't be used: {error}")
}

fn argument(index: u8, op: SeccompCmpOp, value: i32) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, u64::from(value.cast_unsigned()))
}

/// The calls that both processes are refused.
fn common_calls() -> Result<Calls, seccompiler::BackendError> {
    let rule = |conditions: &[SeccompCondition]| SeccompRule::new(conditions.to_vec());
    let is_not = |process| argument(0, SeccompCmpOp::Ne, process);
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut calls: Calls =
        [REFUSED, REFUSED_BY_NUMBER, REFUSED_HERE].concat().into_iter().map(|call| (call, Vec::new())).collect();
    for call in OWN_PROCESS {
        calls.insert(call, vec![rule(&[is_not(own)?])?]);
    }
    for call in OWN_THREAD {
        calls.insert(call, vec![rule(&[is_not(0)?])?]);
    }
    calls.insert(libc::SYS_prlimit64, vec![rule(&[is_not(0)?, is_not(own)?])?]);
    for (call, command) in FILE_OWNERS {
        calls.entry(call).or_default().push(rule(&[argument(1, SeccompCmpOp::Eq, command)?])?);
    }
    // A thread is no process.
    let is_process = argument(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)?;
    calls.insert(libc::SYS_clone, vec![rule(&[is_process])?]);
    Ok(calls)
}

/// The calls that the compiler is refused.
pub(super) fn compiler_calls() -> Result<Calls, String> {
    let mut calls = common_calls().map_err(|error| no_seccomp(&error))?;
    calls.extend(NETWORK.map(|call| (call, Vec::new())));
    Ok(calls)
}

/// The calls that the sandbox process is refused: also of sockets all but those of the network.
pub(super) fn worker_calls() -> Result<Calls, String> {
    let is_not = |family| argument(0, SeccompCmpOp::Ne, family);
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_UNIX].map(is_not);
    let other_family = families.into_iter().collect::<Result<Vec<_>, _>>().and_then(SeccompRule::new);
    let unix = |kind| {
        let conditions =
            [argument(0, SeccompCmpOp::Eq, libc::AF_UNIX)?, argument(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?];
        SeccompRule::new(conditions.to_vec())
    };
    let sockets = std::iter::once(other_family).chain(UNIX_KINDS.map(unix)).collect::<Result<Vec<_>, _>>();
    let mut calls = common_calls().map_err(|error| no_seccomp(&error))?;
    calls.insert(libc::SYS_socket, sockets.map_err(|error| no_seccomp(&error))?);
    Ok(calls)
}

/// Refuses the call whose flags are in memory, out of a filter's sight. The C library uses the older one where the kernel does
/// not have this one.
pub(super) fn refuse_clone3() -> Result<(), String> {
    refuse_calls([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)
}

/// Ends a process that makes a call by the numbers of x32, which a filter by number would let through. Calls of other
/// architectures than the program's end it, too.
#[cfg(target_arch = "x86_64")]
const FOREIGN_CALLS: &[sock_filter] = &[
    sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 }, // load the number
    sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 }, // skip the next one if it is smaller
    sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
];
#[cfg(not(target_arch = "x86_64"))]
const FOREIGN_CALLS: &[sock_filter] = &[];

/// Installs a filter by which the kernel refuses calls of this thread and of those that it starts.
pub(super) fn refuse_calls(calls: Calls, error: i32) -> Result<(), String> {
    let refused = SeccompAction::Errno(error.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| no_seccomp(&error))?;
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, arch).map_err(|error| no_seccomp(&error))?;
    let program: seccompiler::BpfProgram =
        filter.try_into().map_err(|error: seccompiler::BackendError| no_seccomp(&error))?;
    seccompiler::apply_filter(&[FOREIGN_CALLS, &program].concat()).map_err(|error| no_seccomp(&error))
}
