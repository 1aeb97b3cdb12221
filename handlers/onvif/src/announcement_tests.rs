use proptest::prelude::*;

use super::*;

const SENDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 1, 5));

/// A reply as the specification shows it.
fn reply(reference: &str, urls: &str) -> String {
    matches(&[one(reference, "dn:NetworkVideoTransmitter tds:Device", urls)])
}

fn one(reference: &str, types: &str, urls: &str) -> String {
    format!(
        "<d:ProbeMatch><a:EndpointReference><a:Address>{reference}</a:Address></a:EndpointReference>\
         <d:Types>{types}</d:Types><d:Scopes>onvif://www.onvif.org/name/A  onvif://www.onvif.org/type/ptz</d:Scopes>\
         <d:XAddrs>{urls}</d:XAddrs><d:MetadataVersion>7</d:MetadataVersion></d:ProbeMatch>"
    )
}

fn matches(matches: &[String]) -> String {
    in_body(&format!("<d:ProbeMatches>{}</d:ProbeMatches>", matches.concat()))
}

fn in_body(body: &str) -> String {
    format!(
        "<e:Envelope xmlns:e='http://www.w3.org/2003/05/soap-envelope' xmlns:d='{}' \
         xmlns:a='http://schemas.xmlsoap.org/ws/2004/08/addressing' \
         xmlns:dn='http://www.onvif.org/ver10/network/wsdl' xmlns:tds='http://www.onvif.org/ver10/device/wsdl'>\
         <e:Header><a:Action>whatever</a:Action></e:Header><e:Body>{body}</e:Body></e:Envelope>",
        DISCOVERY[0]
    )
}

fn cameras(message: &str) -> Vec<Camera> {
    read(message.as_bytes(), SENDER).into_iter().map(Result::unwrap).collect()
}

fn urls(camera: &Camera) -> Vec<String> {
    camera.urls.iter().map(ServiceUrl::to_string).collect()
}

#[test]
fn probe_match_is_a_camera() {
    let [camera] = &cameras(&reply("urn:uuid:4AF6-1", "http://192.168.1.5/onvif/device_service"))[..] else { panic!() };
    assert_eq!(camera.uuid, "4af6-1");
    assert_eq!(camera.scopes, ["onvif://www.onvif.org/name/A", "onvif://www.onvif.org/type/ptz"]);
    assert_eq!(camera.metadata_version, "7");
    assert_eq!(urls(camera), ["http://192.168.1.5/onvif/device_service"]);
}

#[test]
fn address_that_answered_is_tried_last() {
    for (announced, tried) in [
        ("https://10.0.0.1:81/x", &["https://10.0.0.1:81/x", "https://192.168.1.5:81/x"][..]),
        ("http://camera.example/x", &["http://camera.example/x", "http://192.168.1.5/x"]),
        ("http://10.0.0.1/ http://192.168.1.5/y", &["http://192.168.1.5/y", "http://10.0.0.1/"]),
        (
            "http://10.0.0.1/ http://10.0.0.2/ http://10.0.0.3/ http://10.0.0.4/",
            &["http://10.0.0.1/", "http://10.0.0.2/", "http://10.0.0.3/", "http://192.168.1.5/"],
        ),
    ] {
        let camera = cameras(&reply("urn:uuid:x", announced)).remove(0);
        let order = |before: &str| camera.tried(before).into_iter().map(ServiceUrl::to_string).collect::<Vec<_>>();
        assert_eq!(order(""), tried, "{announced}");
        assert_eq!(order(tried[tried.len() - 1]).len(), tried.len(), "{announced}");
    }
}

#[test]
fn announced_url_that_was_used_before_is_tried_first() {
    let camera =
        cameras(&reply("urn:uuid:x", "http://10.0.0.1/ http://10.0.0.2/ http://10.0.0.3/ http://10.0.0.4/")).remove(0);
    let order = |before: &str| camera.tried(before).into_iter().map(ServiceUrl::to_string).collect::<Vec<_>>();
    let usual = ["http://10.0.0.1/", "http://10.0.0.2/", "http://10.0.0.3/", "http://192.168.1.5/"];
    assert_eq!(order("http://192.168.1.5/"), usual, "it is not announced: the camera may have left it");
    assert_eq!(order("http://10.0.0.2/"), [usual[1], usual[0], usual[2], usual[3]]);
    assert_eq!(order("http://10.0.0.4/"), ["http://10.0.0.4/", usual[0], usual[1], usual[2]]);
}

