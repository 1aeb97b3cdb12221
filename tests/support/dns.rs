//! A DNS server (RFC 1035) for stories, on a loopback address.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tempfile::TempDir;

use super::skip::{is_root, skip};

/// The DNS server. It answers until it is dropped.
pub struct NameService {
    directory: TempDir,
    silent: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameService {
    /// Starts it at an address, with these names. `None`, with the reason printed, where programs can't be configured
    /// to use it.
    pub fn new(at: Ipv4Addr, names: &[(&str, Ipv4Addr)]) -> Option<Self> {
        if !is_root() {
            return None;
        }
        if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
            skip("this needs a mount namespace");
            return None;
        }
        let directory = TempDir::new().unwrap();
        let settings = format!("nameserver {at}\noptions timeout:1 attempts:1\n");
        fs::write(directory.path().join("resolv.conf"), settings).unwrap();
        let socket = UdpSocket::bind((at, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let names = names.iter().map(|(name, address)| (name.to_string(), *address)).collect();
        let [silent, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_silent, is_over) = (silent.clone(), over.clone());
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                serve(&socket, &names, &is_silent);
            }
        });
        Some(Self { directory, silent, over, thread: Some(thread) })
    }

    /// Returns a command that uses only this server.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        command.args(["--mount", "sh", "-c", script]).arg(self.directory.path().join("resolv.conf")).arg(program);
        command
    }

    /// Makes it ignore queries.
    pub fn hang(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Stops it; programs keep using its address.
    pub fn fail(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for NameService {
    fn drop(&mut self) {
        self.fail();
    }
}

fn serve(socket: &UdpSocket, names: &HashMap<String, Ipv4Addr>, silent: &AtomicBool) {
    let mut question = [0; 512];
    let Ok((length, from)) = socket.recv_from(&mut question) else { return };
    if silent.load(Ordering::Relaxed) {
        return;
    }
    socket.send_to(&answer(&question[..length], names), from).unwrap();
}

/// Builds the response: an unknown name is an error, and known ones have addresses only.
fn answer(question: &[u8], names: &HashMap<String, Ipv4Addr>) -> Vec<u8> {
    const HEADER: usize = 12;
    let mut labels = Vec::new();
    let mut end = HEADER;
    while question[end] != 0 {
        let next = end + 1 + usize::from(question[end]);
        labels.push(str::from_utf8(&question[end + 1..next]).unwrap());
        end = next;
    }
    let (kind, end) = (question[end + 2], end + 5);
    let known = names.get(&labels.join("."));
    let address = known.filter(|_| kind == 1);
    let flags = [0x81, if known.is_some() { 0x80 } else { 0x83 }];
    let counts = [0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0];
    let record =
        address.map(|address| [&[0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4], &address.octets()[..]].concat());
    [&question[..2], &flags, &counts, &question[HEADER..end], &record.unwrap_or_default()].concat()
}
