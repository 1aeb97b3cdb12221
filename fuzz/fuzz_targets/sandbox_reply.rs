//! Messages of a sandbox process to its agent: each is decoded, or refused, devices and all.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../host/sandbox/src/protocol/mod.rs"]
mod protocol;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Ok((reply, payload)) = protocol::decode::<protocol::Reply>(frame) else { return };
    let Ok(devices) = received(payload) else { return };
    if devices.check(&reply).is_ok() {
        let again = protocol::encode_devices(&(), &devices.devices).unwrap();
        assert_eq!(received(&again[protocol::LENGTH..]).unwrap().devices, devices.devices);
    }
});

fn received(mut payload: &[u8]) -> std::io::Result<protocol::ReceivedDevices> {
    let mut devices = protocol::ReceivedDevices::default();
    while !payload.is_empty() {
        payload = devices.add_some(payload)?;
    }
    Ok(devices)
}
