use super::*;
use crate::fixture::*;

/// Returns the explanation for a device of the fixture.
fn explained(devpath: &str, rules: &[&str]) -> String {
    explained_in(&snapshot(), devpath, rules)
}

fn explained_in(snapshot: &Snapshot, devpath: &str, rules: &[&str]) -> String {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let index = snapshot.matched().find(|index| snapshot.get(*index).unwrap().devpath == devpath).unwrap();
    explain(&rules, snapshot, index).iter().map(|line| format!("{line}\n")).collect()
}

/// The fixture as a handler sees it that may only see video devices.
fn of_video_alone() -> Snapshot {
    let full = snapshot();
    let named = |record: &Record| Record {
        devpath: record.devpath.clone(),
        parent: record.parent,
        sysname: record.sysname.clone(),
        subsystem: record.subsystem.clone(),
        ..Record::default()
    };
    let seen = |record: &Record| match record.subsystem.as_deref() {
        Some("video4linux") => record.clone(),
        _ => named(record),
    };
    (0..).map_while(|index| full.get(index)).map(seen).collect()
}

#[test]
fn each_filter_is_shown_with_the_value_found() {
    let rules = [
        r#"SUBSYSTEM=="tty", KERNEL=="ttyUSB*|ttyACM*", TAG=="seat", ENV{A}=="1", ATTR{b}!="2", DRIVER=="x""#,
        r#"SUBSYSTEM=="tty""#,
    ];
    let expected = r#"rule 1 fails: SUBSYSTEM=="tty", KERNEL=="ttyUSB*|ttyACM*", TAG=="seat", ENV{A}=="1", ATTR{b}!="2", DRIVER=="x"
  holds  SUBSYSTEM=="tty"
  fails  KERNEL=="ttyUSB*|ttyACM*"   it is "ttyS0"
  fails  TAG=="seat"   its tags are "systemd"
  fails  ENV{A}=="1"   it has no such property
  fails  ATTR{b}!="2"   it has no such attribute
  fails  DRIVER=="x"   it has no driver
rule 2 holds: SUBSYSTEM=="tty"
  holds  SUBSYSTEM=="tty"
found by rule 2
"#;
    assert_eq!(explained(SERIAL, &rules), expected);
}

