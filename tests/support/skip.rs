//! Stories that not every machine can tell.

/// Says why a story is not told. In CI, which must not skip any, it fails.
///
/// # Panics
/// If the environment variable `CI` is set.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI must not skip this: {reason}");
    eprintln!("skipped: {reason}");
}

/// Whether this is root; skips if not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("this needs root");
    }
    root
}
