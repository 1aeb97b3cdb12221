//! Fuzzes the response of a remote handler, as it comes over gRPC: the result is devices within the limits, or an
//! error, and no device that the policy admits leaves its grant.
#![no_main]
// Only what reads is used of the file.
#![allow(dead_code)]

use std::collections::HashSet;

use akri_model::device::Device;
use akri_model::grant::{Grants, Limits};
use akri_model::policy;
use libfuzzer_sys::fuzz_target;

#[path = "../../host/remote/src/convert.rs"]
mod convert;

fuzz_target!(|message: &[u8]| {
    let limits = Limits { devices: 4, properties: 4, string_bytes: 64, ..Limits::default() };
    let Ok(set) = convert::devices(message, &limits) else { return };
    let ids: HashSet<&str> = set.devices.iter().map(|device| device.id.as_str()).collect();
    assert!(ids.len() == set.devices.len() && ids.len() <= limits.devices && !ids.contains(""));
    for device in &set.devices {
        assert!(device.properties.iter().all(|(name, value)| name.len().max(value.len()) <= limits.string_bytes));
        assert!(device.properties.len().max(device.mounts.len()).max(device.device_specs.len()) <= limits.properties);
        stays_within(device);
    }
});

fn stays_within(device: &Device) {
    let grants = Grants { device_paths: vec!["/dev/**".to_owned()], ..Grants::default() };
    if policy::check(device, &grants).is_ok() {
        assert!(device.mounts.is_empty());
        for spec in &device.device_specs {
            assert!(spec.host_path.starts_with("/dev/") && !spec.host_path.split('/').any(|part| part == ".."));
        }
    }
}
