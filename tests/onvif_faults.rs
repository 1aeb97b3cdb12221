//! Cameras that refuse, lie, dawdle or send nonsense, and Configurations that can't work: each is told, and nobody else
//! suffers.

use std::fs;

use akri_api::condition::Condition;

use crate::support::node::{is_online, wait_for};
use crate::support::onvif::camera::{Camera, Lock, Manner, mac, url, uuid};
use crate::support::onvif::place::{Place, property};
use crate::support::secrecy::assert_shown_nowhere;

const PASSWORD: &str = "correct horse";
const WRONG: &str = "hunter2-battery";

/// The condition that says what went wrong in a good round, once it says this.
async fn wait_for_fault(place: &Place, text: &str) -> Condition {
    let observe = || place.node.condition("camera", "DiscoveryComplete");
    let reports = |found: &Option<Condition>| {
        found.as_ref().is_some_and(|c| c.status == "False" && format!("{}: {}", c.reason, c.message).contains(text))
    };
    wait_for(&format!("DiscoveryComplete=False with '{text}'"), observe, reports).await.unwrap()
}

async fn wait_for_no_fault(place: &Place) {
    place.node.wait_for_condition("camera", "DiscoveryComplete", "True", "Complete").await;
}

#[tokio::test]
async fn unfiltered_camera_is_withheld_until_its_password_works() {
    let cameras =
        [Camera::new(0), Camera::with_lock(1, Lock::Token(PASSWORD)), Camera::with_lock(2, Lock::HttpDigest(PASSWORD))];
    let Some(place) = Place::new(cameras) else { return };
    let filter = format!("macAddresses: {{action: Exclude, items: ['{}']}}", mac(1));
    place.write_cameras(&filter, &[]);
    let _agent = place.start();
    let fault = wait_for_fault(
        &place,
        "the camera asks for credentials, and there are none for it, or none that grants.secrets covers",
    )
    .await;
    assert_eq!(fault.reason, "DiscoveryIncomplete");
    for number in [1, 2] {
        assert!(fault.message.contains(&uuid(number)) && fault.message.contains(&url(number)), "{}", fault.message);
    }
    place.node.wait_for_instances("the camera that says who it is", |list| list.len() == 1).await;
    place.write_cameras(&filter, &[("username_default", "admin", true), ("password_default", PASSWORD, true)]);
    wait_for_no_fault(&place).await;
    let found = place.node.wait_for_instances("the one that is not excluded", |list| list.len() == 2).await;
    let mut found: Vec<&str> = found.iter().map(|instance| property(instance, "MAC_ADDRESS").unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, [mac(0), mac(2)]);
}

#[tokio::test]
async fn wrong_credentials_are_reported_without_the_secret() {
    let lock = |number| Camera::with_lock(number, Lock::Token(PASSWORD));
    let Some(place) = Place::new((0..3).map(lock)) else { return };
    let own = format!("username_{}", uuid(0).replace('-', "_"));
    let own_password = own.replace("username", "password");
    let properties = [
        ("username_default", "admin", true),
        ("password_default", PASSWORD, true),
        (own.as_str(), "admin", false),
        (own_password.as_str(), WRONG, true),
    ];
    place.write_cameras("", &properties);
    let agent = place.start();
    let fault = wait_for_fault(&place, "it refuses its credentials").await;
    assert!(fault.message.contains(&uuid(0)) && !fault.message.contains(&uuid(1)), "{}", fault.message);
    let found = place.node.wait_for_instances("all cameras", |list| list.len() == 3).await;
    let known = found.iter().filter(|instance| property(instance, "MAC_ADDRESS").is_some());
    assert_eq!(known.count(), 2, "the third is there, but says nothing of itself");
    for secret in [PASSWORD, WRONG] {
        assert_shown_nowhere(&place.node, &agent, secret);
    }
    place.write_cameras("", &properties[..2]);
    wait_for_no_fault(&place).await;
    place
        .node
        .wait_for_instances("its MAC address", |list| list.iter().all(|i| property(i, "MAC_ADDRESS").is_some()))
        .await;
}

