//! The component: the exports of the world, implemented with the functions of this crate.

use crate::{AVAILABILITY, DESCRIPTION, INTERVAL_MS, NAME, details::Details, is_offline};
use bindings::akri::discovery::types::{Device, DiscoveryError, Problem};
use bindings::akri::discovery::{properties, round};
use bindings::exports::akri::discovery::handler::{Description, Guest};

#[allow(
    unsafe_code,
    unreachable_pub,
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated: the calls over the component boundary move raw memory"
)]
mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "discovery-handler" });
    export!(DebugEcho with_types_in self);

    use super::DebugEcho;
}

struct DebugEcho;

impl Guest for DebugEcho {
    fn describe() -> Description {
        Description {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            shared: true,
            hints: vec![("interval-ms".into(), INTERVAL_MS.to_string())],
        }
    }

    fn validate(_details: String) -> Result<Vec<(String, String)>, Vec<Problem>> {
        details().map(|_| Vec::new())
    }

    fn discover(_details: String) -> Result<Vec<Device>, DiscoveryError> {
        let details = details().map_err(DiscoveryError::InvalidDetails)?;
        if is_offline(properties::get(AVAILABILITY).as_deref()) {
            return Ok(Vec::new());
        }
        Ok(details.devices().into_iter().map(device).collect())
    }
}

fn details() -> Result<Details, Vec<Problem>> {
    Details::parse(round::details_json().as_deref()).map_err(|problems| problems.into_iter().map(problem).collect())
}

fn problem(problem: handler_details::Problem) -> Problem {
    Problem { path: problem.path, reason: problem.reason.into(), message: problem.message }
}

fn device(description: String) -> Device {
    Device {
        id: description.clone(),
        origin: String::new(),
        properties: vec![(DESCRIPTION.into(), description)],
        mounts: Vec::new(),
        device_specs: Vec::new(),
        hints: Vec::new(),
    }
}
