use std::collections::BTreeSet;

use super::*;
use crate::details::IdentifyBy;
use crate::fixture::{ApplicationType, application, one_endpoint, servers};
use crate::world::{
    A, Answers, B, Fails, IsSilent, LATENCY, LDS, OTHER_LDS, World, found, is, lists, lists_all, notes,
};

#[test]
fn listed_and_reachable_server_is_a_device() {
    let listed = lists(&[("urn:b", B), ("urn:a", A), ("urn:stale", "opc.tcp://192.0.2.3:1"), ("urn:before", A)]);
    let report = World::new([(LDS, listed), (A, is("urn:a")), (B, is("urn:b"))]).run(&[LDS]).unwrap();
    assert_eq!(found(&report), [("urn:a", 0, A), ("urn:b", 0, B)]);
    assert_eq!((report.notes.len(), report.kept.len()), (0, 0));
    let remarks = [
        "'urn:before' is listed, but was not found: opc.tcp://192.0.2.1:4841/: the server there is 'urn:a'",
        "'urn:stale' is listed, but was not found: opc.tcp://192.0.2.3:1: connection refused",
    ];
    assert_eq!(report.remarks, remarks);
}

#[test]
fn dead_discovery_server_is_named_and_its_servers_kept() {
    let dead = "opc.tcp://192.0.2.9:4840/";
    let world = World::new([(LDS, lists(&[("urn:a", A)])), (A, is("urn:a")), (OTHER_LDS, IsSilent)]);
    let report = world.run(&[dead, LDS, OTHER_LDS]).unwrap();
    assert_eq!(found(&report), [("urn:a", 1, A)]);
    assert_eq!(report.kept, BTreeSet::from([0, 2]));
    let refused = (0, "Unreachable", "connection refused");
    assert_eq!(notes(&report), [refused, (2, "TimedOut", "no answer within 10 s")]);
    assert_eq!(report.silent, BTreeSet::from([0, 2]));
}

#[test]
fn round_fails_without_any_answer() {
    let refused = Fails(Error::NotGranted("TCP".into()));
    let mut world = World::new([(LDS, refused)]);
    let not_granted = "opc.tcp://192.0.2.7:4840/: not granted: TCP".to_owned();
    assert_eq!(world.run(&[LDS]), Err(Failure::NotGranted(not_granted.clone())));
    let unknown = || Fails(Error::NameNotResolved("plc".into()));
    world.servers.insert(OTHER_LDS.to_owned(), unknown());
    let both = format!("{not_granted}; {OTHER_LDS}: the name 'plc' does not resolve");
    assert_eq!(world.run(&[LDS, OTHER_LDS]), Err(Failure::Unavailable(both)));
    assert_eq!(world.run(&[]), Ok(Report::default()), "who asks for nothing gets it");
    let many: Vec<String> = (0..11).map(|port| format!("opc.tcp://192.0.2.9:{}/", port + 1)).collect();
    world.servers.extend(many.iter().map(|url| (url.clone(), unknown())));
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let Err(Failure::Unavailable(message)) = world.run(&many) else { panic!("no failure") };
    assert!(message.ends_with("opc.tcp://192.0.2.9:8/: the name 'plc' does not resolve; and 3 more"), "{message}");
}

#[test]
fn silent_server_that_listed_only_itself_is_gone() {
    let dead = World::new([]).run(&[LDS]).unwrap();
    assert_eq!((dead.kept, dead.silent), (BTreeSet::from([0]), BTreeSet::from([0])));
    assert_eq!(dead.notes.len(), 1);
    for unknown in [Error::NameNotResolved("plc".into()), Error::NotReached, Error::NoRoom, Error::BrokenOff] {
        let world = World::new([(LDS, Fails(unknown)), (OTHER_LDS, lists(&[]))]);
        let report = world.run(&[LDS, OTHER_LDS]).unwrap();
        assert_eq!((report.kept, report.silent), (BTreeSet::from([0]), BTreeSet::new()), "it may be there");
    }
}

#[test]
fn servers_of_one_uri_are_devices_of_their_own_by_url() {
    let sdk = |url: &str| {
        let itself = servers(vec![application(ApplicationType::Server, "urn:sdk", "SDK", &[url])]);
        Answers(itself, one_endpoint("urn:sdk"))
    };
    let world = World::new([(A, sdk(A)), (B, sdk(B))]);
    let report = world.run_by(IdentifyBy::Url, 0, &[A, B]).unwrap();
    assert_eq!(found(&report), [(A, 0, A), (B, 1, B)]);
    assert_eq!(notes(&report), []);
}

