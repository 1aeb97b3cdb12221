//! Confined threads and processes, and what they can't do any more.

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
