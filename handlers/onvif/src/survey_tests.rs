use std::cell::Cell;

use futures::executor::block_on;
use jiff::SignedDuration;

use super::*;
use crate::details::WantedStream;
use crate::fixture::{Behaviour, FakeCamera, PASSWORD, Site, Wants};

const A: &str = "http://10.0.0.1/onvif/device_service";
const B: &str = "http://10.0.0.2/onvif/device_service";
const C: &str = "http://10.0.0.3/onvif/device_service";
const MAC: &str = "00:1a:2b:3c:4d:5e";

/// Properties of the Configuration: the password for all cameras, if there is one.
struct Properties(Option<&'static str>);

impl Source for Properties {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(match name {
            "username_default" => self.0.map(|_| b"admin".to_vec()),
            "password_default" => self.0.map(|password| password.as_bytes().to_vec()),
            "username_b" if self.0 == Some("") => Some(b"admin".to_vec()),
            "password_b" if self.0 == Some("") => return Err("not granted".to_owned()),
            _ => None,
        })
    }
}

/// Rounds of one Configuration.
struct Rounds {
    site: Site,
    details: Details,
    password: Option<&'static str>,
    memory: Memory,
    time: Cell<Duration>,
}

impl Rounds {
    fn new(details: &str, cameras: impl IntoIterator<Item = (&'static str, FakeCamera)>) -> Self {
        let details = Details::parse(Some(details)).unwrap();
        let time = Cell::new(Duration::from_secs(60));
        Self { site: Site::new(cameras), details, password: None, memory: Memory::new(), time }
    }

    fn with_password(self, password: &'static str) -> Self {
        Self { password: Some(password), ..self }
    }

    fn change(&self, url: &str, change: impl FnOnce(&mut FakeCamera)) {
        change(self.site.cameras.borrow_mut().get_mut(url).unwrap());
    }

    /// A round in which these cameras answer the probe, by UUID and URL.
    fn round(&mut self, answering: &[(&str, &str)]) -> Report {
        let mut answers = Answers::default();
        for (uuid, url) in answering {
            answers.add(probe_match(uuid, url).as_bytes(), "10.0.0.250".parse().unwrap());
        }
        let (store, errors) = Store::read(Properties(self.password));
        assert_eq!(errors, []);
        let surveyed = survey(&self.details, &answers, &self.memory, &store, &self.site, self.time.get());
        let report = block_on(surveyed);
        self.memory = report.memory.clone();
        report
    }
}

fn probe_match(uuid: &str, url: &str) -> String {
    crate::soap::envelope(
        "",
        &format!(
            "<ProbeMatches xmlns='http://schemas.xmlsoap.org/ws/2005/04/discovery'><ProbeMatch><EndpointReference>\
            <Address>\
             urn:uuid:{uuid}</Address></EndpointReference><XAddrs>{url}</XAddrs></ProbeMatch></ProbeMatches>"
        ),
    )
}

fn ids(report: &Report) -> Vec<&str> {
    let mut ids: Vec<&str> = report.devices.iter().map(|device| device.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

fn notes(report: &Report) -> Vec<String> {
    report.notes.iter().map(|note| format!("{} {}: {}", note.origin, note.reason, note.message)).collect()
}

fn property<'a>(report: &'a Report, id: &str, name: &str) -> Option<&'a str> {
    let device = report.devices.iter().find(|device| device.id == id).unwrap();
    device.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn locked() -> FakeCamera {
    FakeCamera { wants: Wants::Token, ..FakeCamera::with_mac(MAC) }
}

#[test]
fn steady_state_costs_no_request() {
    for password in [None, Some(PASSWORD)] {
        let mut rounds = Rounds::new("{}", [(A, locked()), (B, FakeCamera::with_mac(MAC))]);
        rounds.password = password;
        let first = rounds.round(&[("a", A), ("b", B)]);
        assert!(!rounds.site.take_requests().is_empty());
        assert_eq!(property(&first, "a", "ONVIF_DEVICE_MAC_ADDRESS"), password.map(|_| MAC));
        assert_eq!(property(&first, "b", "ONVIF_DEVICE_MAC_ADDRESS"), Some(MAC));
        for _ in 0..3 {
            let next = rounds.round(&[("a", A), ("b", B)]);
            assert_eq!((&next.devices, &next.notes, &next.kept), (&first.devices, &vec![], &vec![]));
            assert_eq!(rounds.site.take_requests(), [""; 0]);
        }
        let camera = rounds.round(&[("a", A), ("b", B), ("c", B)]);
        assert_eq!(ids(&camera), ["a", "b", "c"]);
        assert!(rounds.site.take_requests().iter().all(|asked| asked.starts_with(B)), "only the new one is asked");
    }
}

#[test]
fn cameras_are_queried_again_hourly_and_after_changes() {
    let mut rounds = Rounds::new("{}", [(A, locked()), (B, FakeCamera::with_mac(MAC))]);
    rounds.round(&[("a", A)]);
    rounds.site.take_requests();
    rounds.site.now.set(rounds.site.now.get() + SignedDuration::from_mins(61));
    rounds.round(&[("a", A)]);
    assert!(!rounds.site.take_requests().is_empty());
    let moved = rounds.round(&[("a", B)]);
    assert_eq!(property(&moved, "a", "ONVIF_DEVICE_SERVICE_URL"), Some(B));
    rounds.site.take_requests();
    let mut rounds = rounds.with_password(PASSWORD);
    rounds.round(&[("a", B)]);
    assert!(!rounds.site.take_requests().is_empty(), "there are credentials now");
}

const REFUSED: &str = "it refuses its credentials, those of 'username_default' and 'password_default'; the next try is in 5 \
                       minutes, or when they change";

#[test]
fn rejected_cameras_are_not_queried() {
    let details = r#"{"uuids": {"items": ["a"]}, "ipAddresses": {"action": "Exclude", "items": ["10.0.0.3"]}}"#;
    let mut rounds = Rounds::new(details, [(A, FakeCamera::default()), (B, FakeCamera::default())]);
    let report = rounds.round(&[("a", A), ("b", B), ("A", C)]);
    assert_eq!(ids(&report), [""; 0], "one of its addresses is excluded");
    let report = rounds.round(&[("a", A), ("b", B)]);
    assert_eq!(ids(&report), ["a"]);
    assert!(rounds.site.take_requests().iter().all(|asked| asked.starts_with(A)));
    assert_eq!(report.kept.len(), 0);
    assert_eq!(notes(&report), [format!("b at {B} Filtered: the filter on its UUID")]);
}

#[test]
fn camera_without_a_required_stream_is_held_back() {
    for (details, offered) in
        [(r#"{"streamUri": true}"#, vec!["a"]), (r#"{"streamUri": true, "streamRequired": true}"#, vec![])]
    {
        let media = "http://10.0.0.1/onvif/media";
        let camera = locked().with_media(media);
        let mut rounds = Rounds::new(details, [(A, camera.clone()), (media, camera)]).with_password("wrong");
        let report = rounds.round(&[("a", A)]);
        assert_eq!((ids(&report), report.kept.len()), (offered.clone(), usize::from(offered.is_empty())));
        assert!(notes(&report)[0].contains(REFUSED), "{:?}", notes(&report));
        let report = rounds.with_password(PASSWORD).round(&[("a", A)]);
        assert_eq!((ids(&report), report.kept.len()), (vec!["a"], 0), "{details}");
    }
}

#[test]
fn mac_filter_decides_once() {
    let details = r#"{"macAddresses": {"items": ["00-1A-2B-3C-4D-5E"]}}"#;
    let mut rounds =
        Rounds::new(details, [(A, FakeCamera::with_mac(MAC)), (B, FakeCamera::with_mac("00:00:00:00:00:01"))]);
    for asked in [6, 0] {
        let report = rounds.round(&[("a", A), ("b", B)]);
        assert_eq!((ids(&report), report.kept.len()), (vec!["a"], 0));
        assert_eq!(notes(&report), [format!("b at {B} Filtered: the filter on its MAC address")]);
        assert_eq!(rounds.site.take_requests().len(), asked);
    }
}

#[test]
fn undecided_camera_is_withheld_until_decided() {
    let details = r#"{"macAddresses": {"items": ["00:1a:2b:3c:4d:5e"]}}"#;
    let mut rounds = Rounds::new(details, [(A, locked())]);
    let held = |why: &str| format!("a HeldBack: {A}: it is held back, as there is a filter on its MAC address: {why}");
    for _ in 0..2 {
        let report = rounds.round(&[("a", A)]);
        assert_eq!((ids(&report), &report.kept), (vec![], &vec!["a".to_owned()]));
        assert_eq!(
            notes(&report),
            [held("the camera asks for credentials, and there are none for it, or none that grants.secrets covers")]
        );
        assert!(!rounds.site.take_requests().is_empty(), "it is asked in each round");
    }
    let mut rounds = rounds.with_password("wrong");
    assert_eq!(notes(&rounds.round(&[("a", A)])), [held("the camera refuses its credentials")]);
    let mut rounds = rounds.with_password(PASSWORD);
    let report = rounds.round(&[("a", A)]);
    assert_eq!((ids(&report), report.kept.len(), report.notes.len()), (vec!["a"], 0, 0));
    rounds.change(A, |camera| _ = camera.answers.remove("GetNetworkInterfaces"));
    rounds.memory.clear();
    for _ in 0..2 {
        assert_eq!(notes(&rounds.round(&[("a", A)])), [held("the camera does not tell")]);
        assert!(!rounds.site.take_requests().is_empty());
    }
}

#[test]
fn new_filter_queries_missing_facts() {
    let mut rounds = Rounds::new("{}", [(A, locked())]);
    assert_eq!(ids(&rounds.round(&[("a", A)])), ["a"]);
    rounds.details = Details::parse(Some(r#"{"macAddresses": {"items": ["00:1a:2b:3c:4d:5e"]}}"#)).unwrap();
    rounds.change(A, |camera| camera.wants = Wants::Nothing);
    assert_eq!(ids(&rounds.round(&[("a", A)])), ["a"], "what was not known of it is asked for");
}

#[test]
fn failed_credentials_are_limited_and_not_shown() {
    let mut rounds = Rounds::new("{}", [(A, locked())]).with_password("hunter2");
    let expected = |report: &Report| {
        assert_eq!(notes(report), [format!("a CredentialsRefused: {A}: {REFUSED}")]);
        assert_eq!(property(report, "a", "ONVIF_DEVICE_SERVICE_URL"), Some(A));
        assert_eq!(property(report, "a", "ONVIF_DEVICE_MAC_ADDRESS"), None);
    };
    for (after, asked) in [(0, 2), (30, 0), (240, 0), (30, 2), (30, 0)] {
        rounds.site.now.set(rounds.site.now.get() + SignedDuration::from_secs(after));
        expected(&rounds.round(&[("a", A)]));
        assert_eq!(rounds.site.take_requests().len(), asked, "{after} s later");
    }
    let report = rounds.with_password(PASSWORD).round(&[("a", A)]);
    assert_eq!((property(&report, "a", "ONVIF_DEVICE_MAC_ADDRESS"), report.notes.len()), (Some(MAC), 0));
}

#[test]
fn changed_password_keeps_known_facts() {
    let mut rounds = Rounds::new("{}", [(A, locked())]).with_password(PASSWORD);
    rounds.round(&[("a", A)]);
    rounds.site.now.set(rounds.site.now.get() + SignedDuration::from_hours(2));
    let mut rounds = rounds.with_password("old");
    let report = rounds.round(&[("a", A)]);
    assert_eq!((property(&report, "a", "ONVIF_DEVICE_MAC_ADDRESS"), report.notes.len()), (Some(MAC), 1));
    let report = rounds.round(&[("a", A)]);
    assert_eq!((property(&report, "a", "ONVIF_DEVICE_MAC_ADDRESS"), report.notes.len()), (Some(MAC), 1));
}

#[test]
fn unreadable_credentials_are_reported_per_camera() {
    let mut rounds = Rounds::new("{}", [(A, locked()), (B, locked())]).with_password("");
    let report = rounds.round(&[("b", B)]);
    let message = "b CredentialsInvalid: the property 'password_b' can't be read: not granted";
    assert_eq!((ids(&report), notes(&report)), (vec!["b"], vec![message.to_owned()]));
}

#[test]
fn slow_camera_is_unchanged_and_delays_no_other() {
    let behaving = |behaviour| FakeCamera { behaviour, ..FakeCamera::with_mac(MAC) };
    for behaviour in [Behaviour::Off, Behaviour::OffLater, Behaviour::Mute, Behaviour::Html] {
        let mut rounds = Rounds::new("{}", [(A, behaving(behaviour)), (B, behaving(Behaviour::Good))]);
        let report = rounds.round(&[("a", A), ("b", B)]);
        assert_eq!((ids(&report), &report.kept), (vec!["b"], &vec!["a".to_owned()]), "{behaviour:?}");
        assert!(notes(&report)[0].starts_with("a CameraUnreachable: "), "{behaviour:?}");
        rounds.change(A, |camera| camera.behaviour = Behaviour::Good);
        assert_eq!(ids(&rounds.round(&[("a", A), ("b", B)])), ["a", "b"]);
    }
}

#[test]
fn camera_that_answers_in_part_is_found_and_asked_again() {
    let slow = FakeCamera { behaviour: Behaviour::MuteLater, ..FakeCamera::with_mac(MAC) };
    let held = r#"{"streamUri": true, "streamRequired": true}"#;
    for (details, found) in [("{}", vec!["a"]), (held, vec![])] {
        let mut rounds = Rounds::new(details, [(A, slow.clone())]);
        for _ in 0..2 {
            let report = rounds.round(&[("a", A)]);
            assert_eq!((ids(&report), report.kept.len()), (found.clone(), usize::from(found.is_empty())));
            assert!(notes(&report)[0].contains("CameraSlow"), "{:?}", notes(&report));
            assert!(!rounds.site.take_requests().is_empty(), "it is asked in each round");
        }
    }
    let mut rounds = Rounds::new("{}", [(A, FakeCamera::with_mac(MAC))]);
    rounds.round(&[("a", A)]);
    rounds.change(A, |camera| camera.behaviour = Behaviour::MuteLater);
    rounds.site.now.set(rounds.site.now.get() + SignedDuration::from_hours(2));
    assert_eq!(property(&rounds.round(&[("a", A)]), "a", "ONVIF_DEVICE_MAC_ADDRESS"), Some(MAC), "as before");
}

#[test]
fn round_ends_in_time_and_keeps_unreached_cameras() {
    let mute = FakeCamera { behaviour: Behaviour::Mute, ..FakeCamera::default() };
    let mut rounds = Rounds::new("{}", [(A, mute), (B, FakeCamera::default())]);
    rounds.time.set(Duration::from_secs(2));
    let report = rounds.round(&[("a", A), ("b", B)]);
    assert_eq!((ids(&report), &report.kept), (vec!["b"], &vec!["a".to_owned()]));
    let message = " RoundTooShort: 1 cameras could not be asked in the time a round has; they stay as they are";
    assert_eq!(notes(&report), [message]);
    rounds.time.set(Duration::ZERO);
    let mut kept = rounds.round(&[("c", C)]).kept;
    kept.sort();
    assert_eq!(kept, ["b", "c"], "a is not known");
}

#[test]
fn slow_cameras_do_not_always_go_first() {
    let mute: Vec<String> = (0..concurrent_jobs::AT_ONCE).map(|number| format!("http://10.0.0.{number}/")).collect();
    let mut rounds = Rounds::new("{}", [("http://10.9.9.9/", FakeCamera::default())]);
    for url in &mute {
        let camera = FakeCamera { behaviour: Behaviour::Mute, ..FakeCamera::default() };
        rounds.site.cameras.borrow_mut().insert(url.clone(), camera);
    }
    rounds.time.set(Duration::from_secs(2));
    let mut answering: Vec<(&str, &str)> = mute.iter().map(|url| (url.as_str(), url.as_str())).collect();
    answering.push(("z", "http://10.9.9.9/"));
    let mut is_found = || {
        let next = rounds.site.now.get() + jiff::SignedDuration::from_secs(7);
        rounds.site.now.set(next);
        ids(&rounds.round(&answering)) == ["z"]
    };
    assert!((0..3).any(|_| is_found()));
}

#[test]
fn camera_whose_answer_was_lost_is_queried_at_its_address() {
    let mut rounds = Rounds::new("{}", [(A, locked()), (B, locked()), (C, locked())]);
    rounds.round(&[("a", A), ("b", B), ("c", C)]);
    rounds.site.take_requests();
    rounds.change(B, |camera| camera.behaviour = Behaviour::Off);
    let report = rounds.round(&[("new", C)]);
    assert_eq!((ids(&report), &report.kept), (vec!["new"], &vec!["a".to_owned()]), "c's address is another's now");
    assert_eq!(notes(&report), [""; 0]);
    let asked = rounds.site.take_requests();
    assert_eq!(asked.iter().filter(|asked| asked.starts_with(A)).count(), 1, "{asked:?}");
    let mut kept = rounds.round(&[]).kept;
    kept.sort();
    assert_eq!(kept, ["a", "new"]);
    rounds.change(A, |camera| camera.behaviour = Behaviour::Off);
    rounds.change(C, |camera| camera.behaviour = Behaviour::Off);
    assert_eq!(rounds.round(&[]).kept, [""; 0]);
    assert!(rounds.memory.is_empty());
}

#[test]
fn address_of_a_lost_camera_may_be_of_another_device() {
    let (other_path, other_port) = ("http://10.0.0.1:80/onvif", "http://10.0.0.1:8080/onvif/device_service");
    let cameras = [(A, FakeCamera::with_mac(MAC)), (other_path, locked()), (other_port, locked())];
    let kept_after = |change: fn(&mut FakeCamera), answering: &[(&str, &str)]| {
        let mut rounds = Rounds::new("{}", cameras.clone());
        rounds.round(&[("a", A)]);
        rounds.change(A, change);
        rounds.round(answering).kept
    };
    assert_eq!(kept_after(|camera| camera.wants = Wants::TokenAlways, &[]), [""; 0], "any web server may refuse");
    assert_eq!(kept_after(|_| (), &[("b", other_path)]), [""; 0]);
    assert_eq!(kept_after(|_| (), &[("b", other_port)]), ["a"]);
    let mut rounds = Rounds::new("{}", cameras.clone());
    rounds.round(&[("a", A), ("b", other_path)]);
    assert_eq!(rounds.round(&[("b", other_path)]).kept, ["a"], "of a recorder");
    let mut rounds = Rounds::new("{}", [(A, FakeCamera { wants: Wants::TokenAlways, ..FakeCamera::default() })]);
    rounds.round(&[("a", A)]);
    assert_eq!(rounds.round(&[]).kept, ["a"], "it has always refused");
}

#[test]
fn missing_stream_is_reported_and_retried() {
    let media = "http://10.0.0.1/onvif/media";
    let open = FakeCamera::with_mac(MAC).with_media(media);
    let mut rounds = Rounds::new(r#"{"streamProfile": "p7"}"#, [(A, open.clone()), (media, open)]);
    for _ in 0..2 {
        let report = rounds.round(&[("a", A)]);
        let message = format!("a NoStream: {A}: it has no such media profile, only: name of p0, name of p1");
        assert_eq!((ids(&report), notes(&report)), (vec!["a"], vec![message]));
    }
    rounds.details.stream = Some(WantedStream::Profile("p1".into()));
    let report = rounds.round(&[("a", A)]);
    assert_eq!(property(&report, "a", "ONVIF_DEVICE_STREAM_URI"), Some("rtsp://10.0.0.9:554/p1"));
    rounds.site.take_requests();
    rounds.round(&[("a", A)]);
    assert_eq!(rounds.site.take_requests(), [""; 0]);
    rounds.details.stream = None;
    let report = rounds.round(&[("a", A)]);
    assert_eq!(property(&report, "a", "ONVIF_DEVICE_STREAM_URI"), None);
    rounds.change(A, |camera| camera.wants = Wants::Token);
    rounds.details.stream = Some(WantedStream::First);
    assert_eq!(notes(&rounds.round(&[("a", A)])), [format!("a NoStream: {A}: it asks for credentials")]);
}
