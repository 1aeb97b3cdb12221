//! A snapshot for tests: a USB camera with two video nodes and a USB disk behind one PCI controller, a second root hub
//! `usb10`, a serial port and a memory device. Values as Linux and systemd-udevd have them.

use crate::record::{Record, Snapshot};

pub(crate) const CONTROLLER: &str = "/devices/pci0000:00/0000:00:14.0";
pub(crate) const HUB: &str = "/devices/pci0000:00/0000:00:14.0/usb1";
pub(crate) const CAMERA: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1";
pub(crate) const INTERFACE: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0";
pub(crate) const VIDEO0: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";
pub(crate) const VIDEO1: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video1";
pub(crate) const HUB10: &str = "/devices/pci0000:00/0000:00:14.0/usb10";
pub(crate) const DISK: &str = "/devices/pci0000:00/0000:00:14.0/usb10/10-1";
pub(crate) const SERIAL: &str = "/devices/platform/serial8250/tty/ttyS0";
pub(crate) const NULL: &str = "/devices/virtual/mem/null";
pub(crate) const LOOPBACK: &str = "/devices/virtual/net/lo";

/// The whole tree, every device matched.
pub(crate) fn snapshot() -> Snapshot {
    let mut records = controller_and_camera();
    records.extend(video_nodes());
    records.extend(others());
    let parents: Vec<Option<usize>> = records.iter().map(|record| parent(record, &records)).collect();
    records.into_iter().zip(parents).map(|(record, parent)| Record { parent, ..record }).collect()
}

/// The index of the nearest record above.
fn parent(record: &Record, records: &[Record]) -> Option<usize> {
    records.iter().rposition(|above| record.devpath.starts_with(&format!("{}/", above.devpath)))
}

fn controller_and_camera() -> Vec<Record> {
    vec![
        Record {
            sysname: "pci0000:00".into(),
            matched: true,
            devpath: "/devices/pci0000:00".into(),
            ..Record::default()
        },
        record(CONTROLLER, "pci", Some("xhci_hcd"), None).attributes(&[("vendor", "0x8086"), ("device", "0xa36d")]),
        record(HUB, "usb", Some("usb"), Some("/dev/bus/usb/001/001"))
            .properties(&[("DEVTYPE", "usb_device"), ("BUSNUM", "001"), ("DEVNUM", "001")])
            .attributes(&[("idVendor", "1d6b"), ("idProduct", "0002"), ("serial", "0000:00:14.0")]),
        record(CAMERA, "usb", Some("usb"), Some("/dev/bus/usb/001/002"))
            .properties(&[("DEVTYPE", "usb_device"), ("BUSNUM", "001"), ("DEVNUM", "002"), ("ID_SERIAL", "CAM00000")])
            .attributes(&[
                ("idVendor", "046d"),
                ("idProduct", "082d"),
                ("product", "HD Pro Webcam C920"),
                ("serial", "CAM00000"),
                ("bNumInterfaces", " 4"),
                ("version", " 2.00"),
                ("configuration", ""),
            ]),
        record(INTERFACE, "usb", Some("uvcvideo"), None)
            .properties(&[("DEVTYPE", "usb_interface"), ("INTERFACE", "14/1/0")])
            .attributes(&[("bInterfaceClass", "0e"), ("bInterfaceNumber", "00")]),
    ]
}

fn video_nodes() -> Vec<Record> {
    let video = |path: &str, index: &str| {
        let name = path.rsplit('/').next().unwrap();
        record(path, "video4linux", None, Some(&format!("/dev/{name}")))
            .properties(&[
                ("DEVNAME", &format!("/dev/{name}")),
                ("MAJOR", "81"),
                ("MINOR", index),
                ("ID_SERIAL", "Acme_HD_Pro_Webcam_C920_CAM00000"),
                ("DEVLINKS", &format!("/dev/v4l/by-id/cam-{index} /dev/v4l/by-path/pci-{index}")),
                ("ID_V4L_CAPABILITIES", if index == "0" { ":capture:" } else { ":" }),
            ])
            .tags(if index == "0" { &["uaccess", "seat"] } else { &[] })
            .attributes(&[("name", "HD Pro Webcam C920  "), ("index", index)])
    };
    vec![video(VIDEO0, "0"), video(VIDEO1, "1")]
}

fn others() -> Vec<Record> {
    vec![
        record(HUB10, "usb", Some("usb"), Some("/dev/bus/usb/010/001")).attributes(&[("idVendor", "1d6b")]),
        record(DISK, "usb", Some("usb"), Some("/dev/bus/usb/010/002")).attributes(&[("idVendor", "0781")]),
        record(SERIAL, "tty", None, Some("/dev/ttyS0")).tags(&["systemd"]),
        record(NULL, "mem", None, Some("/dev/null")).properties(&[("DEVNAME", "/dev/null"), ("MINOR", "3")]),
        record(LOOPBACK, "net", None, None).attributes(&[("address", "00:00:00:00:00:00")]),
    ]
}

fn record(path: &str, subsystem: &str, driver: Option<&str>, devnode: Option<&str>) -> Record {
    Record {
        devpath: path.into(),
        matched: true,
        sysname: path.rsplit('/').next().unwrap().into(),
        subsystem: Some(subsystem.into()),
        driver: driver.map(Into::into),
        devnode: devnode.map(Into::into),
        ..Record::default()
    }
}

impl Record {
    fn properties(self, pairs: &[(&str, &str)]) -> Self {
        Self { properties: owned(pairs), ..self }
    }

    fn attributes(self, pairs: &[(&str, &str)]) -> Self {
        Self { attributes: owned(pairs), ..self }
    }

    fn tags(self, tags: &[&str]) -> Self {
        Self { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..self }
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
