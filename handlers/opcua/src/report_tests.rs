use super::*;
use crate::fixture::{ApplicationType, application, endpoint, endpoints, one_endpoint, servers};
use crate::status::Status;
use crate::world::{
    A, Answers, B, Behaviour, Fails, LDS, OTHER_LDS, World, found, is, lists, lists_all, notes, responds,
};

#[test]
fn server_answering_nonsense_is_absent() {
    let empty = responds(endpoints(vec![]));
    let world = World::new([(LDS, lists(&[("urn:a", A), ("urn:b", B)])), (A, empty), (B, responds(vec![1]))]);
    let report = world.run(&[LDS]).unwrap();
    assert!(report.devices.is_empty() && report.notes.is_empty());
    assert!(report.remarks[0].ends_with("it offers no endpoint"), "{}", report.remarks[0]);
    assert!(report.remarks[1].ends_with("its response can't be read: it ends in the middle of a value"));
}

#[test]
fn refused_server_is_a_missing_grant() {
    let refused = Fails(Error::NotGranted("TCP to 192.0.2.1:4841 (grants.tcp)".into()));
    let report = World::new([(LDS, lists(&[("urn:a", A)])), (A, refused)]).run(&[LDS]).unwrap();
    let message = format!("'urn:a' is listed, but was not found: {A}: not granted: TCP to 192.0.2.1:4841 (grants.tcp)");
    assert_eq!(notes(&report), [(0, "NotGranted", message.as_str())]);
    assert!(report.remarks.is_empty() && report.kept.is_empty());
}

#[test]
fn unreachable_server_is_no_missing_grant() {
    let refused = Fails(Error::NotGranted("TCP to 169.254.3.4:4841 (grants.tcp)".into()));
    let (other, named) = ("opc.tcp://169.254.3.4:4841/", "opc.tcp://plc:4841/");
    let listed = |urls: &[&str]| lists_all(vec![application(ApplicationType::Server, "urn:a", "A", urls)]);
    let report = World::new([(LDS, listed(&[A, other])), (other, refused.clone())]).run(&[LDS]).unwrap();
    assert_eq!((report.notes.len(), report.remarks.len()), (0, 1), "one of its addresses is elsewhere");
    let unknown = Fails(Error::NameNotResolved("plc".into()));
    let beside = ("opc.tcp://192.0.2.7:4841/", refused.clone());
    let world = World::new([(LDS, listed(&[named, other])), (other, refused), (named, unknown), beside]);
    assert_eq!(world.run(&[LDS]).unwrap().notes[0].reason, "NotGranted");
}

#[test]
fn unqueried_server_is_kept() {
    let world =
        World::new([(LDS, lists(&[("urn:a", A), ("urn:b", B)])), (A, Fails(Error::NotReached)), (B, is("urn:b"))]);
    let report = world.run(&[LDS]).unwrap();
    assert_eq!((found(&report), report.kept.clone()), (vec![("urn:b", 0, B)], BTreeSet::from([0])));
}

fn refuses(status: u32) -> Behaviour {
    Fails(Error::Refused(Status(status).into()))
}

const REJECTED: u32 = 0x8055_0000;
const TOO_BUSY: u32 = 0x807D_0000;
const NO_SUCH_URL: u32 = 0x8083_0000;

#[test]
fn server_refusing_insecure_sessions_is_present() {
    let named = "opc.tcp://plc:4841/";
    let report = World::new([(LDS, lists(&[("urn:a", named)])), (named, refuses(REJECTED))]).run(&[LDS]).unwrap();
    assert_eq!((found(&report), report.kept.len(), report.notes.len()), (vec![("urn:a", 0, named)], 0, 0));
    let remark = "'urn:a' is there, but does not say who it is: opc.tcp://plc:4841/: it answers BadSecurityPolicyRejected; \
                  opc.tcp://192.0.2.7:4841/: connection refused";
    assert_eq!(report.remarks, [remark]);
    let (lds, beside) = (lists(&[("urn:a", named)]), "opc.tcp://192.0.2.7:4841/");
    let world = World::new([(LDS, lds), (named, refuses(REJECTED)), (beside, is("urn:a"))]);
    assert_eq!(found(&world.run(&[LDS]).unwrap()), [("urn:a", 0, beside)], "who proves it counts more");
    let report = World::new([(LDS, lists(&[("urn:a", A)])), (A, refuses(NO_SUCH_URL))]).run(&[LDS]).unwrap();
    assert_eq!((found(&report), report.remarks.len()), (vec![], 1), "that is another one");
}

#[test]
fn ambiguous_silent_servers_change_nothing() {
    let lds = lists(&[("urn:new", A), ("urn:old", A), ("urn:b", B)]);
    let report = World::new([(LDS, lds), (A, refuses(REJECTED)), (B, is("urn:b"))]).run(&[LDS]).unwrap();
    assert_eq!((found(&report), report.kept.clone()), (vec![("urn:b", 0, B)], BTreeSet::from([0])));
    let note =
        "'urn:old' and 'urn:new' are listed at opc.tcp://192.0.2.1:4841/, where nobody says without security who it is";
    assert_eq!(notes(&report), [(0, "Ambiguous", note)]);
}

