//! The component: the exports of the world, and the calls to the host.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use crate::details::Details;
use crate::report::Report;
use crate::round;
use crate::sockets::Sockets;
use crate::{INTERVAL_MS, NAME, device};
use akri_handler::host::{self, log, logging::Level};
use akri_handler::{Description, Device, Failure, Handler, Problem};

struct Opcua;
akri_handler::export!(Opcua);
akri_handler::details_schema!("../details.schema.json");

impl Handler for Opcua {
    type Details = Details;

    const DESCRIPTION: Description =
        Description::new(NAME, env!("CARGO_PKG_VERSION")).shared().interval_ms(INTERVAL_MS);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json)
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let network = Sockets::new(host::round::remaining);
        let start = RandomState::new().hash_one(()) as usize; // seeded by the host's random numbers
        let report = wstd::runtime::block_on(round::run(&network, &details, start))?;
        Ok(report_to_host(report, &details))
    }
}

/// Reports notes, kept origins and remarks to the host; returns the devices.
fn report_to_host(report: Report, details: &Details) -> Vec<Device> {
    let origin = |place: usize| details.discovery_urls.get(place).map(|url| url.text.as_str()).unwrap_or_default();
    for note in &report.notes {
        host::note(origin(note.origin), note.reason, &note.message);
    }
    host::left_out("the filter `applicationNames`", &report.left_out);
    for place in &report.kept {
        host::keep(origin(*place));
        if !report.silent.contains(place) {
            host::keep(&own_list(origin(*place)));
        }
    }
    for line in &report.remarks {
        log(Level::Debug, "servers", line);
    }
    if report.unsaid > 0 {
        log(Level::Debug, "servers", format!("of {} more servers there is the like to say", report.unsaid));
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
        origin: if device.lists_itself { own_list(url) } else { url.to_owned() },
        properties: device.properties.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Device::new(device.id)
    }
}