#[test]
fn server_alone_at_its_discovery_url_lists_itself() {
    let alone = |kind, url: &str| servers(vec![application(kind, "urn:a", "A", &[url])]);
    let named = "opc.tcp://plc:4840/";
    for (list, endpoints_there, url, expected) in [
        (alone(ApplicationType::Server, LDS), "urn:a", LDS, true),
        (alone(ApplicationType::ClientAndServer, named), "urn:a", named, true),
        (alone(ApplicationType::Server, A), "urn:lds", A, false), // a discovery server with one entry
    ] {
        let world = World::new([(url, is("urn:a")), (LDS, Answers(list, one_endpoint(endpoints_there)))]);
        let report = world.run(&[LDS]).unwrap();
        assert_eq!(found(&report), [("urn:a", 0, url)]);
        assert_eq!(report.devices[0].lists_itself, expected, "{url}");
    }
    let listed = World::new([(LDS, lists(&[("urn:a", A)])), (A, is("urn:a"))]).run(&[LDS]).unwrap();
    assert!(!listed.devices[0].lists_itself);
}

#[test]
fn unresolvable_name_is_tried_at_the_discovery_server() {
    let (named, beside) = ("opc.tcp://plc:4841/x", "opc.tcp://192.0.2.7:4841/x");
    let unknown = Fails(Error::NameNotResolved("plc".into()));
    for error in [unknown, Fails(Error::NotReached)] {
        let world = World::new([(LDS, lists(&[("urn:a", named)])), (named, error), (beside, is("urn:a"))]);
        assert_eq!(found(&world.run(&[LDS]).unwrap()), [("urn:a", 0, beside)]);
        assert_eq!(*world.asked.borrow(), [LDS, named, beside]);
    }
    let world = World::new([(LDS, lists(&[("urn:a", named)])), (named, Fails(Error::NotReached))]);
    assert_eq!(world.run(&[LDS]).unwrap().kept, BTreeSet::from([0]), "who is at the name is not known");
}

#[test]
fn forwarded_server_is_found_at_the_listing_address() {
    let (inside, outside) = ("opc.tcp://172.17.0.2:4841/", "opc.tcp://192.0.2.7:14841/");
    let itself = servers(vec![application(ApplicationType::Server, "urn:a", "A", &[inside])]);
    let world = World::new([(outside, Answers(itself, one_endpoint("urn:a")))]);
    assert_eq!(found(&world.run(&[outside]).unwrap()), [("urn:a", 0, outside)]);
    assert_eq!(*world.asked.borrow(), [outside, inside, outside]);
}

#[test]
fn localhost_of_another_machine_is_not_ours() {
    let (local, beside) = ("opc.tcp://localhost:4841/", "opc.tcp://192.0.2.7:4841/");
    let world = World::new([(LDS, lists(&[("urn:a", local)])), (local, is("urn:mine")), (beside, is("urn:a"))]);
    assert_eq!(found(&world.run(&[LDS]).unwrap()), [("urn:a", 0, beside)]);
}

#[test]
fn server_listed_twice_stays_when_one_list_is_lost() {
    let both = || [(LDS, lists(&[("urn:a", A)])), (OTHER_LDS, lists(&[("urn:a", A)])), (A, is("urn:a"))];
    let report = World::new(both()).run(&[LDS, OTHER_LDS]).unwrap();
    assert_eq!(found(&report), [("urn:a", 0, A)]);
    for (lost, origin) in [(LDS, 1), (OTHER_LDS, 0)] {
        let report = World::new(both().into_iter().filter(|(url, _)| *url != lost)).run(&[LDS, OTHER_LDS]).unwrap();
        assert_eq!(found(&report), [("urn:a", origin, A)]);
        assert_eq!(report.kept, BTreeSet::from([1 - origin]));
    }
}

