//! The component: the exports of the world, implemented with the functions of this crate.

use crate::{AVAILABILITY, DESCRIPTION, INTERVAL_MS, NAME, details::Details, is_offline};
use akri_handler::host::properties;
use akri_handler::{Description, Device, Failure, Handler, Problem};

struct DebugEcho;
akri_handler::export!(DebugEcho);
akri_handler::details_schema!("../details.schema.json");

impl Handler for DebugEcho {
    type Details = Details;

    const DESCRIPTION: Description =
        Description::new(NAME, env!("CARGO_PKG_VERSION")).shared().interval_ms(INTERVAL_MS);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json)
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        if is_offline(properties::get(AVAILABILITY).as_deref()) {
            return Ok(Vec::new());
        }
        Ok(details.devices().into_iter().map(device).collect())
    }
}

fn device(description: String) -> Device {
    Device::new(description.clone()).property(DESCRIPTION, description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_the_cassettes_come_to_their_results() {
        akri_handler::testing::play::<DebugEcho>("cassettes");
    }
}
