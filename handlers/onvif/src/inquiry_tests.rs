use futures::executor::block_on;

use super::*;
use crate::fixture::{Behaviour, FakeCamera, PASSWORD, Site, Wants, credentials};

const URL: &str = "http://10.0.0.9/onvif/device_service";
const MEDIA: &str = "http://10.0.0.9/onvif/media";
const MAC: &str = "00:1a:2b:3c:4d:5e";
const NOTHING_MORE: Wanted<'_> = Wanted { scopes: false, stream: None };

fn camera(urls: &[&str]) -> Camera {
    let urls = urls.iter().map(|url| ServiceUrl::parse(url).unwrap()).collect();
    Camera { uuid: "a".into(), scopes: vec![], metadata_version: String::new(), urls, answered: None }
}

fn ask_site(site: &Site, password: Option<&str>, wanted: Wanted<'_>) -> Result<CameraReport, String> {
    let credentials = password.map(credentials);
    block_on(ask(site, &camera(&[URL]), &Facts::default(), credentials.as_ref(), wanted))
}

fn site(wants: Wants) -> Site {
    Site::new([(URL, FakeCamera { wants, ..FakeCamera::with_mac(MAC) })])
}

#[test]
fn open_camera_answers_everything() {
    for password in [None, Some(PASSWORD), Some("wrong")] {
        let report = ask_site(&site(Wants::Nothing), password, NOTHING_MORE).unwrap();
        assert_eq!((report.facts.mac.as_deref(), report.refused), (Some(MAC), false));
        assert_eq!((report.facts.url.as_str(), report.facts.information.model.as_str()), (URL, "Dome"));
    }
}

#[test]
fn password_works_in_each_authentication_scheme() {
    for wants in [Wants::Token, Wants::TokenAlways, Wants::HttpDigest] {
        let report = ask_site(&site(wants), Some(PASSWORD), NOTHING_MORE).unwrap();
        assert_eq!((report.facts.mac.as_deref(), report.refused), (Some(MAC), false), "{wants:?}");
    }
}

#[test]
fn missing_or_wrong_credentials_are_tried_once() {
    for (wants, password, tries) in [
        (Wants::Token, Some("wrong"), 1),
        (Wants::TokenAlways, Some("wrong"), 1),
        (Wants::HttpDigest, Some("wrong"), 2), // the first brings the challenge
        (Wants::Token, None, 1),
        (Wants::HttpDigest, None, 1),
        (Wants::HttpBasic, Some(PASSWORD), 1),
    ] {
        let site = site(wants);
        let report = ask_site(&site, password, NOTHING_MORE).unwrap();
        assert_eq!((report.facts.mac.as_deref(), report.refused), (None, true), "{wants:?}");
        let asked = site.take_requests();
        assert_eq!(asked.iter().filter(|name| name.contains("GetDeviceInformation")).count(), tries, "{asked:?}");
        assert_eq!(asked.len(), tries + 1);
    }
}

#[test]
fn earlier_facts_stay_where_a_request_fails() {
    let earlier = Facts { mac: Some("m".into()), stream: Some("s".into()), ..Facts::default() };
    let wanted = Wanted { scopes: false, stream: Some(&WantedStream::First) };
    let asked = |camera: FakeCamera, media: FakeCamera| {
        let site = Site::new([(URL, camera), (MEDIA, media)]);
        let report = block_on(ask(&site, &self::camera(&[URL]), &earlier, None, wanted)).unwrap();
        (report.facts.mac, report.facts.information.model, report.facts.stream)
    };
    let (good, stream) = (|| FakeCamera::with_mac(MAC).with_media(MEDIA), |uri: &str| Some(uri.to_owned()));
    let all = (Some(MAC.to_owned()), "Dome".to_owned(), stream("rtsp://10.0.0.9:554/p0"));
    assert_eq!(asked(good(), good()), all);
    let mut broken = good();
    broken.answers.remove("GetNetworkInterfaces");
    assert_eq!(asked(broken, good()), (earlier.mac.clone(), all.1.clone(), all.2.clone()));
    let off = FakeCamera { behaviour: Behaviour::Off, ..good() };
    assert_eq!(asked(good(), off), (all.0.clone(), all.1.clone(), stream("s")));
    let mut without = good();
    without.answers.insert("GetProfiles", "<GetProfilesResponse/>".into());
    assert_eq!(asked(good(), without), (all.0.clone(), all.1, None), "it answers that it has none");
}

#[test]
fn missing_right_to_one_request_is_no_refusal() {
    let mut camera = FakeCamera { wants: Wants::Token, ..FakeCamera::with_mac(MAC) };
    let fault = "<s:Fault><s:Code><s:Value>ter:NotAuthorized</s:Value></s:Code></s:Fault>";
    camera.answers.insert("GetNetworkInterfaces", fault.into());
    let asked = |password| ask_site(&Site::new([(URL, camera.clone())]), password, NOTHING_MORE).unwrap();
    let report = asked(Some(PASSWORD));
    assert_eq!((report.facts.information.model.as_str(), report.facts.mac, report.refused), ("Dome", None, false));
    assert!(asked(None).refused && asked(Some("wrong")).refused);
}

