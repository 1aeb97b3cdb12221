//! Messages of a sandbox process to its agent: each is decoded, or refused, devices and all.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../host/sandbox/src/worker/protocol/mod.rs"]
mod protocol;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Ok((reply, payload)) = protocol::decode::<protocol::Reply>(frame) else { return };
    if let protocol::Reply::Discovered { result: Ok(found), .. } = reply
        && let Ok(set) = protocol::join(*found, payload)
    {
        let (found, devices) = protocol::split(set.clone());
        let again = protocol::encode_devices(&(), devices).unwrap();
        assert_eq!(protocol::join(found, &again[protocol::LENGTH..]).unwrap(), set);
    }
});