#[test]
fn prefixes_and_white_space_are_ignored() {
    // As Python's WSDiscovery writes.
    let message = r#"<?xml version="1.0" encoding="UTF-8"?>
        <s:Envelope xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing"
            xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:s="http://www.w3.org/2003/05/soap-envelope">
            <s:Header>
            </s:Header>
            <s:Body>
                <d:ProbeMatches>
                    <d:ProbeMatch>
                        <a:EndpointReference>
                            <a:Address>
                                urn:uuid:x
                            </a:Address>
                        </a:EndpointReference>
                        <d:Types xmlns:BcoEFYVyqe="http://www.onvif.org/ver10/network/wsdl">
                            BcoEFYVyqe:NetworkVideoTransmitter
                        </d:Types>
                        <d:XAddrs>
                            http://192.168.1.5/ http://10.0.0.1/
                        </d:XAddrs>
                    </d:ProbeMatch>
                </d:ProbeMatches>
            </s:Body>
        </s:Envelope>
        "#;
    let [camera] = &cameras(message)[..] else { panic!() };
    assert_eq!((camera.uuid.as_str(), camera.scopes.len(), camera.metadata_version.as_str()), ("x", 0, ""));
    assert_eq!(urls(camera), ["http://192.168.1.5/", "http://10.0.0.1/"]);
}

