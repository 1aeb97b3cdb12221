//! Confined threads and processes, and what they can't do any more.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt as _, chown, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use super::architectures::{self, ARCHITECTURES, Architecture, SystemCall};
use super::calls::{Calls, filter};
use super::*;

/// The rules are those of a thread, so that a thread can show them.
fn confined<T: Send>(readable: &[&Path], work: impl FnOnce() -> T + Send) -> T {
    let confine = || {
        let _ = restrict_to_reading(readable); // a kernel that has a part of the rules says so
        refuse_calls(worker_calls, libc::EPERM).unwrap();
        refuse_clone3().unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(confine).join().unwrap())
}

/// Refuses the calls of the sandbox process but for these.
fn refuse_calls_but(allowed: &[i64]) {
    let calls = |architecture: &Architecture| {
        let mut calls = worker_calls(architecture)?;
        calls.retain(|call, _| !allowed.contains(call));
        Ok(calls)
    };
    refuse_calls(calls, libc::EPERM).unwrap();
}

#[test] // threat 21
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

#[test] // threat 21
fn confined_worker_starts_threads_and_no_processes() {
    let program = || Command::new("/bin/true").status();
    assert!(program().is_ok());
    thread::scope(|scope| {
        let confined = scope.spawn(|| {
            refuse_calls_but(&[libc::SYS_execve, libc::SYS_execveat]);
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
        refuse_calls_but(&started);
        Command::new("python3").args(["-c", code]).status().unwrap()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap()).signal()
}

#[cfg(target_arch = "x86_64")]
#[test] // threat 21
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

#[test] // threat 21
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

#[test] // threat 21
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

/// Every list of system calls.
const LISTS: [&[SystemCall]; 10] = [
    architectures::REFUSED,
    architectures::OWN_PROCESS,
    architectures::OWN_THREAD,
    architectures::NETWORK,
    architectures::CLONE,
    architectures::CLONE3,
    architectures::FCNTL,
    architectures::IOCTL,
    architectures::PRLIMIT,
    architectures::SOCKET,
];

/// The numbers of system calls in headers of the kernel; `None` if these are not installed.
fn header(files: &[&str]) -> Option<BTreeMap<String, i64>> {
    let texts: Vec<String> = files.iter().map(fs::read_to_string).collect::<Result<_, _>>().ok()?;
    let number = |line: &str| {
        let line = line.replace("(__NR_SYSCALL_BASE +", "").replace(')', "");
        let (name, number) = line.strip_prefix("#define __NR")?.split_once(char::is_whitespace)?;
        let name = name.strip_prefix("3264").unwrap_or(name).strip_prefix('_')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    Some(texts.iter().flat_map(|text| text.lines().filter_map(number)).collect())
}

#[test] // threat 21
fn numbers_of_calls_are_those_of_the_kernel() {
    let arm = ["common", "eabi"].map(|part| format!("/usr/arm-linux-gnueabihf/include/asm/unistd-{part}.h"));
    let headers = [
        ("x86_64", header(&["/usr/include/x86_64-linux-gnu/asm/unistd_64.h"])),
        ("aarch64", header(&["/usr/include/asm-generic/unistd.h"])),
        ("arm", header(&arm.each_ref().map(String::as_str))), // of the cross compiler
    ];
    for ((name, header), architecture) in headers.into_iter().zip(&ARCHITECTURES) {
        assert_eq!(name, architecture.name);
        for call in LISTS.into_iter().flatten() {
            let number = architecture.numbers(std::slice::from_ref(call)).next();
            match header.as_ref().and_then(|header| header.get(call.name)) {
                Some(known) if name == "x86_64" || number.is_some() => {
                    assert_eq!(number, Some(*known), "{name} {call:?}")
                }
                _ => {}
            }
        }
    }
}

/// Runs a filter for a call with these arguments, as the kernel does.
fn evaluate(program: &[seccompiler::sock_filter], architecture: u32, number: i64, arguments: [u32; 2]) -> u32 {
    let [first, second] = arguments;
    let data = [number.try_into().unwrap(), architecture, 0, 0, first, 0, second, 0];
    let (mut accumulator, mut at) = (0, 0);
    loop {
        let step = &program[at];
        let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
        at += 1 + match step.code {
            0x06 => return step.k,
            0x05 => step.k as usize,
            0x15 => jump(accumulator == step.k),
            0x25 => jump(accumulator > step.k),
            0x35 => jump(accumulator >= step.k),
            0x20 => {
                accumulator = data[step.k as usize / 4];
                0
            }
            0x54 => {
                accumulator &= step.k;
                0
            }
            code => panic!("{code:#x} is unknown"),
        };
    }
}

#[test] // threat 21
fn filters_of_all_architectures_refuse_the_same() {
    let (allow, refuse, kill) =
        (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, libc::SECCOMP_RET_KILL_PROCESS);
    for architecture in &ARCHITECTURES {
        let program = |calls: Result<Calls, String>| filter(architecture, calls.unwrap(), libc::EPERM).unwrap();
        let (worker, compiler) = (program(worker_calls(architecture)), program(compiler_calls(architecture)));
        let check = |list, arguments, of_worker, of_compiler| {
            for number in architecture.numbers(list) {
                for (program, expected) in [(&worker, of_worker), (&compiler, of_compiler)] {
                    let result = evaluate(program, architecture.audit, number, arguments);
                    assert_eq!(result, expected, "{} {number} {arguments:?}", architecture.name);
                }
                for other in ARCHITECTURES.iter().filter(|other| other.name != architecture.name) {
                    assert_eq!(evaluate(&worker, other.audit, number, arguments), kill);
                }
            }
        };
        check(architectures::REFUSED, [0, 0], refuse, refuse);
        check(architectures::NETWORK, [libc::AF_INET as u32, 1], allow, refuse);
        check(architectures::SOCKET, [libc::AF_UNIX as u32, libc::SOCK_STREAM as u32], refuse, refuse);
        check(architectures::SOCKET, [libc::AF_UNIX as u32, libc::SOCK_DGRAM as u32], allow, refuse);
        check(architectures::SOCKET, [libc::AF_PACKET as u32, libc::SOCK_RAW as u32], refuse, refuse);
        for (process, result) in [(std::process::id(), allow), (1, refuse)] {
            check(architectures::OWN_PROCESS, [process, 0], result, result);
            check(architectures::PRLIMIT, [process, 0], result, result);
        }
        check(architectures::OWN_THREAD, [0, 0], allow, allow);
        check(architectures::OWN_THREAD, [1, 0], refuse, refuse);
        check(architectures::FCNTL, [0, libc::F_SETOWN as u32], refuse, refuse);
        check(architectures::FCNTL, [0, libc::F_GETFL as u32], allow, allow);
        check(architectures::IOCTL, [0, 0x8901], refuse, refuse);
        check(architectures::CLONE, [libc::CLONE_THREAD as u32, 0], allow, allow);
        check(architectures::CLONE, [0, 0], refuse, refuse);
        let clone3 = filter(architecture, clone3_calls(architecture), libc::ENOSYS).unwrap();
        let result = evaluate(&clone3, architecture.audit, 435, [0, 0]);
        assert_eq!(result, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    }
    let [x86_64, ..] = &ARCHITECTURES;
    let worker = filter(x86_64, worker_calls(x86_64).unwrap(), libc::EPERM).unwrap();
    assert_eq!(evaluate(&worker, x86_64.audit, 0x4000_0000 + 39, [0, 0]), kill, "x32");
}
