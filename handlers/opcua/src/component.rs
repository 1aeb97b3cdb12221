//! The component: the exports of the world, and the calls to the host.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use crate::details::Details;
use crate::report::Report;
use crate::round::{self, Failure};
use crate::sockets::Sockets;
use crate::{INTERVAL_MS, NAME, device};
use bindings::akri::discovery::types::{Device, DiscoveryError, Problem};
use bindings::akri::discovery::{logging, logging::Level, round as host};
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
    export!(Opcua with_types_in self);

    use super::Opcua;
}

struct Opcua;

impl Guest for Opcua {
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
        let network = Sockets::new(host::remaining);
        let start = RandomState::new().hash_one(()) as usize; // seeded by the host's random numbers
        let report = wstd::runtime::block_on(round::run(&network, &details, start)).map_err(failed)?;
        Ok(report_to_host(report, &details))
    }
}

fn details() -> Result<Details, Vec<Problem>> {
    Details::parse(host::details_json().as_deref()).map_err(|problems| problems.into_iter().map(problem).collect())
}

fn problem(problem: handler_details::Problem) -> Problem {
    Problem { path: problem.path, reason: problem.reason.into(), message: problem.message }
}

fn failed(failure: Failure) -> DiscoveryError {
    match failure {
        Failure::NotGranted(what) => DiscoveryError::NotGranted(what),
        Failure::Unavailable(what) => DiscoveryError::Unavailable(what),
    }
}

/// Reports notes, kept origins and remarks to the host; returns the devices.
fn report_to_host(report: Report, details: &Details) -> Vec<Device> {
    let origin = |place: usize| details.discovery_urls.get(place).map(|url| url.text.as_str()).unwrap_or_default();
    for note in &report.notes {
        host::note(origin(note.origin), note.reason, &note.message);
    }
    for place in &report.kept {
        host::keep(origin(*place));
        if !report.silent.contains(place) {
            host::keep(&own_list(origin(*place)));
        }
    }
    for line in &report.remarks {
        logging::log(Level::Debug, "servers", line);
    }
    if report.unsaid > 0 {
        logging::log(Level::Debug, "servers", &format!("of {} more servers there is the like to say", report.unsaid));
    }
    report.devices.into_iter().map(|device| reported(device, origin)).collect()
}

/// Returns the origin of a server that lists itself, and nothing else, at a discovery URL. It differs from that of the
/// servers that a discovery server lists there, which stay when it is lost.
fn own_list(url: &str) -> String {
    format!("{url} (lists itself)")
}

fn reported<'d>(device: device::Device, origin: impl Fn(usize) -> &'d str) -> Device {
    let url = origin(device.origin);
    Device {
        id: device.id,
        origin: if device.lists_itself { own_list(url) } else { url.to_owned() },
        properties: device.properties.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        mounts: Vec::new(),
        device_specs: Vec::new(),
        hints: Vec::new(),
    }
}
