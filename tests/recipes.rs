//! Each recipe of docs/how-to/recipes.md, tried on machines that have what it is about.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use akri_api::manifest::{self, Object};
use serde_json::Value;

use crate::support::node::{Node, built_components};
use crate::support::udev::sysfs::{Device, Sysfs};

/// The page, with headings as keys and the first manifest below each.
fn recipes() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/recipes.md");
    let page = fs::read_to_string(page).unwrap();
    let manifest = |section: &str| {
        let (heading, rest) = section.split_once('\n')?;
        let (_, block) = rest.split_once("```yaml\n")?;
        Some((heading.to_owned(), block.split_once("```").unwrap().0.to_owned()))
    };
    page.split("\n## ").filter_map(manifest).collect()
}

/// A device on USB, with the interface between the two: a name such as `ttyUSB0`, its subsystem and its node.
struct UsbDevice {
    port: u32,
    interface: u32,
    ids: (&'static str, &'static str),
    serial: &'static str,
    subsystem: &'static str,
    node: &'static str,
    minor: u32,
}

impl UsbDevice {
    fn devices(&self) -> Vec<Device> {
        let usb = format!("/devices/pci0000:00/0000:00:14.0/usb1/1-{}", self.port);
        let attributes = [("idVendor", self.ids.0), ("idProduct", self.ids.1), ("serial", self.serial)]
            .map(|(k, v)| (k, v.to_owned()));
        let device = Device {
            devpath: usb.clone(),
            subsystem: "usb",
            properties: vec![("DEVTYPE", "usb_device".to_owned())],
            attributes: attributes.into(),
            ..Device::default()
        };
        let interface = format!("{usb}/1-{}:1.{}", self.port, self.interface);
        let name = self.node.rsplit('/').next().unwrap();
        let properties =
            [("DEVNAME", self.node.to_owned()), ("MAJOR", "240".to_owned()), ("MINOR", self.minor.to_string())];
        let child = Device {
            devpath: format!("{interface}/{}/{name}", self.subsystem),
            subsystem: self.subsystem,
            class: true,
            properties: properties.into(),
            ..Device::default()
        };
        let interface = Device {
            devpath: interface,
            subsystem: "usb",
            attributes: vec![("bInterfaceNumber", format!("{:02}", self.interface))],
            ..Device::default()
        };
        vec![device, interface, child]
    }
}

const NOTHING: UsbDevice =
    UsbDevice { port: 1, interface: 0, ids: ("", ""), serial: "", subsystem: "tty", node: "ttyUSB0", minor: 0 };

/// A machine with one of everything that the recipes are about, and of some things two.
fn machine(node: &Node) -> Sysfs {
    let sysfs = Sysfs::new(node.path("sys"));
    let adapter = |port, node, serial| UsbDevice { port, ids: ("0403", "6001"), serial, node, minor: port, ..NOTHING };
    let dual = |interface, node| UsbDevice {
        port: 5,
        interface,
        ids: ("0403", "6010"),
        node,
        minor: 10 + interface,
        ..NOTHING
    };
    for device in [
        UsbDevice { port: 1, ids: ("10c4", "ea60"), ..NOTHING },
        adapter(2, "ttyUSB1", "A50285BI"),
        adapter(3, "ttyUSB2", "A6008isP"),
        dual(0, "ttyUSB4"),
        dual(1, "ttyUSB5"),
        UsbDevice { port: 6, ids: ("0c2e", "0b61"), subsystem: "input", node: "input/event3", minor: 20, ..NOTHING },
        UsbDevice { port: 7, ids: ("051d", "0002"), subsystem: "hidraw", node: "hidraw0", minor: 21, ..NOTHING },
        UsbDevice { port: 8, ids: ("0a5f", "0166"), subsystem: "usbmisc", node: "usb/lp1", minor: 22, ..NOTHING },
    ] {
        for part in device.devices() {
            if !sysfs.root().join(&part.devpath[1..]).exists() {
                sysfs.add(&part);
            }
        }
        let udev = format!("E:ID_USB_INTERFACE_NUM={:02}\n", device.interface);
        node.write(&format!("udev/c240:{}", device.minor), &udev);
    }
    sysfs
}

