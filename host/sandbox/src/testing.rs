//! Helpers of unit tests.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a shell script, in a process of its own: a process that another test starts meanwhile would hold it open for writing, and such
/// a file can't be executed.
pub(crate) fn write_script(path: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}