#[test]
fn servers_without_uri_are_identified_by_url() {
    let listed = lists(&[("", A), ("", B), ("", "opc.tcp://localhost:4841/"), ("", A)]);
    let local = ("opc.tcp://localhost:4841/", is("urn:c"));
    let report = World::new([(LDS, listed), (A, is("")), (B, is("urn:c")), local]).run(&[LDS]).unwrap();
    assert_eq!(found(&report), [(A, 0, A), ("urn:c", 0, B)], "ids are unique");
}

#[test]
fn urls_of_a_server_share_its_time() {
    let listed = lists_all(vec![application(ApplicationType::Server, "urn:a", "A", &["opc.tcp://plc:1", A])]);
    let world = World::new([(LDS, listed), ("opc.tcp://plc:1", IsSilent), ("opc.tcp://192.0.2.7:1", IsSilent)]);
    let report = world.run(&[LDS]).unwrap();
    let message = "'urn:a' is listed, but was not found: opc.tcp://plc:1: no answer within 1 s; opc.tcp://192.0.2.1:4841/: \
                   connection refused; opc.tcp://192.0.2.7:1: no answer within 2 s";
    assert_eq!(report.remarks, [message]);
    assert_eq!(world.now.get(), LATENCY + CHECK);
}

/// A discovery server with that many entries nobody answers for, and one more in the middle of them.
fn crowd(silent: usize) -> World {
    let url = |number: usize| format!("opc.tcp://10.0.{}.{}:4841/", number / 250, number % 250);
    let entries: Vec<(String, String)> = (0..=silent).map(|number| (format!("urn:{number}"), url(number))).collect();
    let entry = |(uri, url): &(String, String)| application(ApplicationType::Server, uri, uri, &[url]);
    let mut world = World::new([(LDS, lists_all(entries.iter().map(entry).collect()))]);
    world.servers.extend(entries.iter().map(|(_, url)| (url.clone(), IsSilent)));
    let there = silent / 2;
    world.servers.insert(url(there), is(&format!("urn:{there}")));
    world
}

#[test]
fn concurrent_dials_are_bounded() {
    let world = crowd(100);
    assert_eq!(world.run(&[LDS]).unwrap().devices.len(), 1);
    assert_eq!(world.most_flying.get(), CHECKS_IN_FLIGHT);
    let rounds_of_checks = u32::try_from(100usize.div_ceil(CHECKS_IN_FLIGHT)).unwrap();
    assert!(world.now.get() <= LATENCY * 3 + CHECK * rounds_of_checks, "{:?}", world.now.get());
}

#[test]
fn time_per_server_shrinks_with_their_number() {
    let world = crowd(1500);
    let report = world.run(&[LDS]).unwrap();
    assert_eq!((report.devices.len(), report.kept.len()), (1, 0), "1,500 machines that are switched off hide nobody");
    assert!(world.remaining() >= RESERVE);
}

#[test]
fn unreached_server_is_kept_and_tried_in_a_later_round() {
    let report = crowd(4000).run(&[LDS]).unwrap();
    assert!(report.devices.is_empty(), "{:?}", report.devices);
    assert_eq!(report.kept, BTreeSet::from([0]));
    let asked = 32 * (59_000 / 1200);
    let note = format!(
        "{} of the servers listed there were not asked: no name server answered, or the time or the connections of the round were used up",
        4001 - asked
    );
    assert_eq!(notes(&report), [(0, "NotReached", note.as_str())]);
    for start in [700, 1000, 2000] {
        let world = crowd(4000);
        assert_eq!(world.run_from(start, &[LDS]).unwrap().devices.len(), 1, "{start}");
        assert!(world.remaining() >= RESERVE);
    }
}

#[test]
fn silent_discovery_servers_use_half_of_the_round() {
    let silent: Vec<String> = (0..200).map(|number| format!("opc.tcp://10.0.0.{number}:4840/")).collect();
    let mut world = World::new([(LDS, lists(&[("urn:a", A)])), (A, is("urn:a"))]);
    world.servers.extend(silent.iter().map(|url| (url.clone(), IsSilent)));
    let urls: Vec<&str> = silent.iter().map(String::as_str).chain([LDS]).collect();
    let report = world.run(&urls).unwrap();
    assert_eq!(found(&report), [("urn:a", 200, A)]);
    assert_eq!((report.kept.len(), report.notes.len()), (200, 200));
    assert!(report.notes.iter().all(|note| note.message == "no answer within 2.3 s"), "{:?}", report.notes);
    assert!(world.remaining() >= Duration::from_secs(29), "{:?}", world.remaining());
}

