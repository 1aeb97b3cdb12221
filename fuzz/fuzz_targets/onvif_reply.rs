//! Fuzzes responses of cameras: whatever they are, the reader keeps its bounds, and no camera lacks a name or a URL.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use onvif::details::WantedStream;
use onvif::{announcement, device_service as service, soap};

const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 5));

fuzz_target!(|message: &[u8]| {
    for camera in announcement::read(message, SENDER).into_iter().flatten() {
        assert!((1..=256).contains(&camera.uuid.len()) && (1..=8).contains(&camera.urls.len()));
        assert!(camera.scopes.len() <= 64);
    }
    let Ok(body) = soap::body(message) else { return };
    assert!(soap::fault(&body).is_none_or(|fault| fault.reason.chars().count() <= 200));
    assert!(service::information(&body).is_none_or(|information| information.model.chars().count() <= 128));
    assert!(service::interface(&body, Some(SENDER)).is_none_or(|interface| interface.addresses.len() <= 64));
    service::clock(&body);
    service::scopes(&body);
    service::media_service(&body);
    service::media_capability(&body);
    let _ = service::profile(&body, &WantedStream::First);
    service::stream_uri(&body);
});
