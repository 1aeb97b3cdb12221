//! A sandbox process, seen from the agent.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::sync::watch;

use crate::confine::system_paths;

/// Variables that a sandbox process gets if the agent has them: its log, and the authorities that it trusts.
const ENVIRONMENT: [&str; 3] = ["AKRI_LOG", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The program of the processes that compile and run components, and what the latter may use.
#[derive(Debug, Clone)]
pub struct SandboxProgram {
    /// The program, which is `akri`.
    pub path: PathBuf,
    /// Arguments of sandbox processes, besides those that follow from the settings.
    pub arguments: Vec<String>,
    /// Bytes of memory of each sandbox process.
    pub memory_bytes: u64,
}

/// The paths that a sandbox process reads.
#[derive(Debug, Clone)]
pub struct ReadablePaths {
    /// The directory of compiled components.
    pub compiled: PathBuf,
    /// The mount point of sysfs.
    pub sysfs: PathBuf,
    /// udev's database.
    pub udev_data: PathBuf,
}

/// The files and directories behind the paths that a process may read. It has what was there when it started: one that was
/// replaced since, such as `/etc/resolv.conf`, is out of its reach, and the authorities in a directory it has read already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint(Vec<Option<(u64, u64, i64)>>);

impl ReadablePaths {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let devices = [self.sysfs.clone(), self.udev_data.clone()].map(|path| (path, false));
        let identity = |(path, is_static): (PathBuf, bool)| {
            let metadata = path.metadata().ok()?;
            let changed = if is_static && metadata.is_dir() { metadata.mtime() } else { 0 };
            Some((metadata.dev(), metadata.ino(), changed))
        };
        Fingerprint(system_paths().map(|path| (path, true)).chain(devices).map(identity).collect())
    }
}

/// A running sandbox process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    child: Arc<Mutex<Child>>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts one. Also returns the other ends of its standard input and of its standard error.
    pub(crate) fn start(program: &SandboxProgram, paths: &ReadablePaths) -> io::Result<(Self, UnixStream, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        let command = command(program, paths, theirs);
        let (started, start) = mpsc::channel();
        let (status, ended) = watch::channel(None);
        // The kernel ends the process with the thread that started it.
        thread::Builder::new().name("akri-sandbox".to_owned()).stack_size(256 << 10).spawn(move || {
            run(command, &started, &status);
        })?;
        let (pid, child, errors) = start.recv().map_err(io::Error::other)??;
        Ok((Self { pid, child, ended }, ours, errors))
    }

    /// Kills it unless it was waited for, after which its id may be that of another process.
    pub(crate) fn kill(&self) {
        let _ = self.child.lock().kill(); // it may have ended
    }

    /// Waits until it has ended, and returns how.
    pub(crate) fn ended(&self) -> impl Future<Output = String> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let status = ended.wait_for(Option::is_some).await.ok().and_then(|status| *status);
            match status.map(|status| (status.signal(), status.code())) {
                None => "for an unknown reason".to_owned(),
                Some((Some(signal), _)) => format!("by signal {signal}"),
                Some((None, code)) => format!("with exit code {}", code.unwrap_or_default()),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        tracing::debug!(pid = self.pid, "ending the sandbox process");
        self.kill();
    }
}

/// Settings of the C library's allocator: one heap for all threads, and large blocks go back to the kernel when a component is loaded.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536")];

fn command(program: &SandboxProgram, paths: &ReadablePaths, stream: UnixStream) -> Command {
    let mut command = Command::new(&program.path);
    command.arg("sandbox").args(&program.arguments).arg("--memory").arg(program.memory_bytes.to_string());
    let ReadablePaths { compiled, sysfs, udev_data } = paths;
    for (flag, path) in [("--compiled", compiled), ("--sysfs", sysfs), ("--udev-data", udev_data)] {
        command.arg(flag).arg(path);
    }
    let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(ALLOCATOR).envs(kept).current_dir(Path::new("/"));
    command.stdin(OwnedFd::from(stream)).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at a terminal is for the agent, which ends it.
    command.process_group(0);
    command
}

type Started = io::Result<(u32, Arc<Mutex<Child>>, OwnedFd)>;

/// Starts a process, and waits for its end.
fn run(mut command: Command, started: &mpsc::Sender<Started>, status: &watch::Sender<Option<ExitStatus>>) {
    let spawned = command.spawn();
    drop(command); // with its end of the stream
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let (pid, id) = (Pid::from_child(&child), child.id());
    let Some(errors) = child.stderr.take() else { return };
    let child = Arc::new(Mutex::new(child));
    let _ = started.send(Ok((id, Arc::clone(&child), errors.into()))); // nobody may want it any more
    // Its id stays its own until it is waited for below.
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let ended = child.lock().wait();
    status.send_replace(Some(ended.unwrap_or_else(|_| ExitStatus::from_raw(Signal::KILL.as_raw()))));
}
