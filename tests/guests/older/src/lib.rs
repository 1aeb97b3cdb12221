//! A handler that knows nothing of the interfaces that came later.
#![cfg(target_family = "wasm")]

wit_bindgen::generate!({ path: "wit", world: "discovery-handler" });

use akri::discovery::logging;
use akri::discovery::types::{Device, DiscoveryError, Problem};
use exports::akri::discovery::handler::{Description, Guest};

struct Handler;
export!(Handler);

impl Guest for Handler {
    fn describe() -> Description {
        Description { name: "older".to_owned(), version: "0.0.1".to_owned(), shared: false, hints: Vec::new() }
    }

    fn validate(_details: String) -> Result<Vec<(String, String)>, Vec<Problem>> {
        Ok(Vec::new())
    }

    fn discover(details: String) -> Result<Vec<Device>, DiscoveryError> {
        logging::log(logging::Level::Info, "older", "a round");
        Ok(vec![Device {
            id: format!("found by an older handler: {details}"),
            origin: String::new(),
            properties: Vec::new(),
            mounts: Vec::new(),
            device_specs: Vec::new(),
            hints: Vec::new(),
        }])
    }
}