#[test]
fn camera_that_reports_no_time_has_that_of_its_header() {
    let mut camera = FakeCamera { wants: Wants::Token, ahead: 86_400, ..FakeCamera::with_mac(MAC) };
    camera.answers.insert("GetSystemDateAndTime", "<GetSystemDateAndTimeResponse/>".into());
    let report = ask_site(&Site::new([(URL, camera)]), Some(PASSWORD), NOTHING_MORE).unwrap();
    assert_eq!((report.refused, report.facts.mac.as_deref()), (false, Some(MAC)));
}

#[test]
fn wrong_camera_clock_is_compensated() {
    for wants in [Wants::Token, Wants::TokenAlways] {
        for ahead in [-86_400 * 400, -20, 20, 86_400 * 400] {
            let site = site(wants);
            site.cameras.borrow_mut().get_mut(URL).unwrap().ahead = ahead;
            assert!(!ask_site(&site, Some(PASSWORD), NOTHING_MORE).unwrap().refused, "{wants:?} {ahead}");
        }
    }
}

#[test]
fn first_answering_url_is_used() {
    let broken = |behaviour| FakeCamera { behaviour, ..FakeCamera::default() };
    let site = Site::new([
        ("http://10.0.0.1/", broken(Behaviour::Off)),
        ("http://10.0.0.2/", broken(Behaviour::Html)),
        (URL, FakeCamera::with_mac(MAC)),
    ]);
    let asked = |urls: &[&str]| block_on(ask(&site, &camera(urls), &Facts::default(), None, NOTHING_MORE));
    assert_eq!(asked(&["http://10.0.0.1/", "http://10.0.0.2/", URL]).unwrap().facts.url, URL);
    assert_eq!(
        asked(&["http://10.0.0.1/", "http://10.0.0.2/"]),
        Err("http://10.0.0.1/: connection refused; http://10.0.0.2/: it answers with HTTP status 200, and it is not \
             well-formed XML"
            .into())
    );
    let many: Vec<String> = (0..8).map(|number| format!("http://10.0.1.{number}/")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(asked(&many).unwrap_err().matches("connection refused").count(), MAX_TRIED);
}

#[test]
fn unsupported_values_are_omitted() {
    let site = Site::new([(URL, FakeCamera::default())]);
    let report = ask_site(&site, None, Wanted { scopes: true, stream: None }).unwrap();
    let facts = Facts { url: URL.into(), is_open: true, ..Facts::default() };
    assert_eq!(report, CameraReport { facts, ..CameraReport::default() });
    let names = ["GetSystemDateAndTime", "GetDeviceInformation", "GetNetworkInterfaces", "GetScopes"];
    assert_eq!(site.take_requests(), names.map(|name| format!("{URL} {name}")));
}

#[test]
fn scopes_are_requested_only_if_wanted_and_not_announced() {
    let mut with_scopes = FakeCamera::with_mac(MAC);
    let scopes = "<GetScopesResponse><Scopes><ScopeItem>onvif://x</ScopeItem></Scopes></GetScopesResponse>";
    with_scopes.answers.insert("GetScopes", scopes.into());
    let site = Site::new([(URL, with_scopes)]);
    let wanted = Wanted { scopes: true, stream: None };
    assert_eq!(ask_site(&site, None, wanted).unwrap().facts.scopes, Some(vec!["onvif://x".to_owned()]));
    assert_eq!(ask_site(&site, None, NOTHING_MORE).unwrap().facts.scopes, None);
    let announced = Camera { scopes: vec!["onvif://y".into()], ..camera(&[URL]) };
    site.take_requests();
    assert_eq!(block_on(ask(&site, &announced, &Facts::default(), None, wanted)).unwrap().facts.scopes, None);
    assert!(site.take_requests().iter().all(|name| !name.contains("GetScopes")));
}

fn stream(site: &Site, wanted: &WantedStream) -> CameraReport {
    ask_site(site, Some(PASSWORD), Wanted { scopes: false, stream: Some(wanted) }).unwrap()
}

#[test]
fn stream_uri_is_of_the_wanted_profile_without_password() {
    for url in [MEDIA, "http://0.0.0.0/onvif/media"] {
        let device = FakeCamera { wants: Wants::Token, ..FakeCamera::with_mac(MAC).with_media(url) };
        let site = Site::new([(URL, device.clone()), (MEDIA, device)]);
        let uri = |wanted: &WantedStream| stream(&site, wanted).facts.stream;
        assert_eq!(uri(&WantedStream::First).as_deref(), Some("rtsp://10.0.0.9:554/p0"));
        assert_eq!(uri(&WantedStream::Profile("name of p1".into())).as_deref(), Some("rtsp://10.0.0.9:554/p1"));
    }
}

#[test]
fn missing_stream_is_explained() {
    let why = |media: FakeCamera, device: FakeCamera, wanted: &WantedStream| {
        let report = stream(&Site::new([(URL, device), (MEDIA, media)]), wanted);
        assert_eq!((report.facts.stream, report.facts.mac.as_deref()), (None, Some(MAC)), "the rest is known");
        report.no_stream.unwrap()
    };
    let device = || FakeCamera::with_mac(MAC).with_media(MEDIA);
    let mut talkative = device();
    let profiles = format!("<GetProfilesResponse><Profiles token='{PASSWORD}'/></GetProfilesResponse>");
    talkative.answers.insert("GetProfiles", profiles);
    assert_eq!(why(talkative, device(), &WantedStream::First), "the URI of its stream has the password in it");
    assert_eq!(
        why(device(), device(), &WantedStream::Profile("x".into())),
        "it has no such media profile, only: name of p0, name of p1"
    );
    let mut endless = device();
    let profiles = format!("<GetProfilesResponse><Profiles token='{}'/></GetProfilesResponse>", "x".repeat(257));
    endless.answers.insert("GetProfiles", profiles);
    assert_eq!(why(endless, device(), &WantedStream::First), "its profile has an endless token");
    let off = FakeCamera { behaviour: Behaviour::Off, ..device() };
    assert_eq!(why(off, device(), &WantedStream::First), format!("asked GetProfiles at {MEDIA}, connection refused"));
    let closed = FakeCamera { wants: Wants::HttpBasic, ..device() };
    assert_eq!(
        why(closed, device(), &WantedStream::First),
        format!("asked GetProfiles at {MEDIA}, it asks for other credentials")
    );
    assert_eq!(
        why(device(), FakeCamera::with_mac(MAC), &WantedStream::First),
        format!("asked GetCapabilities at {URL}, it answers: not implemented")
    );
}

#[test]
fn old_camera_is_asked_for_capabilities() {
    let mut device = FakeCamera::with_mac(MAC).with_media(MEDIA);
    device.answers.remove("GetServices");
    let media = format!("<Media><XAddr>{MEDIA}</XAddr></Media>");
    let capabilities =
        format!("<GetCapabilitiesResponse><Capabilities>{media}</Capabilities></GetCapabilitiesResponse>");
    device.answers.insert("GetCapabilities", capabilities);
    let site = Site::new([(URL, device.clone()), (MEDIA, device)]);
    assert_eq!(stream(&site, &WantedStream::First).facts.stream.as_deref(), Some("rtsp://10.0.0.9:554/p0"));
}

#[test]
fn password_in_a_uri_is_detected_in_either_encoding() {
    let site = site(Wants::Nothing);
    let (url, own) = (ServiceUrl::parse(URL).unwrap(), credentials("p@ss wörd"));
    let session = block_on(Session::open(&site, &url, Some(&own))).unwrap();
    for (uri, is_in) in [
        ("rtsp://h/?password=p@ss wörd", true),
        ("rtsp://h/?password=p%40ss%20w%C3%B6rd&channel=1", true),
        ("rtsp://h/?password=%zz%ff", false),
        ("rtsp://h/pass", false),
    ] {
        assert_eq!(session.is_password_in(uri), is_in, "{uri}");
    }
}

#[test]
fn camera_lost_midway_is_not_reported_in_part() {
    let site = site(Wants::Nothing);
    site.cameras.borrow_mut().get_mut(URL).unwrap().behaviour = Behaviour::OffLater;
    assert_eq!(ask_site(&site, None, NOTHING_MORE), Err(format!("{URL}: connection refused")));
}

#[test]
fn stream_uri_has_no_user_info() {
    for (uri, expected) in [
        ("rtsp://10.0.0.9/1", Some("rtsp://10.0.0.9/1")),
        ("rtsp://a:b@10.0.0.9:554/1?x=y@z", Some("rtsp://10.0.0.9:554/1?x=y@z")),
        ("rtsp://a:b@c@10.0.0.9", Some("rtsp://10.0.0.9")),
        ("rtsp://a@h?q", Some("rtsp://h?q")),
        ("rtsp://", None),
        ("rtsp://a:b@/1", None),
        ("10.0.0.9/1", None),
        ("rtsp://h/a b", None),
        ("rtsp://h/\n", None),
    ] {
        assert_eq!(without_user(uri).as_deref(), expected, "{uri}");
    }
    assert_eq!(without_user(&format!("rtsp://h/{}", "x".repeat(MAX_URI))), None);
}
