//! Behaviours of a good handler: its results, and its refusals.

use akri_model::datagram::DatagramFilter;
use akri_model::device::{DeviceSpec, Mount, Note};
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::property::Resolved;

use super::*;
use crate::Import;
use crate::coverage::{ALWAYS, GRANTED, NOT_GRANTED};

#[tokio::test]
pub(super) async fn component_describes_itself() {
    let guest = guest().await;
    let description = Description {
        name: "guest".to_owned(),
        version: "0.1.0".to_owned(),
        shared: false,
        interval: Some(Duration::from_millis(1500)),
    };
    assert_eq!(guest.description(), &description);
    assert_eq!(guest.digest().len(), 64);
    assert_eq!(guest.exported(), "akri:discovery/handler@0.1.0");
    let imports = guest.imports();
    for import in ["akri:discovery/udev@0.1.0", "akri:discovery/secrets@0.1.0", "wasi:cli/stderr@0.2"] {
        assert!(imports.iter().any(|name| name.starts_with(import)), "{import} in {imports:?}");
    }
}

#[tokio::test]
async fn imports_are_listed_with_their_grants() {
    let guest = guest().await;
    let grants = granted("", "tty").grants;
    let coverage: Vec<Import> = guest.imports().iter().map(|name| Import::new(name, &grants)).collect();
    let of = |interface: &str| coverage.iter().find(|import| import.name.starts_with(interface)).unwrap().covered;
    assert_eq!(coverage.len(), guest.imports().len());
    assert_eq!(of("akri:discovery/udev@"), GRANTED);
    for interface in ["akri:discovery/secrets@", "wasi:http/outgoing-handler@", "wasi:sockets/tcp@"] {
        assert_eq!(of(interface), NOT_GRANTED, "{interface}");
    }
    assert_eq!(of("wasi:clocks/"), ALWAYS);
}

#[tokio::test]
pub(super) async fn every_device_arrives_in_order() {
    let set = discover("devices:1000").await.unwrap();
    let ids: Vec<_> = set.devices.iter().map(|device| device.id.clone()).collect();
    assert_eq!(ids, (0..1000).map(|i| format!("device-{i}")).collect::<Vec<_>>());
    assert_eq!(set.devices[7].properties["PROPERTY_4"], "value-7-4");
}

#[tokio::test]
pub(super) async fn device_arrives_complete() {
    let set = discover("everything").await.unwrap();
    let [device] = set.devices.as_slice() else { panic!("{set:?}") };
    assert_eq!((device.id.as_str(), device.origin.as_str()), ("full", "somewhere"));
    assert_eq!(device.properties, BTreeMap::from([("A", "1"), ("B", "2")].map(|(k, v)| (k.into(), v.into()))));
    let mount = Mount { container_path: "/in/mount".into(), host_path: "/dev/mount".into(), read_only: true };
    assert_eq!(device.mounts, [mount]);
    let spec =
        DeviceSpec { container_path: "/in/node".into(), host_path: "/dev/node".into(), permissions: "rw".into() };
    assert_eq!(device.device_specs, [spec]);
}

#[tokio::test]
pub(super) async fn last_of_two_properties_counts() {
    let (log, lines) = std::sync::mpsc::channel();
    let set = guest().await.discover(Call { log: Some(log), ..call("missing-node") }).await.unwrap();
    assert_eq!(set.devices[0].properties, BTreeMap::from([("A".to_owned(), "2".to_owned())]));
    let lines: Vec<String> = lines.try_iter().map(|line| line.message).collect();
    assert_eq!(lines, ["one of two properties 'A' of device 'misspelt': the last one counts"]);
}