#[test]
fn match_without_wrapper_and_several_matches_are_accepted() {
    let url = "http://192.168.1.5/";
    let bare = in_body(&(one("urn:uuid:a", "", url) + &one("urn:uuid:b", "dn:NetworkVideoTransmitter", url)));
    assert_eq!(cameras(&bare).iter().map(|camera| camera.uuid.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let many: Vec<String> = (0..100).map(|n| one(&format!("uuid:{n}"), "tds:Device", url)).collect();
    assert_eq!(cameras(&matches(&many)).len(), MAX_MATCHES);
    let newer = reply("x", url).replace(DISCOVERY[0], DISCOVERY[1]);
    assert_eq!(cameras(&newer).len(), 1);
}

#[test]
fn other_messages_and_devices_are_ignored() {
    let url = "http://192.168.1.5/";
    let hello =
        in_body("<d:Hello><a:EndpointReference><a:Address>urn:uuid:a</a:Address></a:EndpointReference></d:Hello>");
    let elsewhere = reply("a", url).replace(DISCOVERY[0], "urn:something-else");
    let printer = matches(&[one("a", "wsdp:Device wprt:PrintDeviceType", url), one("b", "tds:DeviceX dn:Device", url)]);
    for message in [probe("urn:uuid:1"), hello, elsewhere, printer] {
        assert_eq!(read(message.as_bytes(), SENDER), [], "{message}");
    }
}

#[test]
fn types_are_compared_by_namespace() {
    let url = "http://192.168.1.5/";
    for types in ["dn:NetworkVideoTransmitter", "x:Y tds:Device", "nobody:NetworkVideoTransmitter", ""] {
        assert_eq!(cameras(&matches(&[one("a", types, url)])).len(), 1, "{types}");
    }
}

#[test]
fn bad_match_is_reported_and_others_are_kept() {
    let good = "http://192.168.1.5/";
    let message = matches(&[
        one(" ", "", good),
        one("a", "", ""),
        one("b", "", "http://127.0.0.1/ ftp://x/"),
        one("c", "", good),
    ]);
    let found = read(message.as_bytes(), SENDER);
    let expected: Vec<Result<&str, &ReplyError>> = found.iter().map(|r| r.as_ref().map(|c| c.uuid.as_str())).collect();
    assert_eq!(expected, [Err(&ReplyError::NoReference), Err(&ReplyError::NoUrl), Err(&ReplyError::NoUrl), Ok("c")]);
}

#[test]
fn references_ignore_prefix_and_case() {
    for (reference, name) in [
        ("urn:uuid:6821DC67-8438", Some("6821dc67-8438")),
        (" uuid:6821dc67\n", Some("6821dc67")),
        ("URN:UUID:A", Some("a")),
        ("urn:x-camera:9", Some("x-camera:9")),
        ("http://10.0.0.1/", Some("http://10.0.0.1/")),
        ("", None),
        ("urn:uuid:", None),
        ("a b", None),
        ("a\u{1b}[2J", None),
    ] {
        assert_eq!(uuid(reference).as_deref(), name, "{reference}");
    }
    assert_eq!(uuid(&"x".repeat(MAX_NAME)).map(|name| name.len()), Some(MAX_NAME));
    assert_eq!(uuid(&"x".repeat(MAX_NAME + 1)), None);
}

#[test]
fn answers_of_one_camera_are_merged() {
    let mut answers = Answers::default();
    let (wired, wireless) = ("http://192.168.1.5/onvif", "http://10.0.0.7/onvif");
    for urls in [wired, wired, wireless, wired] {
        answers.add(reply("urn:uuid:A", urls).as_bytes(), SENDER);
    }
    answers.add(reply("uuid:a", wireless).replace("type/ptz", "type/audio").as_bytes(), SENDER);
    answers.add(b"garbage", SENDER);
    answers.add(&[0xff; 20], SENDER);
    let [camera] = &answers.cameras().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!(urls(camera), [wired, wireless]);
    assert_eq!(camera.scopes.len(), 3);
    assert!(answers.contains("a"));
    assert_eq!(answers.skipped, 2);
    assert_eq!(answers.fault.unwrap().to_string(), "it is not UTF-8");
}

#[test]
fn camera_flood_is_bounded() {
    let mut answers = Answers::default();
    let sender = |number: usize| IpAddr::from([10, 0, (number / 250) as u8, (number % 250) as u8]);
    for number in 0..MAX_CAMERAS + 10 {
        answers.add(reply(&format!("urn:uuid:{number}"), "http://192.168.1.5/").as_bytes(), sender(number));
    }
    assert_eq!((answers.cameras().count(), answers.skipped), (MAX_CAMERAS, 10));
    let mut answers = Answers::default();
    let scopes = "x".repeat(MAX_NAME) + " ";
    for number in 0..MAX_CAMERAS {
        let message = reply(&format!("{number}"), "http://192.168.1.5/")
            .replace("onvif://www.onvif.org/name/A", &scopes.repeat(70));
        answers.add(message.as_bytes(), sender(number));
    }
    let kept: usize = answers.cameras().map(Camera::bytes).sum();
    assert!(kept <= MAX_BYTES + 64 * 1024, "{kept} bytes");
    assert_eq!(answers.fault, Some(ReplyError::TooMany));
}

#[test]
fn flood_of_one_host_leaves_room_for_others() {
    let mut answers = Answers::default();
    let mut add = |sender, uuid: String, scopes: usize| {
        let message = reply(&uuid, "http://192.168.1.5/").replace("onvif://www.onvif.org/name/A", &"x ".repeat(scopes));
        (0..3).for_each(|_| answers.add(message.as_bytes(), sender));
        answers.cameras().count()
    };
    let other = IpAddr::from([10, 0, 0, 1]);
    assert_eq!((0..300).map(|number| add(SENDER, number.to_string(), 0)).max(), Some(MAX_CAMERAS_OF_ONE));
    let before = (0..300).map(|number| add(other, format!("b{number}"), 64)).max().unwrap();
    assert!(before < 2 * MAX_CAMERAS_OF_ONE, "by their size");
    assert_eq!(add(IpAddr::from([10, 0, 0, 2]), "c".into(), 0), before + 1);
}

#[test]
fn probe_declares_the_prefix_of_its_types() {
    let message = probe("urn:uuid:1-2-3");
    let body = soap::body(message.as_bytes()).unwrap();
    let probe = body.child("Probe").unwrap();
    assert_eq!(probe.namespace, DISCOVERY[0]);
    assert_eq!(probe.text_at(&["Types"]), Some("{http://www.onvif.org/ver10/network/wsdl}NetworkVideoTransmitter"));
    let envelope = crate::xml::parse(message.as_bytes()).unwrap();
    assert_eq!(envelope.text_at(&["Header", "MessageID"]), Some("urn:uuid:1-2-3"));
    assert_eq!(envelope.text_at(&["Header", "Action"]), Some("http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe"));
}

proptest! {
    #[test]
    fn damaged_reply_causes_no_panic(position in 0usize..900, byte in any::<u8>(), cut in 0usize..900) {
        let mut bytes = reply("urn:uuid:a", "http://192.168.1.5/").into_bytes();
        if let Some(place) = bytes.get_mut(position) {
            *place = byte;
        }
        for found in read(&bytes, SENDER).into_iter().chain(read(&bytes[..cut.min(bytes.len())], SENDER)).flatten() {
            prop_assert!(!found.uuid.is_empty() && !found.urls.is_empty());
        }
    }
}
