//! Confines this process for the rest of its life: the compiler, which can compute and write into one directory, and the
//! sandbox process, which can compute, read the node's devices and use the network.
//!
//! The rules of Landlock and seccomp are those of the calling thread and of all that it starts, so that it has to be the first.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use akri_model::grant::CompileLimits;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior, setrlimit};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};

/// The newest rules that are asked for; older kernels have fewer.
const LANDLOCK: ABI = ABI::V6;
/// Open files of the compiler.
const FILES: u64 = 64;
/// Open files of the sandbox process: four rounds with 1,024 connections each, and listeners.
const WORKER_FILES: u64 = 8192;
/// Bytes of a file.
const FILE: u64 = 1 << 30;
/// The files by which the C library resolves names, and those that it loads to do so.
pub const RESOLVER: [&str; 11] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];
/// The directories in which distributions keep the certificates of authorities.
pub const AUTHORITIES: [&str; 8] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates/extracted",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// The number of `fchmodat2` on all architectures; libc lacks it on some.
const FCHMODAT2: i64 = 452;

/// System calls that neither process needs: they are for other programs, other processes, the kernel, and what a file is
/// besides its contents, which Landlock does not cover.
const REFUSED: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_finit_module,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_ioprio_set,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_listen,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_migrate_pages,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_removexattr,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_setpriority,
    libc::SYS_setxattr,
    libc::SYS_swapon,
    libc::SYS_tkill,
    libc::SYS_truncate,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_utimensat,
    libc::SYS_vmsplice,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
];

/// The same with one number on all architectures.
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;

/// Calls that other architectures do not have.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_lchown,
    libc::SYS_mknod,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
];
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

/// Confines the compiler's process to one directory. What an older kernel does not have is left out and said on standard
/// error.
///
/// # Errors
/// If the bounds on memory and time can't be set.
pub fn confine_compiler(output: &Path, limits: &CompileLimits) -> Result<(), String> {
    let memory = limits.memory_bytes as u64;
    let seconds = limits.time.as_secs().max(1);
    limit(Resource::Data, memory, memory)?;
    limit(Resource::Cpu, seconds, seconds + 1)?;
    limit(Resource::Nofile, FILES, FILES)?;
    limit(Resource::Fsize, FILE, FILE)?;
    end_before_others()?;
    warn([
        restrict_to_output(output),
        compiler_calls().and_then(|calls| refuse_calls(calls, libc::EPERM)),
        refuse_clone3(),
    ]);
    Ok(())
}

