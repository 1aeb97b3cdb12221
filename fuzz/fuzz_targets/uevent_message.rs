//! Messages of the kernel and of udevd: an event within its bounds, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../host/node/src/uevent/message.rs"]
mod message;

fuzz_target!(|bytes: &[u8]| {
    for event in [message::from_fields(bytes), message::from_udevd(bytes)].into_iter().flatten() {
        assert!((1..=64).contains(&event.action.len()) && (1..=64).contains(&event.subsystem.len()));
        assert!((1..=bytes.len()).contains(&event.devpath.len()));
    }
});
