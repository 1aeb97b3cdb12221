//! Access to the node's kernel and file system: uevents, watched directories, atomic file replacement, and admission of
//! the device paths that handlers report.

pub mod admission;
pub mod replace;
pub mod uevent;
pub mod watch_dir;
