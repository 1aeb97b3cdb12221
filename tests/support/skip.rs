//! Tests that cannot run everywhere. The harness of `cargo test` has no result for a skipped test: its name and the reason
//! are appended to the file that `AKRI_SKIPPED` names, and the Makefile prints that file after the run.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

/// Records that a test is skipped, and why. If `CI` is set, a skip is a failure.
///
/// # Panics
/// If the environment variable `CI` is set.
pub fn skip(reason: &str) {
    assert!(env::var_os("CI").is_none(), "CI must not skip this: {reason}");
    leave_out(reason);
}

/// Records that a test is left out of this run on purpose, which is no failure in CI either.
pub fn leave_out(reason: &str) {
    eprintln!("skipped: {reason}");
    let Some(path) = env::var_os("AKRI_SKIPPED") else { return };
    let line = format!("{}\t{reason}\n", thread::current().name().unwrap_or("?"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
}

/// Returns whether this process is root, and skips the test if not. `make check` sets `AKRI_CHECK` and so leaves out every
/// test that asks.
pub fn is_root() -> bool {
    if is_left_to_make_test() {
        return false;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("this needs root");
    }
    root
}

/// Returns whether `make check` runs, which leaves out tests that need root or programs from the network.
pub fn is_left_to_make_test() -> bool {
    let checking = env::var_os("AKRI_CHECK").is_some();
    if checking {
        leave_out("left to make test");
    }
    checking
}