#[test]
fn discovery_server_listing_only_itself_is_asked_again() {
    let entry = |uri: &str, url: &str| application(ApplicationType::Server, uri, uri, &[url]);
    let mirrored = servers(vec![entry("urn:lds", LDS), entry("urn:a", LDS), entry("urn:b", LDS)]);
    let registered = servers(vec![entry("urn:a", A), entry("urn:b", B)]);
    let world = World::new([(LDS, Answers(mirrored, registered)), (A, is("urn:a")), (B, is("urn:b"))]);
    assert_eq!(found(&world.run(&[LDS]).unwrap()), [("urn:a", 0, A), ("urn:b", 0, B)]);
}

#[test]
fn discovery_server_is_not_a_device() {
    let itself = application(ApplicationType::Server, "urn:lds", "LDS", &[LDS]);
    let endpoint = application(ApplicationType::DiscoveryServer, "urn:lds", "LDS", &[]);
    let endpoints = crate::fixture::endpoints(vec![crate::fixture::endpoint(endpoint, "None", &[])]);
    let report = World::new([(LDS, Answers(servers(vec![itself]), endpoints))]).run(&[LDS]).unwrap();
    assert_eq!(report.devices, []);
    assert!(report.remarks[0].ends_with("it is a discovery server"), "{:?}", report.remarks);
}

#[test]
fn sole_server_listing_itself_is_a_device() {
    let itself = servers(vec![application(ApplicationType::Server, "urn:mine", "mine", &[])]);
    let world = World::new([(A, Answers(itself, one_endpoint("urn:unconfigured:application")))]);
    assert_eq!(found(&world.run(&[A]).unwrap()), [("urn:mine", 0, A)]);
}

#[test]
fn long_list_does_not_starve_others() {
    let mut world = crowd(4000);
    world.servers.insert(OTHER_LDS.to_owned(), lists(&[("urn:b", B)]));
    world.servers.insert(B.to_owned(), is("urn:b"));
    for start in [0, 500, 3999] {
        world.now.set(Duration::ZERO);
        let report = world.run_from(start, &[LDS, OTHER_LDS]).unwrap();
        assert!(found(&report).contains(&("urn:b", 1, B)), "{start}");
        assert_eq!(report.kept, BTreeSet::from([0]));
    }
}

#[test]
fn oversized_lists_hide_no_others() {
    let long = |number: usize| {
        let (uri, name) = (format!("urn:{number}"), "n".repeat(4000));
        application(ApplicationType::Server, &uri, &name, &["opc.tcp://192.0.2.9:1/"])
    };
    let full = |lds: usize| lists_all((0..250).map(|number| long(lds * 250 + number)).collect());
    let urls: Vec<String> = (0..6).map(|number| format!("opc.tcp://192.0.2.{number}:4840/")).collect();
    let mut world = World::new([(LDS, lists(&[("urn:a", A)])), (A, is("urn:a"))]);
    world.servers.extend(urls.iter().enumerate().map(|(number, url)| (url.clone(), full(number))));
    let urls: Vec<&str> = urls.iter().map(String::as_str).chain([LDS]).collect();
    let report = world.run(&urls).unwrap();
    assert_eq!(found(&report), [("urn:a", 6, A)]);
    let too_much = "not taken: the memory of the round was used up";
    assert_eq!(notes(&report), [3, 4, 5].map(|origin| (origin, "NoRoom", too_much)));
    assert_eq!(report.kept, BTreeSet::from([3, 4, 5]));
    assert!(report.remarks.iter().all(|remark| remark.len() <= 512));
}

#[test]
fn short_round_returns_partial_results() {
    let mut world = World::new([(LDS, lists(&[("urn:a", A)])), (A, is("urn:a")), (OTHER_LDS, IsSilent)]);
    world.round = Duration::from_secs(6);
    let report = world.run(&[LDS, OTHER_LDS]).unwrap();
    assert_eq!(found(&report), [("urn:a", 0, A)]);
    assert_eq!(notes(&report), [(1, "TimedOut", "no answer within 2 s")]);
    world.round = Duration::from_millis(900);
    world.now.set(Duration::ZERO);
    assert!(matches!(world.run(&[LDS]), Err(Failure::Unavailable(message)) if message.contains("not asked")));
}
