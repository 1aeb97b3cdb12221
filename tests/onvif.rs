//! Cameras on the network: found by WS-Discovery, asked who they are, chosen by filters, followed when they change.

use std::time::Duration;

use akri_api::Instance;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Agent, identities, is_online, resource_of, wait_for};
use crate::support::onvif::camera::{Camera, Lock, Manner, address, mac, tls_url, url, uuid};
use crate::support::onvif::place::{Place, property};

const PASSWORD: &str = "correct horse";

fn rounds(agent: &Agent) -> usize {
    agent.log().matches("round done").count()
}

/// Waits until another round, begun after this was called, has ended.
async fn another_round(agent: &Agent) {
    let before = rounds(agent);
    for more in [1, 2] {
        wait_for("another round", || rounds(agent), |now| *now >= before + more).await;
    }
}

/// The numbers of the cameras that have an Instance.
fn numbers(instances: &[Instance]) -> Vec<u32> {
    let number = |instance: &Instance| {
        let uuid = property(instance, "UUID").unwrap();
        u32::from_str_radix(uuid.rsplit('-').next().unwrap(), 16).unwrap()
    };
    let mut numbers: Vec<u32> = instances.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Waits until these cameras have an Instance, and no others.
async fn wait_for_cameras(place: &Place, expected: &[u32]) -> Vec<Instance> {
    place.node.wait_for_instances(&format!("cameras {expected:?}"), |list| numbers(list) == expected).await
}

/// The Instance of a camera, once it is as wanted.
async fn wait_for_camera(place: &Place, number: u32, what: &str, wanted: impl Fn(&Instance) -> bool) -> Instance {
    let uuid = uuid(number);
    let is_it = |instance: &Instance| property(instance, "UUID") == Some(&uuid) && wanted(instance);
    let list = place.node.wait_for_instances(what, |list| list.iter().any(is_it)).await;
    list.into_iter().find(is_it).unwrap()
}

#[tokio::test]
async fn broker_gets_all_it_needs_to_open_the_stream() {
    let locks = [Lock::Open, Lock::Token(PASSWORD), Lock::HttpDigest(PASSWORD)];
    let cameras = (0..).zip(locks).map(|(number, lock)| Camera::with_lock(number, lock));
    let Some(place) = Place::new(cameras) else { return };
    place.farm.change(1, |camera| camera.clock_ahead = -86_400);
    let kubelet = Kubelet::start(&place.node.path("kubelet"));
    let credentials = [("username_default", "admin", false), ("password_default", PASSWORD, true)];
    place.write_cameras("streamProfile: sub", &credentials);
    let _agent = place.start();
    for (number, instance) in (0..).zip(sorted(wait_for_cameras(&place, &[0, 1, 2]).await)) {
        let resource = resource_of(&instance);
        kubelet.wait_for("a slot", |view| view.resource(&resource).allocatable() == 1).await;
        let admitted = kubelet.admit(&format!("broker-{number}"), "container", &resource, 1).await.unwrap();
        for (name, value) in [
            ("SERVICE_URL", url(number)),
            ("UUID", uuid(number)),
            ("IP_ADDRESS", address(number).to_string()),
            ("MAC_ADDRESS", mac(number)),
            ("MANUFACTURER", "Farm".into()),
            ("MODEL", format!("Cam {number}")),
            ("FIRMWARE_VERSION", "1.2".into()),
            ("SERIAL_NUMBER", format!("F{number:06}")),
            ("HARDWARE_ID", "farm".into()),
            ("STREAM_URI", format!("rtsp://{}:554/sub0", address(number))),
        ] {
            assert_eq!(admitted.response.envs.get(&format!("ONVIF_DEVICE_{name}")), Some(&value));
        }
    }
}

fn sorted(mut instances: Vec<Instance>) -> Vec<Instance> {
    instances.sort_by_key(|instance| property(instance, "UUID").map(str::to_owned));
    instances
}

#[tokio::test]
async fn thousand_cameras_are_found_and_then_cost_one_probe() {
    let cameras = (0..1000).map(|number| Camera::with_lock(number, Lock::Token(PASSWORD)));
    let Some(place) = Place::new(cameras) else { return };
    let credentials = [("username_default", "admin", true), ("password_default", PASSWORD, true)];
    // Time enough for all answers on a busy machine: a camera whose answer comes too late is asked whether it is there.
    place.write_cameras("discoveryTimeoutSeconds: 3", &credentials);
    let agent = place.start();
    for requests in [1000, 2000, 3000] {
        wait_for("the cameras asked", || place.farm.requests(), |asked| *asked >= requests).await;
    }
    agent.wait_for_log("devices=1000").await;
    // Reading them all again and again would take the time that publishing them needs.
    let published = || agent.log().matches("published instance").count();
    for count in [250, 500, 750, 1000] {
        wait_for("more Instances", published, |published| *published >= count).await;
    }
    let instances = place.node.instances();
    assert_eq!(numbers(&instances), (0..1000).collect::<Vec<_>>());
    for instance in &instances {
        let number = numbers(std::slice::from_ref(instance))[0];
        assert_eq!(property(instance, "MAC_ADDRESS"), Some(&*mac(number)));
    }
    let most = place.farm.most_connections();
    assert!(most <= 64, "{most} connections at once");
    let (asked, probes) = (place.farm.requests(), place.farm.probes());
    assert!((3000..3300).contains(&asked), "{asked} requests for three questions to each camera");
    another_round(&agent).await;
    assert!(place.farm.probes() > probes);
    assert_eq!(place.farm.requests(), asked);
    let after = place.node.instances();
    assert_eq!(identities(&after), identities(&instances));
    assert!(after.iter().all(is_online));
}

#[tokio::test]
async fn slow_camera_is_found_within_the_window() {
    let slow = Camera { hesitation: Duration::from_secs(2), ..Camera::new(1) };
    let Some(place) = Place::new([Camera::new(0), slow]) else { return };
    place.write_cameras("discoveryTimeoutSeconds: 4", &[]);
    let _agent = place.start();
    wait_for_cameras(&place, &[0, 1]).await;
}

#[tokio::test]
async fn hello_and_bye_update_instances() {
    let Some(place) = Place::new((0..2).map(Camera::new)) else { return };
    place.farm.change(1, |camera| camera.is_on = false);
    place.write_handler("1h", "");
    place.write_cameras("", &[]);
    let agent = place.start();
    let first = wait_for_cameras(&place, &[0]).await;
    another_probe_is_not_needed(&place, &agent).await;
    for _ in 0..2 {
        place.farm.change(1, |camera| camera.is_on = true);
        place.farm.hello(1);
        let camera = wait_for_camera(&place, 1, "the camera that came", is_online).await;
        place.farm.bye(1);
        place.farm.change(1, |camera| camera.is_on = false);
        wait_for_camera(&place, 1, "the camera that went", |camera| !is_online(camera)).await;
        assert_eq!(
            place.node.instance(camera.metadata.name.as_deref().unwrap()).unwrap().metadata.uid,
            camera.metadata.uid
        );
    }
    let stayed = wait_for_camera(&place, 0, "the other", is_online).await;
    assert_eq!(stayed.metadata.uid, first[0].metadata.uid);
}

/// With an interval of an hour nothing but a Hello or a Bye can start a round.
async fn another_probe_is_not_needed(place: &Place, agent: &Agent) {
    agent.wait_for_log("round done").await;
    let before = place.farm.probes();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(place.farm.probes(), before, "the probe itself started a round");
}

#[tokio::test]
async fn camera_with_a_new_address_keeps_its_instance() {
    let Some(place) = Place::new((0..2).map(Camera::new)) else { return };
    place.farm.change(1, |camera| camera.discovery = Manner::Mute);
    place.write_cameras("", &[]);
    let _agent = place.start();
    let before = wait_for_cameras(&place, &[0]).await.remove(0);
    assert_eq!(property(&before, "SERVICE_URL"), Some(&*url(0)));
    place.farm.change(0, |camera| camera.urls = url(1));
    let moved = |camera: &Instance| property(camera, "SERVICE_URL") == Some(&url(1));
    let after = wait_for_camera(&place, 0, "the camera at its new address", moved).await;
    assert_eq!(identities(std::slice::from_ref(&after)), identities(&[before]));
    assert_eq!(property(&after, "IP_ADDRESS"), Some(&*address(1).to_string()));
}

#[tokio::test]
async fn https_is_used_where_the_certificate_is_granted() {
    let Some(place) = Place::new([Camera::with_lock(0, Lock::Token(PASSWORD))]) else { return };
    place.farm.change(0, |camera| camera.urls = format!("{} {}", url(0), tls_url(0)));
    let credentials = [("username_default", "admin", false), ("password_default", PASSWORD, true)];
    place.write_cameras("", &credentials);
    let _agent = place.start();
    let plain = wait_for_camera(&place, 0, "the camera by HTTP", |camera| property(camera, "MODEL").is_some()).await;
    assert_eq!(property(&plain, "SERVICE_URL"), Some(&*url(0)), "nobody has granted its certificate");
    let certificate: String = place.farm.certificate().lines().map(|line| format!("          {line}\n")).collect();
    place.write_handler("300ms", &format!("      tls:\n        caBundle: |\n{certificate}"));
    place.farm.change(0, |camera| camera.urls = tls_url(0));
    let safe = wait_for_camera(&place, 0, "the camera by HTTPS", |camera| {
        property(camera, "SERVICE_URL") == Some(&tls_url(0))
    })
    .await;
    assert_eq!((&safe.metadata.uid, property(&safe, "MAC_ADDRESS")), (&plain.metadata.uid, Some(&*mac(0))));
}
