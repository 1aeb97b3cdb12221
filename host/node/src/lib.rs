//! This node's kernel and file system: device events, queries of devices, multicast, watched directories, atomic file
//! replacement, and admission of the device paths that handlers report.

pub mod admission;
pub mod json_file;
pub mod multicast;
pub mod replace;
pub mod sysfs;
pub mod uevent;
pub mod watch_dir;