/// Confines the sandbox process to reading these files and directories, and what resolves names and verifies servers. What
/// an older kernel does not have is left out and said on standard error.
///
/// # Errors
/// If the bound on memory can't be set.
pub fn confine_worker(readable: &[&Path], memory_bytes: u64) -> Result<(), String> {
    limit(Resource::Data, memory_bytes, memory_bytes)?;
    let files = getrlimit(Resource::Nofile).maximum.map_or(WORKER_FILES, |most| most.min(WORKER_FILES));
    limit(Resource::Nofile, files, files)?;
    end_before_others()?;
    let system = RESOLVER.iter().chain(&AUTHORITIES).map(Path::new);
    let readable: Vec<&Path> = readable.iter().copied().chain(system).collect();
    warn([
        restrict_to_reading(&readable),
        worker_calls().and_then(|calls| refuse_calls(calls, libc::EPERM)),
        refuse_clone3(),
    ]);
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

fn warn(results: [Result<(), String>; 3]) {
    for what in results.into_iter().filter_map(Result::err) {
        eprintln!("warning: {what}");
    }
}

fn limit(resource: Resource, current: u64, maximum: u64) -> Result<(), String> {
    let wanted = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(resource, wanted).map_err(|error| format!("cannot limit {resource:?}: {error}"))
}

fn no_landlock(error: &dyn std::fmt::Display) -> String {
    format!("Landlock can't be used: {error}")
}

/// No files but those below the directory, and no network.
fn restrict_to_output(output: &Path) -> Result<(), String> {
    let directory = PathFd::new(output).map_err(|error| no_landlock(&error))?;
    let allowed = PathBeneath::new(directory.as_fd(), AccessFs::from_all(LANDLOCK));
    let status = Ruleset::default()
        .handle_access(AccessNet::from_all(LANDLOCK))
        .and_then(restricted_files)
        .and_then(|rules| rules.add_rule(allowed))
        .and_then(|rules| rules.restrict_self());
    enforced(status)
}

/// No files but these, and these only for reading. What does not exist is left out.
fn restrict_to_reading(readable: &[&Path]) -> Result<(), String> {
    let status = restricted_files(Ruleset::default()).and_then(|rules| {
        let readable = readable.iter().filter_map(|path| Some((path.is_dir(), PathFd::new(path).ok()?)));
        let allowed = readable.map(|(is_directory, path)| {
            let file = BitFlags::from(AccessFs::ReadFile);
            let access = if is_directory { file | AccessFs::ReadDir } else { file };
            Ok::<_, RulesetError>(PathBeneath::new(path, access))
        });
        rules.add_rules(allowed)?.restrict_self()
    });
    enforced(status)
}

/// Rules by which no file can be used, and no process outside be sent a signal or reached by an abstract socket.
fn restricted_files(rules: Ruleset) -> Result<RulesetCreated, RulesetError> {
    rules.handle_access(AccessFs::from_all(LANDLOCK))?.scope(Scope::from_all(LANDLOCK))?.create()
}

fn enforced(status: Result<RestrictionStatus, RulesetError>) -> Result<(), String> {
    match status.map_err(|error| no_landlock(&error))?.ruleset {
        RulesetStatus::NotEnforced => Err(no_landlock(&"this kernel does not have it")),
        // What kernels before 6.12 lack of it (truncating by path, signals) is refused by the filter of system calls.
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

type Calls = BTreeMap<i64, Vec<SeccompRule>>;

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
    let mut calls: Calls = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
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
fn compiler_calls() -> Result<Calls, String> {
    let mut calls = common_calls().map_err(|error| no_seccomp(&error))?;
    calls.extend(NETWORK.map(|call| (call, Vec::new())));
    Ok(calls)
}

/// The calls that the sandbox process is refused: also of sockets all but those of the network.
fn worker_calls() -> Result<Calls, String> {
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
fn refuse_clone3() -> Result<(), String> {
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

/// Has the kernel refuse calls for this thread and those it starts.
fn refuse_calls(calls: Calls, error: i32) -> Result<(), String> {
    let refused = SeccompAction::Errno(error.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| no_seccomp(&error))?;
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, arch).map_err(|error| no_seccomp(&error))?;
    let program: seccompiler::BpfProgram =
        filter.try_into().map_err(|error: seccompiler::BackendError| no_seccomp(&error))?;
    seccompiler::apply_filter(&[FOREIGN_CALLS, &program].concat()).map_err(|error| no_seccomp(&error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;
    use std::thread;

    use super::*;

    /// The rules are those of a thread, so that a thread can show them.
    fn confined<T: Send>(readable: &[&Path], work: impl FnOnce() -> T + Send) -> T {
        let confine = || {
            let _ = restrict_to_reading(readable); // a kernel that has a part of the rules says so
            worker_calls().and_then(|calls| refuse_calls(calls, libc::EPERM)).unwrap();
            refuse_clone3().unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(confine).join().unwrap())
    }

    #[test]
    fn confined_worker_reads_named_paths_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sys")).unwrap();
        fs::create_dir(path("state")).unwrap();
        for file in ["sys/uevent", "state/journal", "token"] {
            fs::write(path(file), "x").unwrap();
        }
        confined(&[&path("sys"), &path("absent")], || {
            assert_eq!(fs::read(path("sys/uevent")).unwrap(), b"x");
            assert_eq!(fs::read_dir(path("sys")).unwrap().count(), 1);
            assert!(fs::write(path("sys/uevent"), "y").is_err());
            for file in ["state/journal", "token", "/etc/passwd", "/proc/1/environ"] {
                assert!(fs::read(path(file)).is_err(), "{file}");
            }
            assert!(fs::read_dir(path("state")).is_err());
            // What Landlock does not cover.
            assert!(fs::set_permissions(path("token"), fs::Permissions::from_mode(0o666)).is_err());
            assert!(chown(path("token"), Some(0), None).is_err() && lchown(path("token"), Some(0), None).is_err());
            assert!(rustix::fs::setxattr(path("token"), "user.a", b"b", rustix::fs::XattrFlags::empty()).is_err());
            let file = fs::File::open(path("sys/uevent")).unwrap();
            assert!(file.set_permissions(fs::Permissions::from_mode(0o666)).is_err());
            assert!(file.set_modified(std::time::SystemTime::UNIX_EPOCH).is_err());
        });
        assert_eq!(fs::read(path("token")).unwrap(), b"x");
    }

    #[test]
    fn confined_worker_starts_threads_and_no_processes() {
        let program = || Command::new("/bin/true").status();
        assert!(program().is_ok());
        thread::scope(|scope| {
            let confined = scope.spawn(|| {
                let mut calls = worker_calls().unwrap();
                calls.retain(|call, _| ![libc::SYS_execve, libc::SYS_execveat].contains(call));
                refuse_calls(calls, libc::EPERM).unwrap();
                refuse_clone3().unwrap();
                assert!(program().is_err());
                assert!(thread::spawn(|| 1).join().is_ok());
            });
            confined.join().unwrap();
        });
    }

    /// Runs Python code under the rules of the sandbox process, but for those by which it could not be started.
    #[cfg(target_arch = "x86_64")]
    fn signal_of_confined_python(code: &str) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt as _;
        let started = [libc::SYS_execve, libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork];
        let run = || {
            let mut calls = worker_calls().unwrap();
            calls.retain(|call, _| !started.contains(call));
            refuse_calls(calls, libc::EPERM).unwrap();
            Command::new("python3").args(["-c", code]).status().unwrap()
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap()).signal()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_of_other_architectures_end_the_process() {
        let number = |number: u64| format!("import ctypes; ctypes.CDLL(None).syscall({number})");
        assert_eq!(signal_of_confined_python(&number(39)), None);
        assert_eq!(signal_of_confined_python(&number(0x4000_0000 + 39)), Some(libc::SIGSYS), "x32");
        // getpid by the calls of i386.
        let i386 = r"import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()";
        assert_eq!(signal_of_confined_python(i386), Some(libc::SIGSYS));
    }

    #[test]
    fn confined_worker_has_no_power_over_other_processes() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, own) = (rustix::process::Pid::from_child(&child), rustix::process::getpid());
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let set_limit = |of| rustix::process::prlimit(of, Resource::Nofile, limit);
        let set_processor = |of| {
            let processors = rustix::thread::sched_getaffinity(None).unwrap();
            rustix::thread::sched_setaffinity(of, &processors)
        };
        assert!(set_limit(Some(pid)).is_ok() && set_processor(Some(pid)).is_ok());
        confined(&[], || {
            assert!(set_limit(Some(pid)).is_err() && set_processor(Some(pid)).is_err());
            assert!(set_limit(None).is_ok() && set_limit(Some(own)).is_ok() && set_processor(None).is_ok());
            assert!(rustix::process::setpriority_process(Some(pid), 19).is_err());
            assert!(rustix::io::ioctl_fionbio(&socket, true).is_ok());
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn confined_worker_uses_the_network_only() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, server) = (directory.path().join("kubelet.sock"), TcpListener::bind("127.0.0.1:0").unwrap());
        let _kubelet = UnixListener::bind(&socket).unwrap();
        let child = Command::new("sleep").arg("60").spawn();
        let mut child = child.unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        confined(&[], || {
            TcpStream::connect(server.local_addr().unwrap()).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap();
            assert!(nix::net::if_::if_nametoindex("lo").is_ok());
            assert!(nix::ifaddrs::getifaddrs().unwrap().count() > 0);
            assert!(UnixStream::connect(&socket).is_err());
            assert!(UnixStream::pair().is_ok(), "the runtime uses one");
            assert!(Command::new("/bin/true").status().is_err());
            assert!(rustix::process::kill_process(pid, Signal::TERM).is_err());
            assert!(thread::spawn(|| 1).join().is_ok(), "it may start threads");
        });
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
