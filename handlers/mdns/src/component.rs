//! The component: the exports of the world, and the calls to the host.

use std::hash::{BuildHasher as _, RandomState};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::browser::{Browser, Note, Report};
use crate::details::Details;
use crate::message::{self, Question};
use crate::{CONFIRMATIONS, GROUPS, INTERVAL_MS, NAME, PAUSE, PORT, memory, question_times};
use akri_handler::host::{AccessError, cache, keep, multicast, note};
use akri_handler::{Description, Device, Failure, Handler, Problem};

/// Datagrams fetched at once.
const PAGE: u32 = 64;
/// Longest wait for one group while there is another one.
const SLICE: Duration = Duration::from_millis(50);
/// Datagrams that a round sends: the limit of the host.
const SENDS: usize = 256;
/// The cache key for known instances.
const MEMORY: &str = "instances";
/// Limit on its value, in bytes: the default size of the cache, less the key.
const MEMORY_BYTES: usize = 255 << 10;

struct Mdns;
akri_handler::export!(Mdns);
akri_handler::details_schema!("../details.schema.json");

impl Handler for Mdns {
    type Details = Details;

    const DESCRIPTION: Description =
        Description::new(NAME, env!("CARGO_PKG_VERSION")).shared().interval_ms(INTERVAL_MS);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json).map_err(|problem| vec![problem])
    }

    fn triggers(details: &Details) -> Vec<(String, String)> {
        details.triggers()
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let cached = cache::get(MEMORY).unwrap_or_default();
        let known = memory::decode(&cached, &details.browsed());
        let groups = Groups::open()?;
        let mut browser = Browser::new(&details, &known, RandomState::new().hash_one(0) as usize);
        browse(&groups, &mut browser, details.window)?;
        let report = browser.report(groups.dropped());
        update_cache(&details, &report, &cached);
        Ok(reported(report))
    }
}

/// Asks, and collects responses until the window closes; then asks for what is still open.
fn browse(groups: &Groups, browser: &mut Browser<'_>, window: Duration) -> Result<(), AccessError> {
    // Nodes that one announcement wakes do not ask at once (RFC 6762, section 5.2).
    sleep(Duration::from_millis(20 + RandomState::new().hash_one(0) % 100));
    let start = Instant::now();
    let times = question_times(window);
    let most = SENDS / groups.0.len().max(1) / (times.len() + CONFIRMATIONS as usize);
    let room = most.saturating_sub(browser.browsing().len());
    for index in 0..times.len() {
        let open = if index > 0 { browser.open(room) } else { Vec::new() };
        groups.ask(&[browser.browsing(), open].concat())?;
        groups.listen(start + times.get(index + 1).copied().unwrap_or(window), browser)?;
    }
    for index in 0..CONFIRMATIONS {
        if !browser.is_waiting() && (times.len() > 1 || index > 0) {
            break; // every service was asked for twice at least
        }
        groups.ask(&[browser.browsing(), browser.open(room)].concat())?;
        groups.listen(Instant::now() + PAUSE, browser)?;
    }
    Ok(())
}

/// The groups of IPv4 and IPv6, as far as they are granted and the node has interfaces for them.
struct Groups(Vec<multicast::Conversation>);

impl Groups {
    fn open() -> Result<Self, AccessError> {
        let open = |group: &str| multicast::open(group.trim_matches(['[', ']']), PORT);
        let mut error = None;
        let mut groups = Vec::new();
        for group in GROUPS {
            match open(group) {
                Ok(conversation) => groups.push(conversation),
                Err(why) => error = error.or(Some(why)),
            }
        }
        match error {
            Some(error) if groups.is_empty() => Err(error),
            _ => Ok(Self(groups)),
        }
    }

    /// Sends messages with questions to each group. It is fine if one carries them.
    fn ask(&self, messages: &[Vec<Question>]) -> Result<(), AccessError> {
        for message in messages.iter().map(|questions| message::query(questions)) {
            let sent: Vec<_> = self.0.iter().map(|group| group.send(&message)).collect();
            if sent.iter().all(Result::is_err) {
                sent.into_iter().collect::<Result<(), _>>()?;
            }
        }
        Ok(())
    }

    /// Collects responses until then.
    fn listen(&self, until: Instant, browser: &mut Browser<'_>) -> Result<(), AccessError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let wait = if self.0.len() > 1 { left.min(SLICE) } else { left };
            for group in &self.0 {
                for datagram in group.receive(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), PAGE)? {
                    browser.add(&datagram.payload, datagram.port);
                }
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.0.iter().map(multicast::Conversation::dropped).sum()
    }
}

/// Writes the instances to the cache. Without it a silent one is gone at once.
fn update_cache(details: &Details, report: &Report, before: &[u8]) {
    let bytes = memory::encode(&details.browsed(), &report.known, MEMORY_BYTES);
    if bytes != before && cache::set(MEMORY, &bytes).is_err() {
        cache::delete(MEMORY);
    }
}

fn reported(report: Report) -> Vec<Device> {
    for Note { origin, reason, message } in &report.notes {
        note(origin, reason, message);
    }
    for id in &report.kept {
        keep(id);
    }
    let device = |device: crate::browser::Device| Device {
        origin: device.id.clone(),
        properties: device.properties,
        ..Device::new(device.id)
    };
    report.devices.into_iter().map(device).collect()
}
