//! Messages of a sandbox process to its agent: each is decoded, or refused, devices and all.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../host/sandbox/src/worker/protocol/mod.rs"]
mod protocol;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Ok((reply, payload)) = protocol::decode::<protocol::Reply>(frame) else { return };
    if let protocol::Reply::Discovered { result: Ok(found), .. } = reply
        && let Ok(devices) = received(payload)
        && let Ok(set) = protocol::join(*found, devices)
    {
        let (found, devices) = protocol::split(set.clone());
        let again = protocol::encode_devices(&(), &devices).unwrap();
        assert_eq!(protocol::join(found, received(&again[protocol::LENGTH..]).unwrap()).unwrap(), set);
    }
});

fn received(payload: &[u8]) -> Result<protocol::ReceivedDevices, protocol::ProtocolError> {
    let mut devices = protocol::ReceivedDevices::default();
    devices.add(payload)?;
    Ok(devices)
}
