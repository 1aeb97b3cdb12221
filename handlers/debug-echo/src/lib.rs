//! `debugEcho`: a discovery handler that reports the devices it is told to report, for trying things out without a
//! device.
//!
//! ```yaml
//! discoveryHandler:
//!   name: debugEcho
//!   discoveryDetails: |
//!     descriptions: ["foo0", "foo1"]
//! ```
//!
//! Each description is one device: it is the device's id and its property `DEBUG_ECHO_DESCRIPTION`. A description that
//! is listed twice is one device.
//!
//! # Taking the devices away
//!
//! Akri's handler reads the file `/tmp/debug-echo-availability.txt`. A component has no files, so the switch is the
//! `discoveryProperties` entry `availability`: with the value `OFFLINE` (blanks around it don't count, so that a
//! ConfigMap entry with a newline works) there are no devices; with any other value, or without the entry, there are.
//!
//! # Shared or not
//!
//! The handler says its devices are shared by all nodes. Where they should belong to one node each, set
//! `spec.shared: false` in its `DiscoveryHandler` object, which overrides what a handler says of itself. (Akri uses the
//! environment variable `DEBUG_ECHO_INSTANCES_SHARED` for that.)

#[cfg(any(target_family = "wasm", test))]
mod component;
pub mod details;

/// The handler name that Configurations use.
pub const NAME: &str = "debugEcho";

/// The interval of rounds in milliseconds, as in Akri's handler.
pub const INTERVAL_MS: u32 = 10_000;

/// The name of the device property that holds the description.
pub const DESCRIPTION: &str = "DEBUG_ECHO_DESCRIPTION";

/// The name of the `discoveryProperties` entry that can take the devices offline.
pub const AVAILABILITY: &str = "availability";

/// Returns whether the value of [`AVAILABILITY`] takes the devices offline.
pub fn is_offline(availability: Option<&[u8]>) -> bool {
    availability.is_some_and(|value| value.trim_ascii() == b"OFFLINE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_marker_removes_all_devices() {
        for (value, offline) in [
            (None, false),
            (Some("OFFLINE"), true),
            (Some(" OFFLINE\n"), true),
            (Some("offline"), false),
            (Some("ONLINE"), false),
            (Some("NOT OFFLINE"), false),
            (Some(""), false),
        ] {
            assert_eq!(is_offline(value.map(str::as_bytes)), offline, "{value:?}");
        }
        assert!(!is_offline(Some(&[0xff, 0xfe])));
    }
}