#[test]
fn plural_filters_show_the_best_matching_parent() {
    let rule = r#"KERNEL=="video0", SUBSYSTEMS=="usb", ATTRS{idVendor}=="046d""#;
    let expected = format!(
        "rule 1 holds: {rule}\n  holds  KERNEL==\"video0\"\n  on its parent {CAMERA}:\n    holds  SUBSYSTEMS==\"usb\"\n    \
         holds  ATTRS{{idVendor}}==\"046d\"\nfound by rule 1\n"
    );
    assert_eq!(explained(VIDEO0, &[rule]), expected);
    let itself = explained(CAMERA, &[r#"ATTRS{idVendor}=="046d""#]);
    assert!(itself.contains("  on the device itself:\n    holds  ATTRS{idVendor}==\"046d\"\n"), "{itself}");
}

#[test]
fn plural_filters_matching_different_parents_are_explained() {
    let printed = explained(VIDEO0, &[r#"ATTRS{idVendor}=="046d", ATTRS{idProduct}=="082d", KERNELS=="0000:00:14.0""#]);
    let expected = format!("    fails  KERNELS==\"0000:00:14.0\"   it is \"1-1\", but holds on {CONTROLLER}\n");
    assert!(printed.contains(&format!("on its parent {CAMERA}:\n")) && printed.contains(&expected), "{printed}");
    assert!(printed.ends_with("not found: no rule holds\n"), "{printed}");
}

#[test]
fn unmatched_plural_filter_shows_all_values() {
    let printed = explained(VIDEO0, &[r#"DRIVERS=="pwc""#, r#"ATTRS{nonsense}!="x""#]);
    assert!(
        printed.contains(
            "    fails  DRIVERS==\"pwc\"   it has no driver, elsewhere \"usb\", \"uvcvideo\", \"xhci_hcd\"\n"
        ),
        "{printed}"
    );
    assert!(printed.contains("    fails  ATTRS{nonsense}!=\"x\"   it has no such attribute\n"), "{printed}");
}

#[test]
fn missing_grant_is_shown_as_the_reason() {
    let snapshot = of_video_alone();
    let printed = explained_in(&snapshot, VIDEO0, &[r#"ATTRS{idVendor}=="046d""#]);
    let hidden = "only the name is known: its subsystem \"usb\" is not granted";
    assert!(printed.contains(&format!("it has no such attribute; of {INTERFACE} {hidden}\n")), "{printed}");
    let printed = explained_in(&snapshot, VIDEO0, &[r#"KERNELS=="1-1", SUBSYSTEMS=="usb", ATTRS{idVendor}=="046d""#]);
    assert!(printed.contains(&format!("on its parent {CAMERA}:\n    holds  KERNELS==\"1-1\"\n")), "{printed}");
    assert!(printed.contains(&format!("    fails  ATTRS{{idVendor}}==\"046d\"   {hidden}")), "{printed}");
}

#[test]
fn summary_states_the_outcome() {
    for (rules, end) in [
        (&[][..], "not found: there are no rules"),
        (&[r#"KERNEL=="x""#], "not found: no rule holds"),
        (&[r#"KERNEL=="null""#], "found by rule 1"),
        (&[r#"KERNEL=="null""#, r#"KERNEL=="x""#, r#"KERNEL=="n*""#], "found by rules 1, 3"),
    ] {
        assert!(explained(NULL, rules).ends_with(&format!("{end}\n")), "{rules:?}");
    }
}

#[test]
fn device_without_node_is_reported_as_its_parent() {
    let printed = explained(INTERFACE, &[r#"DRIVER=="uvcvideo""#]);
    assert!(
        printed.ends_with(&format!("found by rule 1, as its parent {CAMERA}: it has no device node itself\n")),
        "{printed}"
    );
    let printed = explained(LOOPBACK, &[r#"SUBSYSTEM=="net""#]);
    assert!(printed.ends_with("found by rule 1, without a device node\n"), "{printed}");
}

#[test]
fn device_values_are_short_and_on_one_line() {
    let long =
        Record { devpath: "/devices/x".into(), matched: true, sysname: "x\n\u{1b}[2J".into(), ..Record::default() };
    let long = Record { properties: vec![("A".into(), "é".repeat(5000))], ..long };
    let long = Record { tags: (0..100).map(|number| format!("t{number}")).collect(), ..long };
    let printed = explained_in(&[long].into_iter().collect(), "/devices/x", &[r#"KERNEL=="", ENV{A}=="", TAG=="x""#]);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 5, "{printed}");
    assert!(printed.contains(r#"it is "x\n\u{1b}[2J""#), "{printed}");
    assert!(lines.iter().all(|line| line.chars().count() < 200), "{printed}");
    assert!(printed.contains("\"t7\", ...\n") && printed.contains("é\"...\n"), "{printed}");
}

#[test]
fn explanation_agrees_with_matching() {
    let snapshot = snapshot();
    for rule in [r#"SUBSYSTEM=="usb""#, r#"SUBSYSTEMS=="usb", DRIVERS=="usb""#, r#"KERNEL=="video*", DRIVERS!="usb""#] {
        let parsed: Rule = rule.parse().unwrap();
        for index in snapshot.matched() {
            let lines = explain(std::slice::from_ref(&parsed), &snapshot, index);
            let fails = lines.iter().any(|line| line.trim_start().starts_with("fails"));
            assert_eq!(parsed.holds(&snapshot, index), !fails, "{lines:?}");
        }
    }
}

#[test]
fn equal_devices_differ_in_serial_number_or_port() {
    let adapter = |port: usize, serial: Option<&str>| -> Vec<Record> {
        let usb = format!("/devices/usb1/1-{port}");
        let serial = serial.map(|serial| ("serial".to_owned(), serial.to_owned()));
        let record = |devpath: String, subsystem: &str, parent: Option<usize>| Record {
            sysname: devpath.rsplit('/').next().unwrap().into(),
            subsystem: Some(subsystem.into()),
            matched: true,
            parent,
            devpath,
            ..Record::default()
        };
        let first = port * 2;
        let mut tty = record(format!("{usb}/1-{port}:1.0/ttyUSB{port}/tty/ttyUSB{port}"), "tty", Some(first));
        tty.properties = vec![("ID_PATH".into(), format!("pci-usb-0:{port}:1.0")), ("MINOR".into(), port.to_string())];
        vec![Record { attributes: serial.into_iter().collect(), ..record(usb, "usb", None) }, tty]
    };
    let rules = [r#"SUBSYSTEM=="tty""#.parse().unwrap()];
    let apart = |serials: &[Option<&str>]| {
        let all: Snapshot = serials.iter().enumerate().flat_map(|(port, serial)| adapter(port, *serial)).collect();
        differences(&rules, &all, "/devices/usb1/1-0/1-0:1.0/ttyUSB0/tty/ttyUSB0")
    };
    assert_eq!(apart(&[None]), None);
    let by_port =
        r#"told apart from 1 other devices that are found by ENV{ID_PATH}=="pci-usb-0:0:1.0", or KERNELS=="1-0""#;
    assert_eq!(apart(&[Some("A"), Some("A")]).as_deref(), Some(by_port));
    let by_serial = apart(&[Some("A"), Some("B"), None]).unwrap();
    assert!(by_serial.contains(r#"2 other devices"#) && by_serial.contains(r#"ATTRS{serial}=="A""#), "{by_serial}");
}
