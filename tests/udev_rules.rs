//! A rule means to the handler what it means to udev: each rule of a table is given to both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::node::{Node, akri, built_components};
use crate::support::skip::skip;
use crate::support::udev::Machine;
use crate::support::udev::camera::Camera;

/// Devices found, by rule.
type Found = BTreeMap<usize, BTreeSet<String>>;

const VIDEOS: &[&str] = &["video0", "video1", "video2", "video3", "video4", "video5"];
const CAMERAS: &[&str] = &["1-1", "1-2", "1-3"];

/// Three cameras in ports 1 to 3 of the hub `usb1`, with video nodes 0 to 5, of which 0 and 3 have the tag `front`.
#[rustfmt::skip]
const RULES: &[(&str, &[&str])] = &[
    (r#"SUBSYSTEM=="video4linux""#, VIDEOS),
    (r#"KERNEL=="video[0-2]""#, &["video0", "video1", "video2"]),
    (r#"KERNEL=="video[!0-2]|usb1""#, &["video3", "video4", "video5", "usb1"]),
    (r#"SUBSYSTEM=="video4linux", KERNEL=="|video1|vi?eo3""#, &["video1", "video3"]),
    (r#"DEVPATH=="*/1-3/*/video4linux/*""#, &["video4", "video5"]),
    (r#"DRIVER=="usb", SUBSYSTEM!="pci""#, &["usb1", "1-1", "1-2", "1-3"]),
    (r#"SUBSYSTEM=="video4linux", DRIVER=="""#, VIDEOS),
    // Attributes of the device.
    (r#"SUBSYSTEM=="video4linux", ATTR{index}!="0""#, &["video1", "video3", "video5"]),
    (r#"SUBSYSTEM=="video4linux", ATTR{name}=="HD Pro *C9?0""#, VIDEOS),
    (r#"SUBSYSTEM=="video4linux", ATTR{name}=="HD Pro""#, &[]),
    (r#"SUBSYSTEM=="video4linux", ATTR{no_such}!="x""#, &[]),
    (r#"SUBSYSTEM=="video4linux", ATTR{device/bInterfaceNumber}=="00""#, VIDEOS),
    (r#"ENV{DEVTYPE}=="usb_device", ATTR{configuration}=="""#, CAMERAS),
    (r#"ENV{DEVTYPE}=="usb_device", ATTR{bNumInterfaces}==" 2""#, CAMERAS),
    (r#"ENV{DEVTYPE}=="usb_device", ATTR{bNumInterfaces}=="2""#, &[]),
    (r#"ENV{DEVTYPE}=="usb_device", ATTR{bDeviceClass}!="09""#, CAMERAS),
    // Properties, of the kernel and of udev's rules.
    (r#"ENV{MAJOR}=="81", ENV{MINOR}!="[1-9]""#, &["video0"]),
    (r#"SUBSYSTEM=="video4linux", ENV{ID_SERIAL}=="*_CAM0000[13]""#, &["video0", "video1", "video4", "video5"]),
    (r#"SUBSYSTEM=="video4linux", ENV{ID_PATH}=="?*:3:*""#, &["video4", "video5"]),
    (r#"SUBSYSTEM=="video4linux", ENV{NO_SUCH}=="""#, VIDEOS),
    (r#"SUBSYSTEM=="video4linux", ENV{NO_SUCH}!="x""#, VIDEOS),
    (r#"SUBSYSTEM=="video4linux", ENV{NO_SUCH}=="?*""#, &[]),
    (r#"SUBSYSTEM=="video4linux", TAG=="front""#, &["video0", "video3"]),
    (r#"SUBSYSTEM=="video4linux", TAG=="no|fr[ou]nt""#, &["video0", "video3"]),
    (r#"SUBSYSTEM=="video4linux", TAGS=="front""#, &["video0", "video3"]),
    // The device and what is above it; filters of one rule hold on one and the same of them.
    (r#"SUBSYSTEM=="video4linux", ATTRS{serial}=="CAM00002""#, &["video2", "video3"]),
    (r#"SUBSYSTEM=="video4linux", ATTRS{serial}!="CAM00002""#, VIDEOS),
    (r#"SUBSYSTEM=="video4linux", ATTRS{serial}=="CAM00002", ATTRS{idProduct}=="082d""#, &["video2", "video3"]),
    (r#"SUBSYSTEM=="video4linux", ATTRS{serial}=="CAM00002", ATTRS{index}=="0""#, &[]),
    (r#"SUBSYSTEM=="video4linux", ATTRS{idVendor}=="046d", KERNELS=="usb1""#, &[]),
    (r#"SUBSYSTEM=="video4linux", SUBSYSTEMS=="usb", KERNELS=="1-2""#, &["video2", "video3"]),
    (r#"SUBSYSTEM=="video4linux", SUBSYSTEMS=="usb", KERNELS=="1-2", DRIVERS=="uvcvideo""#, &[]),
    (r#"SUBSYSTEM=="video4linux", KERNELS=="1-2:1.0", DRIVERS=="uvcvideo""#, &["video2", "video3"]),
    (r#"SUBSYSTEM=="video4linux", DRIVERS!="usb|uvcvideo|xhci_hcd""#, VIDEOS),
    (r#"SUBSYSTEM=="video4linux", SUBSYSTEMS=="usb", DRIVERS!="usb|uvcvideo""#, &[]),
    (r#"SUBSYSTEM=="video4linux", KERNELS=="0000:00:14.0", SUBSYSTEMS=="pci", ATTRS{vendor}=="0x8086""#, VIDEOS),
];

/// Rules that `udevadm trigger` can express on this machine, whose devices all have nodes.
#[rustfmt::skip]
const REAL: &[(&str, &[&str])] = &[
    (r#"SUBSYSTEM=="mem""#, &["--subsystem-match=mem"]),
    (r#"SUBSYSTEM=="mem", KERNEL!="null""#, &["--subsystem-match=mem", "--property-match=DEVNAME=/dev/[!n]*"]),
    (r#"SUBSYSTEM=="tty", KERNEL=="tty[0-9]""#, &["--subsystem-match=tty", "--sysname-match=tty[0-9]"]),
    (r#"SUBSYSTEM=="tty", ENV{DEVNAME}=="/dev/tty6?""#, &["--subsystem-match=tty", "--property-match=DEVNAME=/dev/tty6?"]),
    (r#"SUBSYSTEM=="block", KERNEL=="loop*", ATTR{ro}=="0""#, &["--subsystem-match=block", "--sysname-match=loop*", "--attr-match=ro=0"]),
    (r#"SUBSYSTEM=="mem|misc", ENV{MAJOR}=="1""#, &["--subsystem-match=mem", "--property-match=MAJOR=1"]),
];

#[tokio::test]
async fn rules_mean_what_they_mean_to_udevd() {
    let Some(mut machine) = Machine::new() else { return };
    let marked = |(number, (rule, _)): (usize, &(&str, _))| format!("{rule}, ENV{{STORY_{number}}}=\"1\"\n");
    let rules: String = RULES.iter().enumerate().map(marked).collect();
    machine.start_udevd(&format!("KERNEL==\"video[03]\", TAG+=\"front\"\n{rules}")).await;
    machine.plug(&[Camera::in_port(1), Camera::in_port(2), Camera::in_port(3)]);
    machine.wait_until_idle().await;
    let database = machine.command(Path::new("udevadm")).args(["info", "--export-db"]).output().unwrap();
    let udevd = marked_devices(&text(&database));
    let ours = discovered(machine.command(&akri()), RULES.iter().map(|(rule, _)| *rule));
    for (number, (rule, expected)) in RULES.iter().enumerate() {
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        for (who, found) in [("udevd", &udevd), ("the handler", &ours)] {
            let found: BTreeSet<&str> = found.get(&number).into_iter().flatten().map(|path| name(path)).collect();
            assert_eq!(found, expected, "{who}: {rule}");
        }
    }
    assert_eq!(udevd, ours, "whole paths");
}

#[test]
fn rules_find_what_udevadm_finds_on_this_machine() {
    let udevadm = |matches: &[&str]| {
        let mut command = Command::new("udevadm");
        command.env("SYSTEMD_IGNORE_CHROOT", "1").args(["trigger", "--dry-run", "--verbose"]).args(matches).output()
    };
    if udevadm(&[]).is_err() {
        return skip("udevadm is not installed: run 'make packages'");
    }
    let ours = discovered(Command::new(akri()), REAL.iter().map(|(rule, _)| *rule));
    for (number, (rule, matches)) in REAL.iter().enumerate() {
        let theirs = text(&udevadm(matches).unwrap());
        let theirs: BTreeSet<String> = theirs.lines().map(|path| path.trim_start_matches("/sys").to_owned()).collect();
        assert!(!theirs.is_empty(), "{rule}");
        assert_eq!(ours.get(&number), Some(&theirs), "{rule}");
    }
}

/// Returns the devices that `akri discover` finds by each rule.
fn discovered<'a>(mut akri: Command, rules: impl Iterator<Item = &'a str>) -> Found {
    let node = Node::new();
    let documents: Vec<String> = rules.enumerate().map(|(number, rule)| configuration(number, rule)).collect();
    node.write("rules.yaml", &documents.join("---\n"));
    // The shipped object does not grant terminals, and memory and disks have to be named. Some rules find these.
    let disks: String = (0..64).map(|number| format!("    - /dev/loop{number}\n")).collect();
    let object = std::fs::read_to_string(built_components().join("udev.yaml")).unwrap();
    let named = object.replace(
        "    - /dev/null\n",
        &format!("    - /dev/**\n    - /dev/kmsg\n    - /dev/mem\n    - /dev/port\n{disks}"),
    );
    assert_ne!(named, object);
    std::fs::create_dir(node.path("all-nodes")).unwrap();
    node.write("all-nodes/udev.yaml", &named);
    std::fs::copy(built_components().join("udev.wasm"), node.path("all-nodes/udev.wasm")).unwrap();
    let akri = akri.env("XDG_CACHE_HOME", node.path("cache")).arg("discover").arg(node.path("rules.yaml"));
    let output = akri.args(["-o", "json", "--components"]).arg(node.path("all-nodes")).output().unwrap();
    let found: Vec<Value> = serde_json::from_str(&text(&output)).unwrap();
    let mut by_rule = Found::new();
    for device in found {
        let number = device["configuration"].as_str().unwrap().rsplit('-').next().unwrap().parse().unwrap();
        by_rule.entry(number).or_default().insert(device["device"]["id"].as_str().unwrap().to_owned());
    }
    by_rule
}

fn configuration(number: usize, rule: &str) -> String {
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata:\n  name: rule-{number}\nspec:\n  discoveryHandler:\n    \
         name: udev\n    discoveryDetails: |\n      udevRules:\n      - {rule}\n"
    )
}

/// The devices that the rules with a mark have marked, in what `udevadm info --export-db` prints: paragraphs of lines
/// such as `P: /devices/...` and `E: STORY_1=1`.
fn marked_devices(database: &str) -> Found {
    let mut by_rule = Found::new();
    for paragraph in database.split("\n\n") {
        let Some(path) = paragraph.lines().find_map(|line| line.strip_prefix("P: ")) else { continue };
        let marks = paragraph.lines().filter_map(|line| line.strip_prefix("E: STORY_")?.strip_suffix("=1"));
        marks.for_each(|mark| _ = by_rule.entry(mark.parse().unwrap()).or_default().insert(path.to_owned()));
    }
    by_rule
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}
