//! A discovery handler that does what its details say. The tests of the engine use it as a good guest and as every
//! kind of bad one; nothing else does.
#![cfg(target_family = "wasm")]

mod behaviour;
mod good;
mod group;
mod hostile;
mod keep;
mod net;
mod reach;
mod web;

wit_bindgen::generate!({ path: "../../wit", world: "discovery-handler" });

use akri::discovery::types::{Device, DiscoveryError, Problem};
use behaviour::{Good, Group, Hostile, Keep, Net, Reach, Web};
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
            "panic" => panic!("the guest panics on purpose"),
            "no-triggers" => Ok(Vec::new()),
            "udev:mem" => good::discover(Good::Udev, "mem").map(|_| Vec::new()).map_err(|_| vec![problem()]),
            _ => Ok(vec![hint("uevent", "tty"), hint("multicast", "239.255.255.250:3702"), hint("moon", "full")]),
        }
    }

    fn discover(details: String) -> Result<Vec<Device>, DiscoveryError> {
        let (word, argument) = details.split_once(':').unwrap_or((details.as_str(), ""));
        None.or_else(|| Good::of(word).map(|behaviour| good::discover(behaviour, argument)))
            .or_else(|| Hostile::of(word).map(|behaviour| hostile::discover(behaviour, argument)))
            .or_else(|| Reach::of(word).map(reach::discover))
            .or_else(|| Web::of(word).map(|behaviour| web::discover(behaviour, argument)))
            .or_else(|| Net::of(word).map(|behaviour| net::discover(behaviour, argument)))
            .or_else(|| Group::of(word).map(|behaviour| group::discover(behaviour, argument)))
            .or_else(|| Keep::of(word).map(|behaviour| keep::discover(behaviour, argument)))
            .unwrap_or_else(|| Err(DiscoveryError::InvalidDetails(vec![problem()])))
    }
}

type Round = Result<Vec<Device>, DiscoveryError>;

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

fn answer<T, E: std::fmt::Debug>(name: &str, result: Result<T, E>) -> (String, String) {
    hint(name, &result.map_or_else(|e| format!("{e:?}"), |_| "OPEN".to_owned()))
}

fn number(text: &str, default: usize) -> usize {
    text.parse().unwrap_or(default)
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
