//! The system calls that a process may make, by seccomp.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::architectures::{
    Architecture, CLONE, CLONE3, FCNTL, IOCTL, NETWORK, OWN_PROCESS, OWN_THREAD, PRLIMIT, REFUSED, SOCKET, SystemCall,
};

/// Commands by which the kernel sends a signal for a file to whichever process.
const FILE_OWNERS: [(&[SystemCall], i32); 5] = [
    (FCNTL, libc::F_SETOWN),
    (FCNTL, 10),     // F_SETSIG
    (FCNTL, 15),     // F_SETOWN_EX
    (IOCTL, 0x8901), // FIOSETOWN
    (IOCTL, 0x8902), // SIOCSPGRP
];

/// Kinds of Unix sockets by which services are reached, such as the kubelet's. The kind that is left out is the one by which
/// the C library looks up the number of a network interface.
const UNIX_KINDS: [i32; 4] = [libc::SOCK_STREAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET];
/// Bits of a socket's type that are not flags.
const SOCKET_KIND: u64 = 0xf;

pub(super) type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn no_seccomp(error: &dyn std::fmt::Display) -> String {
    format!("seccomp can't be used: {error}")
}

fn argument(index: u8, op: SeccompCmpOp, value: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, u64::from(value.cast_unsigned()))
}

fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.to_vec())
}

/// Refuses calls of a list that match one of these rules; all of them if there is none.
fn refuse(calls: &mut Calls, architecture: &Architecture, list: &'static [SystemCall], rules: &[SeccompRule]) {
    for number in architecture.numbers(list) {
        calls.entry(number).or_default().extend_from_slice(rules);
    }
}

/// The calls that both processes are refused.
fn common_calls(architecture: &Architecture) -> Result<Calls, BackendError> {
    let is_not = |process| argument(0, SeccompCmpOp::Ne, process);
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut calls = Calls::new();
    let mut refuse = |list, rules: &[SeccompRule]| refuse(&mut calls, architecture, list, rules);
    refuse(REFUSED, &[]);
    refuse(OWN_PROCESS, &[rule(&[is_not(own)?])?]);
    refuse(OWN_THREAD, &[rule(&[is_not(0)?])?]);
    refuse(PRLIMIT, &[rule(&[is_not(0)?, is_not(own)?])?]);
    for (list, command) in FILE_OWNERS {
        refuse(list, &[rule(&[argument(1, SeccompCmpOp::Eq, command)?])?]);
    }
    // A thread is no process.
    let is_process = argument(0, SeccompCmpOp::MaskedEq(u64::from(libc::CLONE_THREAD.cast_unsigned())), 0)?;
    refuse(CLONE, &[rule(&[is_process])?]);
    Ok(calls)
}

/// The calls that the compiler is refused.
pub(super) fn compiler_calls(architecture: &Architecture) -> Result<Calls, String> {
    let mut calls = common_calls(architecture).map_err(|error| no_seccomp(&error))?;
    refuse(&mut calls, architecture, NETWORK, &[]);
    Ok(calls)
}

/// The calls that the sandbox process is refused: also of sockets all but those of the network.
pub(super) fn worker_calls(architecture: &Architecture) -> Result<Calls, String> {
    let is_not = |family| argument(0, SeccompCmpOp::Ne, family);
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_UNIX].map(is_not);
    let other_family = families.into_iter().collect::<Result<Vec<_>, _>>().and_then(SeccompRule::new);
    let unix = |kind| {
        rule(&[argument(0, SeccompCmpOp::Eq, libc::AF_UNIX)?, argument(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?])
    };
    let sockets = std::iter::once(other_family).chain(UNIX_KINDS.map(unix)).collect::<Result<Vec<_>, _>>();
    let mut calls = common_calls(architecture).map_err(|error| no_seccomp(&error))?;
    refuse(&mut calls, architecture, SOCKET, &sockets.map_err(|error| no_seccomp(&error))?);
    Ok(calls)
}

/// The call whose flags are in memory, out of a filter's sight. The C library uses the older one where the kernel does not have
/// this one.
pub(super) fn clone3_calls(architecture: &Architecture) -> Calls {
    architecture.numbers(CLONE3).map(|number| (number, Vec::new())).collect()
}

/// Returns a filter by which the kernel refuses calls. Calls of other architectures end the process.
pub(super) fn filter(architecture: &Architecture, calls: Calls, error: i32) -> Result<BpfProgram, BackendError> {
    let refused = SeccompAction::Errno(error.cast_unsigned());
    // The library does not know all architectures. It needs one for the second instruction alone, which compares it.
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, TargetArch::x86_64)?;
    let mut program = BpfProgram::try_from(filter)?;
    if let Some(comparison) = program.get_mut(1) {
        comparison.k = architecture.audit;
    }
    Ok([architecture.prologue, &program].concat())
}

/// Has the kernel refuse calls of this thread and of those that it starts.
pub(super) fn refuse_calls(
    calls: impl FnOnce(&Architecture) -> Result<Calls, String>,
    error: i32,
) -> Result<(), String> {
    let here = Architecture::here()?;
    let program = filter(here, calls(here)?, error).map_err(|error| no_seccomp(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| no_seccomp(&error))
}
