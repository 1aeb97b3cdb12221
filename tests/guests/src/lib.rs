//! A discovery handler that does what its details say. The tests of the sandbox use it as a good guest and as every
//! kind of bad one; nothing else does.
#![cfg(target_family = "wasm")]

mod good;
mod hostile;
mod reach;

wit_bindgen::generate!({ path: "../../wit", world: "discovery-handler" });

use akri::discovery::types::{Device, DiscoveryError, Problem};
use exports::akri::discovery::handler::{Description, Guest};

struct Handler;
export!(Handler);

impl Guest for Handler {
    fn describe() -> Description {
        Description {
            name: "guest".to_owned(),
            version: "0.1.0".to_owned(),
            shared: false,
            hints: vec![hint("interval-ms", "1500"), hint("colour", "green")],
        }
    }

    fn validate(details: String) -> Result<Vec<(String, String)>, Vec<Problem>> {
        match details.as_str() {
            "invalid-details" => Err(vec![problem()]),
            "loop" => hostile::spin(),
            "no-triggers" => Ok(Vec::new()),
            _ => Ok(vec![hint("uevent", "tty"), hint("multicast", "239.255.255.250:3702"), hint("moon", "full")]),
        }
    }

    fn discover(details: String) -> Result<Vec<Device>, DiscoveryError> {
        let (word, argument) = details.split_once(':').unwrap_or((details.as_str(), ""));
        good::discover(word, argument)
            .or_else(|| reach::discover(word, argument))
            .or_else(|| hostile::discover(word, argument))
            .unwrap_or_else(|| Err(DiscoveryError::InvalidDetails(vec![problem()])))
    }
}

type Round = Option<Result<Vec<Device>, DiscoveryError>>;

fn problem() -> Problem {
    Problem {
        path: "/word".to_owned(),
        reason: "UnknownWord".to_owned(),
        message: "the details have to name a behaviour of the guest".to_owned(),
    }
}

fn hint(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn device(id: impl Into<String>, properties: Vec<(String, String)>) -> Device {
    Device {
        id: id.into(),
        origin: String::new(),
        properties,
        mounts: Vec::new(),
        device_specs: Vec::new(),
        hints: Vec::new(),
    }
}
