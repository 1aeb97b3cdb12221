//! What a handler may reach and how much of everything it may use. Empty means nothing.

use std::time::Duration;

/// What a handler may reach. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Kernel subsystems whose devices the `udev` interface shows, as shell globs; `*` is all.
    pub udev_subsystems: Vec<String>,
    /// Node paths that device specs may name: a path, or a directory and `/**`.
    pub device_paths: Vec<String>,
    /// Node paths that mounts may name, written likewise.
    pub mount_paths: Vec<String>,
}

/// Bounds on one round of one handler; the default is what holds where its DiscoveryHandler names none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time of a round.
    pub round: Duration,
    /// Linear memory of the whole store, in bytes.
    pub memory_bytes: usize,
    /// Devices in one answer.
    pub devices: usize,
    /// Properties, and likewise mounts and device specs, of one device.
    pub properties: usize,
    /// Bytes of any one string.
    pub string_bytes: usize,
    /// Log lines; the rest is counted.
    pub log_lines: usize,
    /// Notes shown; the rest is counted.
    pub notes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            round: Duration::from_secs(10),
            memory_bytes: 64 << 20,
            devices: 4096,
            properties: 64,
            string_bytes: 4096,
            log_lines: 64,
            notes: 10,
        }
    }
}
