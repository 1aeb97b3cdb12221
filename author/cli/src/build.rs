//! A build of a component: a shell command in a process group of its own.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{sleep, timeout};

/// Bytes of output that are shown: the last ones, where compilers say why.
const OUTPUT: usize = 64 << 10;
/// Interval at which the process is polled.
const POLL: Duration = Duration::from_millis(50);
/// Time for processes to end, and for output that a process in the background holds open.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A build that has ended.
pub(super) struct Built {
    pub(super) status: ExitStatus,
    pub(super) output: String,
    pub(super) took: Duration,
}

impl Built {
    /// Describes how a failed one ended.
    pub(super) fn failure(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("the build failed with exit code {code}"),
            (None, Some(signal)) => format!("the build was ended by signal {signal}"),
            (None, None) => "the build failed".to_owned(),
        }
    }
}

/// Runs a build to its end. If this is dropped before, its processes are ended.
pub(super) async fn build(command: &str, directory: &Path) -> io::Result<Built> {
    let begun = Instant::now();
    let (reader, writer) = io::pipe()?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).current_dir(directory).process_group(0);
    shell.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut running = Running { child: shell.spawn()?, has_ended: false };
    drop(shell); // it holds the pipe open
    let tail = Arc::<Mutex<VecDeque<u8>>>::default();
    let reading = tokio::spawn(keep_tail(Receiver::from_owned_fd(reader.into())?, tail.clone()));
    let status = loop {
        match running.child.try_wait()? {
            Some(status) => break status,
            None => sleep(POLL).await,
        }
    };
    running.has_ended = true;
    let took = begun.elapsed();
    let _ = timeout(END_TIMEOUT, reading).await; // a process in the background may hold the pipe open
    let bytes: Vec<u8> = tail.lock().iter().copied().collect();
    Ok(Built { status, output: String::from_utf8_lossy(&bytes).into_owned(), took })
}

/// A build that runs.
struct Running {
    child: Child,
    has_ended: bool,
}

impl Drop for Running {
    /// Ends all processes of the group. Its id is not given to others before its first process was waited for.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::TERM); // it may have ended just now
        let latest = Instant::now() + END_TIMEOUT;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while Instant::now() < latest && matches!(waitid(WaitId::Pid(group), options), Ok(None)) {
            thread::sleep(POLL);
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Reads all output and keeps the last of it.
async fn keep_tail(mut output: Receiver, tail: Arc<Mutex<VecDeque<u8>>>) {
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut part).await {
        let mut tail = tail.lock();
        tail.extend(part.iter().take(count));
        let excess = tail.len().saturating_sub(OUTPUT);
        tail.drain(..excess);
    }
}
