use super::*;
use crate::fixture::*;

const ALL_USB: [&str; 5] = [HUB, CAMERA, INTERFACE, HUB10, DISK];
const VIDEOS: [&str; 2] = [VIDEO0, VIDEO1];
const NONE: [&str; 0] = [];

fn found(rule: &str) -> Vec<String> {
    let rule: Rule = rule.parse().unwrap_or_else(|error: crate::parse::RuleError| panic!("{}", error.explain(rule)));
    let snapshot = snapshot();
    let holding = snapshot.matched().filter(|index| rule.holds(&snapshot, *index));
    holding.map(|index| snapshot.get(index).unwrap().devpath.clone()).collect()
}

fn check(table: &[(&str, &[&str])]) {
    for (rule, expected) in table {
        assert_eq!(&found(rule), expected, "{rule}");
    }
}

#[test]
fn filters_match_the_device_itself() {
    check(&[
        (r#"SUBSYSTEM=="video4linux""#, &VIDEOS),
        (r#"KERNEL=="null""#, &[NULL]),
        (r#"KERNEL=="video[0-9]*""#, &VIDEOS),
        (r#"KERNEL=="video[!0]|tty*""#, &[VIDEO1, SERIAL]),
        (r#"SUBSYSTEM=="usb", DRIVER=="usb""#, &[HUB, CAMERA, HUB10, DISK]),
        (r#"SUBSYSTEM=="usb", DRIVER!="usb""#, &[INTERFACE]),
        (r#"DRIVER=="", KERNEL=="video?""#, &VIDEOS),
        (r#"SUBSYSTEM=="""#, &["/devices/pci0000:00"]),
        (r#"SUBSYSTEM=="|mem""#, &["/devices/pci0000:00", NULL]),
        (r#"SUBSYSTEM!="?*""#, &["/devices/pci0000:00"]),
        (r#"DEVPATH=="/devices/virtual/mem/null""#, &[NULL]),
        (r#"DEVPATH=="/devices/virtual/*""#, &[NULL, LOOPBACK]),
        (r#"DEVPATH=="*/usb1/*", SUBSYSTEM!="usb""#, &VIDEOS),
        (r#"DEVPATH=="/sys/devices/virtual/mem/null""#, &NONE),
        (r#"TAG=="uaccess""#, &[VIDEO0]),
        (r#"TAG=="se*|systemd""#, &[VIDEO0, SERIAL]),
        (r#"SUBSYSTEM=="video4linux", TAG!="seat""#, &[VIDEO1]),
        (r#"TAG=="?*""#, &[VIDEO0, SERIAL]),
        (r#"SYMLINK=="v4l/by-id/*""#, &VIDEOS),
        (r#"SYMLINK=="v4l/by-path/pci-1""#, &[VIDEO1]),
        (r#"SUBSYSTEM=="video4linux", SYMLINK!="*/cam-0""#, &[VIDEO1]),
        (r#"SYMLINK=="/dev/v4l/by-id/*""#, &NONE),
    ]);
}

#[test]
fn value_that_matches_no_device_gets_a_hint() {
    let hint = |rule: &str| rule.parse::<Rule>().unwrap().filters[0].hint();
    let devpath = r#"DEVPATH=="/sys/devices/*""#;
    assert_eq!(hint(devpath).unwrap(), format!("{devpath} matches no device: DEVPATH is compared without '/sys'"));
    let link = r#"SYMLINK=="/dev/v4l/by-id/*""#;
    assert_eq!(hint(link).unwrap(), format!("{link} matches no device: SYMLINK is compared without '/dev'"));
    for rule in [
        r#"DEVPATH!="/sys/devices/*""#,
        r#"DEVPATH=="/sys/a|/devices/*""#,
        r#"DEVPATH=="*/sys/*""#,
        r#"SYMLINK=="v4l/*""#,
        r#"KERNEL=="/sys/x""#,
    ] {
        assert_eq!(hint(rule), None, "{rule}");
    }
}

#[test]
fn all_filters_on_one_key_must_match() {
    check(&[
        (r#"ENV{DEVNAME}=="/dev/null", ENV{MINOR}=="5""#, &NONE),
        (r#"ENV{DEVNAME}=="/dev/null", ENV{MINOR}=="3""#, &[NULL]),
        (r#"KERNEL=="video0", KERNEL=="video1""#, &NONE),
        (r#"KERNEL=="video*", KERNEL!="video1""#, &[VIDEO0]),
        (r#"KERNEL=="video*", DEVPATH!="/sys/path/to/device""#, &VIDEOS),
    ]);
}

#[test]
fn missing_property_is_the_empty_string() {
    check(&[
        (r#"ENV{ID_V4L_CAPABILITIES}=="*:capture:*""#, &[VIDEO0]),
        (r#"SUBSYSTEM=="usb", ENV{DEVTYPE}=="""#, &[HUB10, DISK]),
        (r#"SUBSYSTEM=="usb", ENV{DEVTYPE}!="usb_device""#, &[INTERFACE, HUB10, DISK]),
        (r#"KERNEL=="video*", ENV{ID_SERIAL}=="?*""#, &VIDEOS),
        (r#"SUBSYSTEM=="usb", ENV{ID_SERIAL}=="?*""#, &[CAMERA]),
    ]);
}

#[test]
fn missing_attribute_never_matches() {
    check(&[
        (r#"ATTR{idVendor}=="046d""#, &[CAMERA]),
        (r#"SUBSYSTEM=="usb", ATTR{idVendor}!="046d""#, &[HUB, HUB10, DISK]),
        (r#"ATTR{serial}!="x""#, &[HUB, CAMERA]),
        (r#"ATTR{configuration}=="""#, &[CAMERA]),
        (r#"ATTR{nonsense}=="""#, &NONE),
        (r#"ATTR{nonsense}!="x""#, &NONE),
        (r#"SUBSYSTEM=="mem", ATTRS{nonsense}!="x""#, &NONE),
    ]);
}

#[test]
fn trailing_space_of_an_attribute_is_compared_on_request() {
    check(&[
        (r#"SUBSYSTEM=="video4linux", ATTR{name}=="HD Pro Webcam C920""#, &VIDEOS),
        (r#"SUBSYSTEM=="video4linux", ATTR{name}=="HD Pro Webcam C920  ""#, &VIDEOS),
        (r#"SUBSYSTEM=="video4linux", ATTR{name}=="HD Pro Webcam C920 ""#, &NONE),
        (r#"ATTR{bNumInterfaces}==" 4""#, &[CAMERA]),
        (r#"ATTR{bNumInterfaces}=="4""#, &NONE),
    ]);
}

#[test]
fn plural_filters_match_the_device_or_an_ancestor() {
    check(&[
        (r#"SUBSYSTEM=="video4linux", ATTRS{idVendor}=="046d""#, &VIDEOS),
        (r#"ATTRS{idProduct}=="082d", ATTRS{idVendor}=="046d", KERNEL=="video0""#, &[VIDEO0]),
        (r#"KERNELS=="1-1""#, &[CAMERA, INTERFACE, VIDEO0, VIDEO1]),
        (r#"SUBSYSTEMS=="usb", SUBSYSTEM!="usb""#, &VIDEOS),
        (r#"DRIVERS=="uvcvideo""#, &[INTERFACE, VIDEO0, VIDEO1]),
        (r#"TAGS=="systemd""#, &[SERIAL]),
        (r#"SUBSYSTEM=="usb", SUBSYSTEMS=="pci""#, &ALL_USB),
        (r#"SUBSYSTEM=="video4linux", KERNELS=="usb10""#, &NONE),
    ]);
}

#[test]
fn plural_filters_match_one_and_the_same_ancestor() {
    check(&[
        // 1-1 has the vendor, the controller above it the name.
        (r#"KERNEL=="video0", ATTRS{idVendor}=="046d", KERNELS=="0000:00:14.0""#, &NONE),
        (r#"KERNEL=="video0", ATTRS{idVendor}=="046d", KERNELS=="1-1""#, &[VIDEO0]),
        (r#"KERNEL=="video0", DRIVERS=="uvcvideo", ATTRS{idVendor}=="046d""#, &NONE),
        (r#"KERNEL=="video0", SUBSYSTEMS=="usb", DRIVERS=="usb", ATTRS{idVendor}=="1d6b""#, &[VIDEO0]),
    ]);
}

#[test]
fn plural_inequality_matches_if_one_candidate_differs() {
    check(&[
        // The device itself has no driver, which is another one than usb.
        (r#"KERNEL=="video0", DRIVERS!="usb""#, &[VIDEO0]),
        (r#"KERNEL=="1-1", DRIVERS!="usb""#, &[CAMERA]),
        // The hub has another vendor.
        (r#"KERNEL=="video0", ATTRS{idVendor}!="046d""#, &[VIDEO0]),
        (r#"KERNEL=="video0", SUBSYSTEMS=="usb", DRIVERS!="usb|uvcvideo""#, &NONE),
        (r#"KERNEL=="ttyS0", TAGS!="systemd""#, &NONE),
    ]);
}

#[test]
fn rules_supported_upstream_are_parsed() {
    for (count, rule) in [
        (1, r#"SUBSYSTEM=="video4linux""#),
        (2, r#"KERNEL=="video*", ENV{ID_SERIAL}=="?*""#),
        (3, r#"ENV{ID_PATH}=="?*", KERNEL=="video*|vbi*", DRIVER=="some driver""#),
        (2, r#"TAG=="uaccess",ENV{MAJOR}!="""#),
        (2, r#"ATTR{idProduct}=="1900", ENV{ID_MM_ERICSSON_MBM}=="1""#),
        (2, r#"ATTR{idVendor}=="0bdd", ENV{a name}=="Keyboard that has a mouse""#),
        (2, r#"KERNEL=="video[0-9]*", ENV{ID_V4L_CAPABILITIES}==":capture:""#),
        (1, r#"SUBSYSTEMS=="pci""#),
        (2, r#"ATTRS{idVendor}=="0bdd", DRIVERS!="a driver""#),
        (1, r#"TAGS=="uaccess""#),
        (1, r#"KERNELS=="card[0-9]*""#),
    ] {
        assert_eq!(rule.parse::<Rule>().unwrap().filters.len(), count, "{rule}");
    }
}
