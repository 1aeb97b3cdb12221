//! Messages of an agent to a sandbox process: each is decoded, or refused, and what is decoded survives being sent again.
#![no_main]

#[allow(dead_code, unreachable_pub)]
#[path = "../../host/sandbox/src/protocol/mod.rs"]
mod protocol;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    if let Ok((request, payload)) = protocol::decode::<protocol::Request>(frame) {
        let again = protocol::encode(&request, payload).unwrap();
        assert!(protocol::decode::<protocol::Request>(&again[protocol::LENGTH..]).unwrap() == (request, payload));
    }
});