#[tokio::test]
async fn four_forms_of_credentials_work_with_and_without_secrets() {
    let words = ["list", "reference", "own", "default"];
    let cameras = (0..).zip(words).map(|(number, word)| Camera::with_lock(number, Lock::Token(word)));
    let Some(place) = Place::new(cameras) else { return };
    let list = format!(r#"{{"{}": {{"username": "admin", "password": "bGlzdA==", "base64encoded": true}}}}"#, uuid(0));
    let references = format!(r#"{{"{}": {{"username_ref": "name", "password_ref": "word"}}}}"#, uuid(1));
    let own = uuid(2).replace('-', "_");
    let (own_name, own_word) = (format!("username_{own}"), format!("password_{own}"));
    let agent = place.start();
    for (secret, what) in [(true, "from Secrets"), (false, "from the Configuration")] {
        let properties = [
            ("device_credential_list", r#"["list"]"#, secret),
            ("list", list.as_str(), secret),
            ("device_credential_ref_list", r#"["references"]"#, secret),
            ("references", references.as_str(), secret),
            ("name", "admin", secret),
            ("word", "reference", secret),
            (own_name.as_str(), "admin", secret),
            (own_word.as_str(), "own", secret),
            ("username_default", "admin", secret),
            ("password_default", "default", secret),
        ];
        if !secret {
            let handler = fs::read_to_string(place.node.path("components/onvif.yaml")).unwrap();
            place.node.write("components/onvif.yaml", &handler.replace("secrets: [\"*\"]", "secrets: []"));
        }
        place.write_cameras("streamUri: true", &properties);
        let known = |list: &[akri_api::Instance]| list.iter().filter(|i| property(i, "STREAM_URI").is_some()).count();
        place.node.wait_for_instances(what, |list| known(list) == 4).await;
        wait_for_no_fault(&place).await;
        fs::remove_file(place.node.path("manifests/camera.yaml")).unwrap();
        place.node.wait_for_instances("nothing", <[_]>::is_empty).await;
    }
    drop(agent);
}

#[tokio::test]
async fn invalid_datagrams_are_skipped_and_counted() {
    let bomb = format!("<!DOCTYPE a [<!ENTITY b '{}'>]><a>{}</a>", "x".repeat(1000), "&b;".repeat(1000));
    let nonsense: [Vec<u8>; 7] = [
        b"not xml".to_vec(),
        vec![0xff; 60_000],
        bomb.into_bytes(),
        "<a>".repeat(10_000).into_bytes(),
        Vec::new(),
        b"<Envelope/>".to_vec(),
        "<a/>".repeat(16_000).into_bytes(),
    ];
    let answering = |(number, bytes)| Camera { discovery: Manner::Bytes(bytes), ..Camera::new(number) };
    let bad = (10..).zip(nonsense).map(answering);
    let Some(place) = Place::new((0..3).map(Camera::new).chain(bad)) else { return };
    place.farm.change(1, |camera| camera.discovery = Manner::Bare);
    place.write_cameras("", &[]);
    let _agent = place.start();
    place.node.wait_for_instances("those that make sense", |list| list.len() == 3 && list.iter().all(is_online)).await;
    wait_for_fault(&place, "7 answers to the probe were skipped").await;
}

#[tokio::test]
async fn slow_cameras_delay_no_other_and_keep_their_instances() {
    let nested = format!("{}{}", "<a>".repeat(20_000), "</a>".repeat(20_000));
    let manners = [
        Manner::Mute,
        Manner::Trickle,
        Manner::Bytes(b"<html><body>It works!".to_vec()),
        Manner::Bytes(vec![b' '; 16 << 20]),
        Manner::Bytes(vec![0xfe; 100_000]),
        Manner::Bytes(nested.into_bytes()),
        Manner::Bytes(Vec::new()),
    ];
    let Some(place) = Place::new((0..7).map(Camera::new).chain([Camera::new(100)])) else { return };
    place.write_cameras("", &[]);
    let agent = place.start();
    let before =
        place.node.wait_for_instances("all cameras", |list| list.len() == 8 && list.iter().all(is_online)).await;
    // A new agent remembers nothing of them, and asks again.
    assert!(agent.stop());
    for (number, manner) in (0..).zip(manners) {
        place.farm.change(number, |camera| camera.service = manner);
    }
    let agent = place.start();
    let fault = wait_for_fault(&place, "it does not answer in time").await;
    for number in 0..7 {
        assert!(fault.message.contains(&uuid(number)), "{}", fault.message);
    }
    // A busy machine may lose an answer to a probe; the cameras that are slow for good would stay away.
    let all_online = |list: &[akri_api::Instance]| list.len() == 8 && list.iter().all(is_online);
    let after = place.node.wait_for_instances("nothing that shows that one of them has gone", all_online).await;
    let uids = |list: &[akri_api::Instance]| list.iter().map(|i| i.metadata.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&after), uids(&before));
    (0..7).for_each(|number| place.farm.change(number, |camera| camera.service = Manner::Good));
    wait_for_no_fault(&place).await;
    drop(agent);
}

/// One answer to every question, with as many elements and as much text as is read: together they take megabytes.
fn talkative() -> Vec<u8> {
    let services = "<GetServicesResponse><Service><Namespace>http://www.onvif.org/ver10/media/wsdl</Namespace>\
                    <XAddr>http://0.0.0.0:8080/onvif/media</XAddr></Service></GetServicesResponse>";
    let profile = format!("<Profiles token=\"a\">{}{}</Profiles>", "<b/>".repeat(16_000), "x".repeat(180_000));
    let body = format!("{services}<GetProfilesResponse>{profile}</GetProfilesResponse>");
    let soap = "http://www.w3.org/2003/05/soap-envelope";
    format!("<s:Envelope xmlns:s=\"{soap}\"><s:Body>{body}</s:Body></s:Envelope>").into_bytes()
}

#[tokio::test]
async fn large_responses_stay_within_the_memory_limit() {
    let talkative = Manner::Bytes(talkative());
    let cameras = (0..100).map(|number| Camera { service: talkative.clone(), ..Camera::new(number) });
    let Some(place) = Place::new(cameras.chain([Camera::new(100)])) else { return };
    place.write_cameras("streamUri: true", &[]);
    let agent = place.start();
    let is_found = |list: &[akri_api::Instance]| list.iter().any(|i| property(i, "UUID") == Some(&uuid(100)));
    place.node.wait_for_instances("the one that says what it was asked", is_found).await;
    // On a slow machine it takes more than the time of one camera to read all of what they say.
    wait_for_fault(&place, "5f5a69c2-").await;
    assert!(!agent.log().contains("round failed"));
}

#[tokio::test]
async fn camera_outside_the_grant_is_reported_and_not_dialled() {
    let Some(place) = Place::new((0..2).map(Camera::new)) else { return };
    place.farm.change(1, |camera| camera.urls = "http://127.0.1.2:22/onvif/device_service".to_owned());
    place.write_cameras("", &[]);
    let _agent = place.start();
    let fault = wait_for_fault(&place, "is not covered by grants.http of DiscoveryHandler 'onvif'").await;
    assert!(fault.message.contains(&uuid(1)), "{}", fault.message);
    place.node.wait_for_instances("the other", |list| list.len() == 1).await;
}
