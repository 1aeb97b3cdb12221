use super::*;
use crate::fixture::{Response, name};

const HALL: &str = "Hall._ipp._tcp.local";
const HALL_ID: &str = "hall._ipp._tcp.local";
const IPP: &str = "_ipp._tcp.local";
const ROOM: usize = 20;

fn details(more: &str) -> Details {
    Details::parse(Some(&format!(r#"{{"services": ["_ipp._tcp", "_http._tcp"]{more}}}"#))).unwrap()
}

/// All about a printer.
fn hall() -> Response {
    Response::new()
        .pointer(IPP, HALL, 4500)
        .service(HALL, 631, "hall.local", 120)
        .text(HALL, &[b"ty=Laser", b"duplex", b"TY-=x", b"ty_=y", b"id=\xff"], 4500)
        .address("hall.local", "2001:db8::7", 120)
        .address("hall.local", "192.0.2.7", 120)
}

fn known(names: &[&str]) -> Known {
    names.iter().map(|text| (name(text), Facts { has_text: true, has_one_kind: false })).collect()
}

/// The report of a round in which these datagrams came in.
fn round(details: &Details, known: &Known, responses: impl IntoIterator<Item = Response>) -> Report {
    let mut browser = Browser::new(details, known, 0);
    responses.into_iter().for_each(|response| browser.add(&response.bytes(), PORT));
    browser.report(0)
}

fn ids(report: &Report) -> Vec<&str> {
    report.devices.iter().map(|device| device.id.as_str()).collect()
}

fn asked(messages: Vec<Vec<Question>>) -> Vec<(String, Kind)> {
    messages.into_iter().flatten().map(|question| (question.name.to_string(), question.kind)).collect()
}

#[test]
fn complete_instance_becomes_a_device() {
    let report = round(&details(""), &Known::new(), [hall()]);
    let [device] = report.devices.as_slice() else { panic!("{report:?}") };
    let properties: Vec<String> = device.properties.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let expected = [
        "INSTANCE=Hall",
        "SERVICE=_ipp._tcp",
        "HOST=hall.local",
        "PORT=631",
        "ADDRESSES=192.0.2.7,2001:db8::7",
        "TXT_TY=Laser",
        "TXT_DUPLEX=",
        "TXT_TY_=x",
        "TXT_ID_HEX=ff",
    ];
    assert_eq!(properties, expected.map(|property| format!("MDNS_{property}")));
    assert_eq!((device.id.as_str(), &report.known), (HALL_ID, &known(&[HALL])));
    assert!(report.kept.is_empty() && report.notes.is_empty());
}

#[test]
fn records_may_come_in_any_order_and_message() {
    let parts = [
        Response::new().address("hall.local", "192.0.2.7", 120),
        Response::new().text(HALL, &[], 4500),
        Response::new().service("hall._IPP._tcp.local", 631, "HALL.local", 120),
        Response::new().pointer(IPP, HALL, 4500),
    ];
    assert_eq!(ids(&round(&details(""), &Known::new(), parts)), [HALL_ID]);
}

#[test]
fn open_questions_are_asked_again() {
    let (details, known) = (details(""), known(&["Silent._http._tcp.local", "Foreign._x._tcp.local"]));
    let mut browser = Browser::new(&details, &known, 0);
    assert_eq!(asked(browser.browsing()), [("_http._tcp.local".into(), Kind::Pointer), (IPP.into(), Kind::Pointer)]);
    let silent = ("Silent._http._tcp.local".to_owned(), Kind::Service);
    assert_eq!(asked(browser.open(ROOM)), std::slice::from_ref(&silent));
    browser.add(&Response::new().pointer(IPP, HALL, 9).bytes(), PORT);
    let open = [silent.clone(), (HALL.into(), Kind::Service), (HALL.into(), Kind::Text)];
    assert_eq!(asked(browser.open(ROOM)), open);
    browser.add(&Response::new().service(HALL, 631, "hall.local", 9).bytes(), PORT);
    let open = [
        silent.clone(),
        ("hall.local".into(), Kind::Ipv4),
        ("hall.local".into(), Kind::Ipv6),
        (HALL.into(), Kind::Text),
    ];
    assert_eq!(asked(browser.open(ROOM)), open);
    browser.add(&hall().bytes(), PORT);
    assert_eq!(asked(browser.open(ROOM)), [silent]);
    browser.add(&Response::new().service("Silent._http._tcp.local", 80, "hall.local", 9).bytes(), PORT);
    assert_eq!(asked(browser.open(ROOM)), [("Silent._http._tcp.local".into(), Kind::Text)]);
}

#[test]
fn second_kind_of_address_is_waited_for_once() {
    let ipv4 = || {
        let bare = Response::new().pointer(IPP, HALL, 9).service(HALL, 1, "hall.local", 9).text(HALL, &[], 9);
        bare.address("hall.local", "192.0.2.7", 9)
    };
    let waiting = |known: &Known| {
        let details = details("");
        let mut browser = Browser::new(&details, known, 0);
        browser.add(&ipv4().bytes(), PORT);
        let waiting = [(); 3].map(|()| {
            let is_waiting = browser.is_waiting();
            assert_eq!(asked(browser.open(ROOM)), [("hall.local".into(), Kind::Ipv6)]);
            is_waiting
        });
        (waiting, browser.report(0).known)
    };
    let (new, after) = waiting(&Known::new());
    assert_eq!(new, [true, true, false], "it may have both, until two questions have no answer");
    assert_eq!(waiting(&known(&[HALL])).0, new, "it had both");
    let (again, after) = waiting(&after);
    assert_eq!((again, waiting(&after).0), ([false; 3], [false; 3]), "it had one before");
    let details = details("");
    let mut browser = Browser::new(&details, &after, 0);
    browser.add(&hall().bytes(), PORT);
    assert!(!browser.is_waiting() && !browser.report(0).known[&name(HALL)].has_one_kind, "now it has both");
}

#[test]
fn incomplete_instance_is_kept() {
    for (response, missing) in [
        (Response::new().pointer(IPP, HALL, 9), "port and host, or TXT record"),
        (Response::new().pointer(IPP, HALL, 9).service(HALL, 1, "hall.local", 9), "port and host, or TXT record"),
        (
            Response::new().pointer(IPP, HALL, 9).service(HALL, 1, "hall.local", 9).text(HALL, &[], 9),
            "address of its host hall.local",
        ),
    ] {
        let report = round(&details(""), &Known::new(), [response]);
        assert_eq!((report.devices.len(), report.kept.as_slice()), (0, &[HALL_ID.to_owned()][..]));
        assert_eq!(report.notes[0].message, format!("the service was found, but not its {missing}"));
        assert!(report.known.contains_key(&name(HALL)));
    }
}

#[test]
fn service_without_text_is_complete() {
    let bare = || Response::new().pointer(IPP, HALL, 9).service(HALL, 1, "hall.local", 9);
    let report = |known: &Known, dropped| {
        let details = details("");
        let mut browser = Browser::new(&details, known, 0);
        browser.add(&bare().address("hall.local", "192.0.2.7", 9).bytes(), PORT);
        assert_eq!(browser.report(0).kept, [HALL_ID], "its record was not asked for");
        browser.open(ROOM);
        assert_eq!(browser.report(0).kept, [HALL_ID], "it was asked for once");
        browser.open(ROOM);
        browser.report(dropped)
    };
    let first = report(&Known::new(), 0);
    assert_eq!((ids(&first), first.notes.len()), (vec![HALL_ID], 0));
    assert_eq!(ids(&report(&first.known, 0)), [HALL_ID], "the next round, too");
    assert_eq!(report(&Known::new(), 1).kept, [HALL_ID], "the answer may be lost");
    assert_eq!(report(&known(&[HALL]), 0).kept, [HALL_ID], "it had one before");
}

#[test]
fn silent_instance_is_gone_unless_responses_were_lost() {
    let (details, known) = (details(""), known(&[HALL]));
    let mut browser = Browser::new(&details, &known, 0);
    for asked in 0..ENOUGH_QUESTIONS {
        assert_eq!(browser.report(0).kept, [HALL_ID], "{asked}");
        browser.open(ROOM);
    }
    assert_eq!(browser.report(0), Report::default());
    let lossy = browser.report(1);
    assert_eq!((lossy.kept, lossy.known), (vec![HALL_ID.to_owned()], known));
    assert_eq!(lossy.notes[0].reason, "ResponsesDropped");
}

#[test]
fn silent_instances_are_gone_only_after_questions() {
    let names: Vec<String> = (0..3 * ROOM).map(|number| format!("{number}._ipp._tcp.local")).collect();
    let (details, all) = (details(""), known(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let mut browser = Browser::new(&details, &all, 0);
    let mut asked: BTreeMap<Name, u32> = BTreeMap::new();
    for _ in 0..3 {
        browser.open(ROOM).into_iter().flatten().for_each(|question| *asked.entry(question.name).or_default() += 1);
    }
    let kept = browser.report(0).known;
    let gone: Vec<&Name> = all.keys().filter(|name| !kept.contains_key(*name)).collect();
    assert_eq!(gone.len(), ROOM, "some go in each round");
    assert!(gone.iter().all(|name| asked[*name] >= ENOUGH_QUESTIONS));
}

/// A peer as Avahi is: a response has no room for more than the answer to the first question.
#[test]
fn services_of_one_peer_with_short_responses_are_not_lost() {
    let names: Vec<String> = (0..50).map(|number| format!("{number}._ipp._tcp.local")).collect();
    let (details, all) = (details(""), known(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let answer = |question: &Question| match question.kind {
        Kind::Service => Response::new().service(&question.name.to_string(), 631, "hall.local", 9),
        Kind::Text => Response::new().text(&question.name.to_string(), &[], 9),
        _ => Response::new().address("hall.local", "192.0.2.7", 9),
    };
    for start in 0..50 {
        let mut browser = Browser::new(&details, &all, start);
        let mut first = browser.open(ROOM);
        assert_eq!(first[0][0].name, *all.keys().nth(start).unwrap());
        for _ in 0..3 {
            first.iter().for_each(|questions| browser.add(&answer(&questions[0]).bytes(), PORT));
            first = browser.open(ROOM);
        }
        let report = browser.report(0);
        assert_eq!(report.known.keys().collect::<Vec<_>>(), all.keys().collect::<Vec<_>>());
        assert_eq!(report.devices.len() + report.kept.len(), 50);
    }
}

#[test]
fn flood_of_names_is_bounded_over_rounds() {
    let (details, mut known) = (details(""), known(&[HALL]));
    for round in 0..3 {
        let mut browser = Browser::new(&details, &known, 0);
        for n in 0..MAX_INSTANCES {
            let name = format!("{round}-{n}._ipp._tcp.local");
            let response =
                Response::new().pointer(IPP, &name, 9).service(&name, 1, "hall.local", 9).text(&name, &[], 9);
            browser.add(&response.bytes(), PORT);
        }
        browser.add(&hall().bytes(), PORT);
        let report = browser.report(0);
        assert!(report.known.len() <= MAX_INSTANCES && report.devices.len() + report.kept.len() <= MAX_INSTANCES);
        assert!(ids(&report).contains(&HALL_ID), "those of the last round have their place");
        known = report.known;
    }
}

#[test]
fn addresses_do_not_depend_on_their_order() {
    let address = |n: usize| format!("192.0.2.{n}");
    let parts = |order: Vec<usize>| {
        let addresses = order.into_iter().map(|n| Response::new().address("hall.local", &address(n), 9));
        let response = [hall(), Response::new().address("hall.local", "fe80::1", 9)]
            .into_iter()
            .chain([Response::new().address("hall.local", "169.254.1.1", 9)])
            .chain(addresses)
            .collect::<Vec<_>>();
        round(&details(""), &Known::new(), response).devices[0].properties.clone()
    };
    let (up, down) = (parts((1..40).collect()), parts((1..40).rev().collect()));
    assert_eq!(up, down);
    assert!(up.iter().all(|(_, value)| !value.contains("fe80") && !value.contains("169.254")), "{up:?}");
}

#[test]
fn goodbye_removes_an_instance() {
    let goodbyes = [Response::new().pointer(IPP, HALL, 0), Response::new().service(HALL, 631, "hall.local", 0)];
    for goodbye in goodbyes {
        let (details, known) = (details(""), known(&[HALL]));
        let mut browser = Browser::new(&details, &known, 0);
        browser.add(&hall().bytes(), PORT);
        browser.add(&goodbye.bytes(), PORT);
        assert_eq!(browser.report(0).kept, [HALL_ID], "anybody can send a goodbye");
        assert_eq!(asked(browser.open(ROOM)), [(HALL.to_owned(), Kind::Service)]);
        assert_eq!(browser.report(0).kept, [""; 0], "it does not answer");
        browser.add(&hall().bytes(), PORT);
        assert_eq!(ids(&browser.report(0)), [HALL_ID], "it is back");
    }
    let moved = Response::new().address("hall.local", "192.0.2.7", 0);
    let report = round(&details(""), &Known::new(), [hall(), moved]);
    assert!(report.devices[0].properties.contains(&("MDNS_ADDRESSES".into(), "2001:db8::7".into())));
}

#[test]
fn filters_select_by_name_and_text() {
    let attic = "Attic._ipp._tcp.local";
    let both = || {
        [
            hall(),
            Response::new().pointer(IPP, attic, 9).service(attic, 631, "hall.local", 9).text(attic, &[b"ty=Ink"], 9),
        ]
    };
    for (filter, expected) in [
        ("", &["attic._ipp._tcp.local", HALL_ID][..]),
        (r#", "instances": {"items": ["h*"]}"#, &[HALL_ID]),
        (r#", "instances": {"action": "Exclude", "items": ["HALL"]}"#, &["attic._ipp._tcp.local"]),
        (r#", "txt": {"items": ["TY=Las*", "x"]}"#, &[HALL_ID]),
        (r#", "txt": {"action": "Exclude", "items": ["duplex"]}"#, &["attic._ipp._tcp.local"]),
    ] {
        let report = round(&details(filter), &known(&[attic]), both());
        assert_eq!((ids(&report), report.kept.len()), (expected.to_vec(), 0), "{filter}");
    }
}

#[test]
fn service_with_port_zero_is_left_out() {
    let (details, known) = (details(""), known(&[HALL]));
    let mut browser = Browser::new(&details, &known, 0);
    browser.add(&Response::new().pointer(IPP, HALL, 9).service(HALL, 0, "hall.local", 9).bytes(), PORT);
    assert!(!browser.is_waiting());
    let report = browser.report(0);
    assert_eq!((report.devices.len(), report.kept.len(), report.known.len()), (0, 0, 0));
    assert_eq!((report.notes[0].origin.as_str(), report.notes[0].reason), (HALL, FILTERED));
}

#[test]
fn subtype_lists_its_own_instances_only() {
    let details = Details::parse(Some(r#"{"services": ["_color._sub._ipp._tcp"]}"#)).unwrap();
    let colour = Response::new().pointer("_color._sub._ipp._tcp.local", HALL, 9);
    assert!(round(&details, &Known::new(), [hall()]).devices.is_empty());
    assert_eq!(ids(&round(&details, &Known::new(), [hall(), colour])), [HALL_ID]);
    let known = known(&[HALL]);
    let mut browser = Browser::new(&details, &known, 0);
    (0..ENOUGH_QUESTIONS).for_each(|_| drop(browser.open(ROOM)));
    browser.add(&hall().bytes(), PORT);
    assert_eq!(browser.report(0), Report::default(), "it answers, and has lost the subtype");
}

#[test]
fn responses_of_others_are_ignored() {
    let foreign = [
        Response::new().pointer("_x._tcp.local", "Hall._x._tcp.local", 9),
        Response::new().pointer(IPP, "Hall._x._tcp.local", 9),
        Response::new().pointer("_http._tcp.local", HALL, 9),
        Response::new().pointer(IPP, IPP, 9),
    ];
    assert_eq!(round(&details(""), &Known::new(), foreign), Report::default());
    let (details, known) = (details(""), Known::new());
    let mut browser = Browser::new(&details, &known, 0);
    browser.add(&hall().bytes(), 4000);
    assert_eq!(browser.report(0), Report::default(), "from another port");
    browser.add(&[0, 0, 0x84, 0, 0], PORT);
    assert_eq!(
        browser.report(0).notes[0].message,
        "1 responses were skipped; the defect of the last: it ends within a record"
    );
}

#[test]
fn flood_of_instances_displaces_no_known_one() {
    let (details, known) = (details(""), known(&[HALL, "Silent._ipp._tcp.local"]));
    let mut browser = Browser::new(&details, &known, 0);
    for number in 0..2 * MAX_INSTANCES {
        let fake = format!("fake-{number}._ipp._tcp.local");
        let response = Response::new().pointer(IPP, &fake, 9).service(&fake, 1, "fake.local", 9);
        browser.add(&response.bytes(), PORT);
    }
    browser.add(&hall().bytes(), PORT);
    assert!(browser.open(ROOM).len() <= ROOM);
    let report = browser.report(0);
    assert_eq!(ids(&report), [HALL_ID]);
    assert!(report.kept.contains(&"silent._ipp._tcp.local".to_owned()), "it may be among those ignored");
    assert!(report.notes.iter().any(|note| note.reason == "TooManyServices"));
}
