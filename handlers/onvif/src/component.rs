//! The component: the exports of the world, and the calls to the host.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::announcement::{self, Answers, GROUP, PORT};
use crate::credentials::{Source, Store};
use crate::details::Details;
use crate::http_client::{self, Http};
use crate::memory::{self, Memory};
use crate::survey::{Note, Report, survey};
use crate::{INTERVAL_MS, NAME, device};
use akri_handler::host::{self, AccessError, cache, keep, multicast, note};
use akri_handler::{Description, Device, Failure, Handler, Problem};

/// Delay before the probe is repeated, since datagrams get lost (SOAP-over-UDP 1.1, appendix I: 50 to 250 ms).
const REPEAT: Duration = Duration::from_millis(150);
/// Datagrams fetched at once.
const PAGE: u32 = 64;
/// The cache key for known cameras.
const MEMORY: &str = "cameras";
/// Limit on its value, in bytes: the default size of the cache, less the key.
const MEMORY_BYTES: usize = 255 << 10;
/// Time before the end of a round at which no more requests are sent.
const RESERVE: Duration = Duration::from_secs(1);

struct Onvif;
akri_handler::export!(Onvif);
akri_handler::details_schema!("../details.schema.json");

impl Handler for Onvif {
    type Details = Details;

    const DESCRIPTION: Description =
        Description::new(NAME, env!("CARGO_PKG_VERSION")).shared().interval_ms(INTERVAL_MS);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json).map_err(|problem| vec![problem])
    }

    fn triggers(_details: &Details) -> Vec<(String, String)> {
        let trigger = |action| ("multicast".to_owned(), format!("{GROUP}:{PORT} discovery/{action}"));
        ["Hello", "Bye", "2009/01/Hello", "2009/01/Bye"].map(trigger).into()
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let answers = probe(details.window)?;
        let (store, errors) = Store::read(Properties);
        for error in errors {
            note("", "CredentialsInvalid", &error.to_string());
        }
        let cached = cache::get(MEMORY).unwrap_or_default();
        let known = memory::decode(&cached);
        let transport = Http::new();
        let time = host::time_left(RESERVE);
        let report = wstd::runtime::block_on(survey(&details, &answers, &known, &store, &transport, time));
        update_cache(&report.memory, &cached);
        Ok(reported(report))
    }
}

/// Sends a probe and collects responses until the window closes.
fn probe(window: Duration) -> Result<Answers, AccessError> {
    let conversation = multicast::open(GROUP, PORT)?;
    let message_id = uuid::Builder::from_random_bytes(http_client::random()).into_uuid().urn().to_string();
    let probe = announcement::probe(&message_id);
    conversation.send(probe.as_bytes())?;
    let (start, mut repeated) = (Instant::now(), false);
    let mut answers = Answers::default();
    while let Some(left) = window.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        if !repeated && start.elapsed() >= REPEAT {
            conversation.send(probe.as_bytes())?;
            repeated = true;
        }
        let left = if repeated { left } else { left.min(REPEAT.saturating_sub(start.elapsed())) };
        for datagram in conversation.receive(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX), PAGE)? {
            if let Ok(sender) = datagram.address.parse::<IpAddr>() {
                answers.add(&datagram.payload, sender);
            }
        }
    }
    note_losses(&answers, conversation.dropped());
    Ok(answers)
}

/// Notes skipped responses.
fn note_losses(answers: &Answers, dropped: u64) {
    if let Some(fault) = &answers.fault {
        let message =
            format!("{} answers to the probe were skipped; what was wrong with the last: {fault}", answers.skipped);
        note("", "AnswersSkipped", &message);
    }
    if dropped > 0 {
        note("", "AnswersDropped", &format!("{dropped} answers to the probe came too fast and were lost"));
    }
}

/// The Configuration's properties, plain and secret ones.
struct Properties;

impl Source for Properties {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        host::property(name).map_err(host::reason)
    }
}

/// Writes as many cameras to the cache as fit.
fn update_cache(memory: &Memory, before: &[u8]) {
    let mut room = MEMORY_BYTES;
    let mut bytes = memory::encode(memory, room);
    while bytes != before && cache::set(MEMORY, &bytes).is_err() && !bytes.is_empty() {
        room /= 2;
        bytes = memory::encode(memory, room);
    }
}

fn reported(report: Report) -> Vec<Device> {
    for Note { origin, reason, message } in &report.notes {
        note(origin, reason, message);
    }
    for uuid in &report.kept {
        keep(uuid);
    }
    let device = |device: device::Device| Device {
        origin: device.origin,
        properties: device.properties,
        ..Device::new(device.id)
    };
    report.devices.into_iter().map(device).collect()
}
