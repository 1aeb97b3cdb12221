//! Checks that secrets are not written anywhere.

use std::fs;
use std::path::Path;

use crate::node::{Agent, Node};

/// Searches everything the agent writes, except for the manifests it reads.
///
/// # Panics
/// If a secret is in the agent's log or in a file of its state directory.
pub fn assert_shown_nowhere(node: &Node, agent: &Agent, secret: &str) {
    assert!(!agent.log().contains(secret), "the log");
    let mut seen = 0;
    files(&node.path("state"), &mut |path, bytes| {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{}", path.display());
        seen += 1;
    });
    assert!(seen > 2, "a journal, Instances, the status: {seen}");
}

fn files(directory: &Path, visit: &mut impl FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match fs::read(&path) {
            Ok(bytes) => visit(&path, &bytes),
            Err(_) if path.is_symlink() => {} // to what was compiled, for many nodes
            Err(_) if path.is_dir() => files(&path, visit),
            Err(_) => {} // it was replaced meanwhile
        }
    }
}
