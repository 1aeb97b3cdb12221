//! An isolated network for stories whose peers listen on all addresses or send multicast.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::skip::{is_root, skip};

/// Sets up the loopback interface only, also for multicast.
const SET_UP: &str =
    "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo src 127.0.0.1 && echo ready && exec cat";

/// A network namespace. It ends with its last process; the one that holds it ends on drop.
pub struct Namespace {
    /// Ends when its standard input is closed.
    holder: Child,
}

impl Namespace {
    /// Creates a namespace. `None`, with the reason printed, where that is not possible.
    pub fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", SET_UP]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        if ready != "ready\n" {
            let _ = holder.wait(); // it ended before it was ready
            skip("this needs a network namespace");
            return None;
        }
        Some(Self { holder })
    }

    /// Returns a command that runs in it.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net", "--"]).arg(program);
        command
    }

    /// Runs a function on a thread in it: sockets stay in the network namespace of the thread that created them.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder.id())).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
