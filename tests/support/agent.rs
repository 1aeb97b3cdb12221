//! The agent as a process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::node::wait_for;

/// A signalled agent that runs on for longer has failed.
const LONGEST_END: Duration = Duration::from_mins(1);

/// The agent process; it is killed on drop.
pub struct Agent {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Agent {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, copy) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = copy.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it logs a text.
    pub async fn wait_for_log(&self, text: &str) {
        wait_for(&format!("'{text}' in the log"), || self.log(), |log| log.contains(text)).await;
    }

    /// Waits until it has observed these IDs in use; only then the end of their pods is noticed at once.
    pub async fn sees_in_use(&self, ids: &[String]) {
        self.sees_in_use_since(0, ids).await;
    }

    /// Like [`Agent::sees_in_use`], for IDs claimed when the log had the length `since`.
    pub async fn sees_in_use_since(&self, since: usize, ids: &[String]) {
        self.sees_in_use_in("default", since, ids).await;
    }

    /// Like [`Agent::sees_in_use`], in a namespace.
    pub async fn sees_in_use_in(&self, namespace: &str, since: usize, ids: &[String]) {
        for id in ids {
            let (instance, slot) = id.rsplit_once('-').unwrap();
            let line = format!("a container uses it instance={namespace}/{instance} slot={slot}");
            // The container follows if it is known.
            let is_seen =
                |log: &String| ["\n", " by="].iter().any(|end| log[since..].contains(&format!("{line}{end}")));
            wait_for(&line, || self.log(), is_seen).await;
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it with SIGTERM; returns whether it succeeded.
    pub fn stop(self) -> bool {
        self.stop_by(Signal::TERM)
    }

    /// Stops it with a signal; returns whether it succeeded.
    pub fn stop_by(mut self, signal: Signal) -> bool {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let deadline = Instant::now() + LONGEST_END;
        while self.is_running() {
            assert!(Instant::now() < deadline, "the agent runs on after {signal:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.wait().unwrap().success()
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}
