//! Cameras implemented by others.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::namespace::Namespace;
use crate::skip::skip;

/// A camera process; it is killed on drop.
pub struct Peer(Child);

impl Peer {
    /// Starts ipycam, an ONVIF camera with its own discovery, device and media services, at this address on port 8081.
    /// With a password, its user is `admin`.
    pub fn ipycam(namespace: &Namespace, address: &str, password: Option<&str>, serial: &str) -> Option<Self> {
        let credentials: &[&str] = &password.map(|password| ["admin", password]).unwrap_or_default();
        Self::start(namespace, "ipycam_camera.py", &[&[address, "8081", serial], credentials].concat())
    }

    /// Starts WSDiscovery, which announces a camera whose device service is elsewhere.
    pub fn publisher(namespace: &Namespace, url: &str) -> Option<Self> {
        Self::start(namespace, "wsdiscovery_publisher.py", &[url])
    }

    /// Starts a script and waits until it is ready. `None`, with the reason printed, where it can't be run.
    fn start(namespace: &Namespace, script: &str, arguments: &[&str]) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python: PathBuf = root.join("target/peers/python/bin/python");
        if !python.exists() {
            skip("the peers are not installed: run 'make peers'");
            return None;
        }
        let mut command = namespace.command(&python);
        command.arg(root.join("tests/peers").join(script)).args(arguments);
        // Their output is irrelevant.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{script}");
        Some(Self(child))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}
