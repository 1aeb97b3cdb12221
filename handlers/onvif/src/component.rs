//! The component: the world's exports and the calls to the host, over the plain functions of this crate.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::announcement::{self, Answers, GROUP, PORT};
use crate::credentials::{Source, Store};
use crate::details::Details;
use crate::http_client::{self, Http};
use crate::memory::{self, Memory};
use crate::survey::{Note, Report, survey};
use crate::{INTERVAL_MS, NAME, device};
use bindings::akri::discovery::types::{AccessError, Device, DiscoveryError, Problem};
use bindings::akri::discovery::{cache, multicast, properties, round, secrets};
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
    export!(Onvif with_types_in self);

    use super::Onvif;
}

/// When the probe is sent once more (SOAP-over-UDP 1.1, appendix I: after 50 to 250 ms): datagrams get lost.
const REPEAT: Duration = Duration::from_millis(150);
/// Datagrams fetched at once.
const PAGE: u32 = 64;
/// Where cameras are remembered, and the bytes for them: what the host gives by default, less the key.
const MEMORY: &str = "cameras";
/// See [`MEMORY`].
const MEMORY_BYTES: usize = 255 << 10;
/// How long before its end a round stops asking.
const RESERVE: Duration = Duration::from_secs(1);

struct Onvif;

impl Guest for Onvif {
    fn describe() -> Description {
        Description {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            shared: true,
            hints: vec![("interval-ms".into(), INTERVAL_MS.to_string())],
        }
    }

    fn validate(_details: String) -> Result<Vec<(String, String)>, Vec<Problem>> {
        details()?;
        let trigger = |action| ("multicast".to_owned(), format!("{GROUP}:{PORT} discovery/{action}"));
        Ok(["Hello", "Bye"].map(trigger).into())
    }

    fn discover(_details: String) -> Result<Vec<Device>, DiscoveryError> {
        let details = details().map_err(DiscoveryError::InvalidDetails)?;
        let answers = probe(details.window).map_err(refused)?;
        let (store, errors) = Store::read(Properties);
        for error in errors {
            round::note("", "CredentialsInvalid", &error.to_string());
        }
        let remembered = cache::get(MEMORY).unwrap_or_default();
        let known = memory::decode(&remembered);
        let transport = Http::new();
        let time = Duration::from_nanos(round::remaining()).saturating_sub(RESERVE);
        let report = wstd::runtime::block_on(survey(&details, &answers, &known, &store, &transport, time));
        remember(&report.memory, &remembered);
        Ok(reported(report))
    }
}

fn details() -> Result<Details, Vec<Problem>> {
    let problem = |problem: handler_details::Problem| Problem {
        path: problem.path,
        reason: problem.reason.into(),
        message: problem.message,
    };
    Details::parse(round::details_json().as_deref()).map_err(|error| vec![problem(error)])
}

/// Sends a probe and takes in what comes back, for as long as the window is open.
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

/// Says which replies did not count.
fn note_losses(answers: &Answers, dropped: u64) {
    if let Some(fault) = &answers.fault {
        let message =
            format!("{} answers to the probe were skipped; what was wrong with the last: {fault}", answers.skipped);
        round::note("", "AnswersSkipped", &message);
    }
    if dropped > 0 {
        round::note("", "AnswersDropped", &format!("{dropped} answers to the probe came too fast and were lost"));
    }
}

/// The Configuration's properties, plain ones and those from Secrets.
struct Properties;

impl Source for Properties {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        if let Some(value) = properties::get(name) {
            return Ok(Some(value));
        }
        match secrets::get(name) {
            Ok(secret) => Ok(secret.map(|secret| secret.reveal())),
            Err(AccessError::NotGranted(why) | AccessError::Limit(why) | AccessError::Unavailable(why)) => Err(why),
        }
    }
}

/// Writes down as much as there is room for.
fn remember(memory: &Memory, before: &[u8]) {
    let mut room = MEMORY_BYTES;
    let mut bytes = memory::encode(memory, room);
    while bytes != before && cache::set(MEMORY, &bytes).is_err() && !bytes.is_empty() {
        room /= 2;
        bytes = memory::encode(memory, room);
    }
}

fn reported(report: Report) -> Vec<Device> {
    for Note { origin, reason, message } in &report.notes {
        round::note(origin, reason, message);
    }
    for uuid in &report.kept {
        round::keep(uuid);
    }
    let device = |device: device::Device| Device {
        origin: device.id.clone(),
        id: device.id,
        properties: device.properties,
        mounts: Vec::new(),
        device_specs: Vec::new(),
        hints: Vec::new(),
    };
    report.devices.into_iter().map(device).collect()
}

fn refused(error: AccessError) -> DiscoveryError {
    match error {
        AccessError::NotGranted(what) => DiscoveryError::NotGranted(what),
        AccessError::Limit(what) | AccessError::Unavailable(what) => DiscoveryError::Unavailable(what),
    }
}