#[tokio::test]
pub(super) async fn properties_are_those_of_the_call() {
    let given = BTreeMap::from([("A".to_owned(), b"1".to_vec()), ("B".to_owned(), Vec::new())]);
    let given = Resolved { properties: given, ..Resolved::default() };
    let seen = properties(Call { properties: given, ..call("properties") }).await;
    let expected = [("A", "1"), ("ABSENT", "none"), ("B", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(seen, BTreeMap::from(expected));
}

#[tokio::test]
pub(super) async fn details_come_as_json_too() {
    let json = Some(r#"{"a":1}"#.to_owned());
    let set = guest().await.discover(Call { details_json: json, ..call("details-json") }).await.unwrap();
    assert_eq!(set.devices[0].id, r#"{"a":1}"#);
}

#[tokio::test]
pub(super) async fn time_left_is_less_than_the_limit() {
    let set = discover("remaining").await.unwrap();
    let left = Duration::from_nanos(set.devices[0].id.parse().unwrap());
    assert!(left < Limits::default().round && left > Duration::ZERO, "{left:?}");
}

#[tokio::test] // rule 35
pub(super) async fn kept_origins_and_notes_come_with_the_devices() {
    let set = discover("keep").await.unwrap();
    assert_eq!(set.kept.iter().collect::<Vec<_>>(), ["http://camera-1", "http://camera-2"]);
    let set = discover("note").await.unwrap();
    let note = Note {
        origin: "http://camera-1".to_owned(),
        reason: "Unreachable".to_owned(),
        message: "camera 1 did not answer".to_owned(),
    };
    assert_eq!((set.notes.as_slice(), set.notes_dropped), ([note].as_slice(), 0));
}

#[tokio::test]
pub(super) async fn errors_of_the_handler_are_distinguished() {
    let unavailable = RoundError::Unavailable("the camera does not answer".to_owned());
    assert_eq!(discover("unavailable").await, Err(unavailable));
    assert_eq!(discover("not-granted").await, Err(RoundError::NotGranted("udev: subsystem tty".to_owned())));
    let Err(RoundError::InvalidDetails(problems)) = discover("nonsense").await else { panic!("it has to be refused") };
    assert_eq!((problems[0].path.as_str(), problems[0].reason.as_str()), ("/word", "UnknownWord"));
}

#[tokio::test]
pub(super) async fn details_are_validated_without_a_round() {
    let guest = guest().await;
    let triggers = guest.validate(call("anything")).await.unwrap();
    let multicast = Trigger::Multicast { group: "239.255.255.250:3702".parse().unwrap(), filter: DatagramFilter::Any };
    assert_eq!(triggers, [Trigger::Uevent("tty".to_owned()), multicast]);
    assert_eq!(guest.validate(call("no-triggers")).await, Ok(Vec::new()));
    let refused = guest.validate(call("invalid-details")).await;
    assert!(matches!(refused, Err(RoundError::InvalidDetails(problems)) if problems.len() == 1));
    assert!(matches!(guest.validate(brief("loop")).await, Err(RoundError::StillComputing { .. })));
    let refused = guest.validate(granted("udev:mem", "*")).await;
    assert!(matches!(refused, Err(RoundError::InvalidDetails(_))), "it has no grants while it validates: {refused:?}");
}

#[tokio::test] // threat 38
pub(super) async fn udev_shows_what_is_granted() {
    let guest = guest().await;
    let set = guest.discover(granted("udev:mem", "m*")).await.unwrap();
    let null = set.devices.iter().find(|device| device.id == "/devices/virtual/mem/null").unwrap();
    assert_eq!(null.properties["dev"], "1:3");
    assert!(guest.discover(granted("udev:mem", "tty")).await.unwrap().devices.is_empty());
}

#[tokio::test]
pub(super) async fn udev_answers_in_pages_that_join() {
    let set = guest().await.discover(granted("udev:*", "*")).await.unwrap();
    let paths: Vec<_> = set.devices.iter().map(|device| device.id.as_str()).collect();
    assert!(paths.len() > 16, "the guest asks for 16 at a time");
    assert!(paths.is_sorted());
}

#[tokio::test] // threat 38
pub(super) async fn udev_without_a_grant_names_the_remedy() {
    let Err(RoundError::NotGranted(why)) = discover("udev:mem").await else { panic!("it has to be refused") };
    assert!(why.contains("grants.udev.subsystems of the ") && why.contains("DiscoveryHandler"), "{why}");
}

#[tokio::test]
pub(super) async fn sysfs_that_is_not_there_is_no_machine_without_devices() {
    let config = LocalHostConfig { cache_dir: None, sysfs: "/nonexistent".into(), udev_data: "/nonexistent".into() };
    let guest = LocalHost::new(config).unwrap().load(bytes()).await.unwrap();
    let error = guest.discover(granted("udev:mem", "*")).await.unwrap_err();
    assert!(matches!(error, RoundError::Unavailable(ref why) if why.contains("/nonexistent")), "{error}");
}

#[tokio::test] // threat 28, threat 38
pub(super) async fn capabilities_without_a_grant_refuse() {
    let seen = properties(call("capabilities")).await;
    for name in ["SECRETS", "MULTICAST"] {
        assert!(seen[name].contains("NotGranted"), "{name}: {}", seen[name]);
    }
}

#[tokio::test] // threat 37
pub(super) async fn wasi_is_empty_but_for_the_clocks() {
    let seen = properties(call("environment")).await;
    for (name, value) in [("ARGUMENTS", "0"), ("ENVIRONMENT", "0"), ("STDIN", "Some(0)"), ("CLOCK", "runs")] {
        assert_eq!(seen[name], value, "{name}");
    }
    for name in ["ROOT", "PASSWD", "WRITE"] {
        assert!(seen[name].starts_with("Custom") || seen[name].starts_with("Os"), "{name}: {}", seen[name]);
    }
}

#[tokio::test] // threat 37
pub(super) async fn there_is_no_network() {
    for (name, answer) in properties(call("network")).await {
        assert_ne!(answer, "OPEN", "{name}");
    }
}

#[tokio::test]
pub(super) async fn output_of_a_guest_is_in_the_log() {
    logged("");
    discover("log:hello").await.unwrap();
    let lines = logged("test/log:hello");
    for (context, text) in [("guest", "hello"), ("stdout", "stdout hello"), ("stderr", "stderr hello")] {
        let line = lines.iter().find(|line| line.contains(&format!("context={context:?}"))).unwrap();
        assert!(line.contains(text) && line.contains(r#"handler="guest""#), "{line}");
    }
}