/// Returns what `akri discover` with the shipped handlers says of a manifest: resources, and paths in containers.
fn discovered(node: &Node, text: &str) -> Vec<(String, Vec<String>)> {
    let (sysfs, udev) = (node.path("sys"), node.path("udev"));
    node.write("try.yaml", text);
    let (file, components) = (node.path("try.yaml"), built_components());
    let paths = [&file, &components, &sysfs, &udev].map(|path| path.to_str().unwrap());
    let output = node.akri(&[
        "discover",
        paths[0],
        "--components",
        paths[1],
        "--sysfs",
        paths[2],
        "--udev-data",
        paths[3],
        "--node-name",
        "node-a",
        "-o",
        "json",
    ]);
    let found: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{text}: {}", String::from_utf8_lossy(&output.stderr)));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let paths = |device: &Value| {
        let specs = device["device"]["deviceSpecs"].as_array().cloned().unwrap_or_default();
        specs.iter().map(|spec| format!("{} {}", text(&spec["hostPath"]), text(&spec["containerPath"]))).collect()
    };
    found.iter().map(|device| (text(&device["resource"]), paths(device))).collect()
}

#[test] // rule 124, rule 125
fn recipes_find_what_they_are_about() {
    let node = Node::new();
    fs::create_dir(node.path("udev")).unwrap();
    let _sysfs = machine(&node);
    let recipes = recipes();
    for (heading, expected) in [
        ("A Zigbee stick at /dev/zigbee", &[("akri.sh/zigbee-stick", "/dev/ttyUSB0 /dev/zigbee")][..]),
        (
            "Serial adapters by their serial numbers",
            &[
                ("akri.sh/adapter-a50285bi", "/dev/ttyUSB1 /dev/adapter0"),
                ("akri.sh/adapter-a6008isp", "/dev/ttyUSB2 /dev/adapter0"),
            ],
        ),
        ("Two equal adapters, distinguished by port", &[("akri.sh/pump-port", "/dev/ttyUSB1 /dev/pump")]),
        ("The second port of a dual adapter", &[("", "/dev/ttyUSB5 /dev/modbus")]),
        ("An input device by its USB parent", &[("", "/dev/input/event3 /dev/input/scanner")]),
        ("A UPS by USB HID", &[("", "/dev/hidraw0 /dev/ups")]),
        ("A printer", &[("", "/dev/usb/lp1 /dev/usb/lp0")]),
    ] {
        let found = discovered(&node, &recipes[heading]);
        assert_eq!(found.len(), expected.len(), "{heading}: {found:?}");
        for ((resource, paths), (expected, path)) in found.iter().zip(expected) {
            assert!(resource == expected || expected.is_empty(), "{heading}: {resource}");
            assert_eq!(paths, &[path.to_owned()], "{heading}");
        }
    }
    let podman = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/recipes.md")).unwrap();
    assert!(podman.contains("AddDevice=akri.sh/zigbee=zigbee-stick\n"), "the CDI name of the stick");
    assert!(podman.contains("akri.sh/zigbee: 1}}"), "the resource of the stick");
}

/// Recipes of the network have no peers here: what they name is compared with the pages of their handlers.
#[test] // rule 125
fn recipes_name_properties_that_their_handlers_have() {
    let mut named = 0;
    for (heading, text) in recipes().iter().filter(|(_, text)| text.contains("akri.sh/v0")) {
        let (manifests, errors) = manifest::parse(Path::new(heading), text);
        assert!(errors.is_empty(), "{heading}: {errors:?}");
        let Object::Configuration(configuration) = &manifests[0].object else { panic!("{heading}") };
        let handler = &configuration.spec.discovery_handler.name;
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/reference/handlers/{handler}.md"));
        let page = fs::read_to_string(page).unwrap();
        for name in text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0)) {
            let is_known = name == "index" || (handler == "udev" && name.starts_with("UDEV_"));
            assert!(is_known || page.contains(&format!("`{name}`")), "{heading}: {name}");
            named += 1;
        }
    }
    assert!(named >= 4, "{named}");
}
