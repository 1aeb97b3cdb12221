//! Cameras that other people wrote.

use akri_api::Instance;

use crate::support::node::{is_online, wait_for};
use crate::support::onvif::camera::{Camera, Manner, mac, url};
use crate::support::onvif::peers::Peer;
use crate::support::onvif::place::{Place, property};

/// With a password it asks for credentials even before it tells the time.
#[tokio::test]
async fn ipycam_camera_is_tracked_with_and_without_password() {
    let Some(place) = Place::new([]) else { return };
    let Some(peer) = Peer::ipycam(&place.namespace, "127.0.0.1", None, "PY-1") else { return };
    place.write_cameras("streamUri: true", &[]);
    let _agent = place.start();
    let camera = place.node.wait_for_instances("the camera", |list| list.len() == 1).await.remove(0);
    assert_eq!(property(&camera, "SERVICE_URL"), Some("http://127.0.0.1:8081/onvif/device_service"));
    assert_eq!(property(&camera, "SERIAL_NUMBER"), Some("PY-1"));
    assert!(property(&camera, "MODEL").is_some() && property(&camera, "MANUFACTURER").is_some());
    assert!(property(&camera, "STREAM_URI").unwrap().starts_with("rtsp://127.0.0.1:"));
    assert_eq!(property(&camera, "MAC_ADDRESS"), None, "it has no GetNetworkInterfaces");
    place.node.wait_for_condition("camera", "DiscoveryComplete", "True", "Complete").await;
    drop(peer);
    let removed = |list: &[Instance]| list.len() == 1 && !is_online(&list[0]);
    place.node.wait_for_instances("the camera gone", removed).await;

    let Some(_peer) = Peer::ipycam(&place.namespace, "127.0.0.1", Some("secret-1"), "PY-2") else { return };
    for (password, is_right) in [("wrong-1", false), ("secret-1", true)] {
        place.write_cameras("", &[("username_default", "admin", true), ("password_default", password, true)]);
        let is_there = |camera: &Instance| {
            let serial = property(camera, "SERIAL_NUMBER");
            is_online(camera) && if is_right { serial == Some("PY-2") } else { serial.is_none() }
        };
        place.node.wait_for_instances("the camera", |list| list.iter().any(is_there)).await;
        let status = if is_right { "True" } else { "False" };
        let observe = || place.node.condition("camera", "DiscoveryComplete").map(|condition| condition.status);
        wait_for("the condition", observe, |found| found.as_deref() == Some(status)).await;
    }
}

#[tokio::test]
async fn wsdiscovery_camera_is_discovered() {
    let Some(place) = Place::new([Camera { discovery: Manner::Mute, ..Camera::new(0) }]) else { return };
    let Some(_peer) = Peer::publisher(&place.namespace, &url(0)) else { return };
    place.write_cameras("scopes: {items: ['onvif://www.onvif.org/name/Published']}", &[]);
    let _agent = place.start();
    let camera = place.node.wait_for_instances("the camera", |list| list.len() == 1).await.remove(0);
    assert_eq!(property(&camera, "SERVICE_URL"), Some(&*url(0)));
    assert_eq!(property(&camera, "MAC_ADDRESS"), Some(&*mac(0)));
}