#[test]
fn server_without_free_connections_is_kept() {
    for busy in [refuses(TOO_BUSY), Fails(Error::BrokenOff)] {
        let lds = lists(&[("urn:a", A), ("urn:b", B)]);
        let report = World::new([(LDS, lds), (A, busy), (B, is("urn:b"))]).run(&[LDS]).unwrap();
        assert_eq!((found(&report), report.kept.clone()), (vec![("urn:b", 0, B)], BTreeSet::from([0])));
        let note = "1 of the servers listed there have no connection left to say who they are";
        assert_eq!(notes(&report), [(0, "Busy", note)]);
    }
}

#[test]
fn unreachable_address_is_reported() {
    let nowhere = application(ApplicationType::Server, "urn:web", "web", &["https://plc/"]);
    let report = World::new([(LDS, lists_all(vec![nowhere]))]).run(&[LDS]).unwrap();
    assert_eq!(report.remarks, ["'urn:web' is listed, but was not found: it has no URL of opc.tcp"]);
}

#[test]
fn servers_with_the_same_uri_are_merged_and_reported() {
    let plc = |url: &str| {
        Answers(servers(vec![application(ApplicationType::Server, "urn:plc", "PLC", &[url])]), one_endpoint("urn:plc"))
    };
    let report = World::new([(A, plc(A)), (B, plc(B))]).run(&[A, B]).unwrap();
    assert_eq!(found(&report), [("urn:plc", 0, A)]);
    let note = "who is at opc.tcp://192.0.2.1:4841/ and who is at opc.tcp://192.0.2.2:4841/ both say they are 'urn:plc': they \
                are one device; give them URIs of their own, or set identifyBy: Url";
    assert_eq!(notes(&report), [(0, "DuplicateApplicationUri", note)]);
}

#[test]
fn oversized_devices_are_kept() {
    let url = |number: usize| format!("opc.tcp://10.0.{}.{}:4841/", number / 250, number % 250);
    let listed = |number| application(ApplicationType::Server, "", "", &[&url(number)]);
    let server_of = |number| {
        let server = application(ApplicationType::Server, &format!("urn:{number}"), &"n".repeat(9000), &[]);
        responds(endpoints(vec![endpoint(server, "None", &[])]))
    };
    let mut world = World::new([(LDS, lists_all((0..2500).map(listed).collect()))]);
    world.servers.extend((0..2500).map(|number| (url(number), server_of(number))));
    let report = world.run(&[LDS]).unwrap();
    let size: usize = report.devices.iter().map(Device::size).sum();
    assert!((7 << 20..=8 << 20).contains(&size), "{size}");
    let left = 2500 - report.devices.len();
    let note = format!("{left} of the servers listed there were not taken: the memory of the round was used up");
    assert_eq!((notes(&report), report.kept.clone()), (vec![(0, "NoRoom", note.as_str())], BTreeSet::from([0])));
}

#[test]
fn devices_beyond_the_limit_are_kept() {
    let url = |number: usize| format!("opc.tcp://10.0.{}.{}:4841/", number / 250, number % 250);
    let list = |range: std::ops::Range<usize>| {
        let entry = |number: usize| application(ApplicationType::Server, &format!("urn:{number}"), "", &[&url(number)]);
        lists_all(range.map(entry).collect())
    };
    let mut world = World::new([(LDS, list(0..2500)), (OTHER_LDS, list(2500..5000))]);
    world.servers.extend((0..5000).map(|number| (url(number), is(&format!("urn:{number}")))));
    let report = world.run(&[LDS, OTHER_LDS]).unwrap();
    assert_eq!((report.devices.len(), report.kept.clone()), (4096, BTreeSet::from([0, 1])));
    let note = "452 of the servers listed there were not taken: the memory of the round was used up";
    assert_eq!(notes(&report), [(0, "NoRoom", note), (1, "NoRoom", note)]);
}

#[test]
fn earlier_device_wins_over_an_oversized_duplicate() {
    let device = |id: &str, origin, size: usize| Device {
        id: id.into(),
        origin,
        lists_itself: false,
        properties: vec![("", "x".repeat(size))],
    };
    let mut findings = Findings::default();
    findings.add_device(device("urn:a", 1, 1), &[1]);
    findings.add_device(device("urn:b", 1, MAX_BYTES - 100), &[1]);
    findings.add_device(device("urn:a", 0, 200), &[0]);
    findings.add_device(device("urn:a", 0, 10), &[0]);
    findings.add_device(device("urn:a", 2, 1), &[2]);
    let report = findings.report();
    let found: Vec<(&str, usize)> = report.devices.iter().map(|device| (device.id.as_str(), device.origin)).collect();
    assert_eq!((found, report.kept), (vec![("urn:a", 0), ("urn:b", 1)], BTreeSet::from([0])));
}
