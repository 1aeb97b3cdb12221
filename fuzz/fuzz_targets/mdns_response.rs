//! Fuzzes multicast DNS: whatever comes in, names and questions keep their bounds, and each device has an id and an address.
#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mdns::browser::Browser;
use mdns::details::Details;
use mdns::{PORT, message, name};

static DETAILS: LazyLock<Details> = LazyLock::new(|| Details::parse(Some(r#"{"services": ["_a._tcp"]}"#)).unwrap());

fuzz_target!(|datagram: &[u8]| {
    let known = BTreeMap::new();
    let mut browser = Browser::new(&DETAILS, &known, 0);
    for record in message::read(datagram).into_iter().flatten() {
        assert!(record.name.encoded_len() <= name::MAX_NAME);
    }
    browser.add(datagram, PORT);
    assert!(browser.open(20).iter().all(|questions| message::query(questions).len() <= 1_400));
    for device in browser.report(0).devices {
        assert!(device.id.ends_with("._a._tcp.local") && device.properties.len() <= 64);
        assert!(device.properties.iter().any(|(name, value)| name == "MDNS_ADDRESSES" && !value.is_empty()));
    }
});
