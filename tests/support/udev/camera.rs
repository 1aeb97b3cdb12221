//! Simulated USB cameras: a controller, its root hub and UVC cameras with two video nodes each, as Linux shows them.

use super::sysfs::Device;

const CONTROLLER: &str = "/devices/pci0000:00/0000:00:14.0";

/// A camera in a port of the root hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Camera {
    /// The port, from 1, which identifies the camera's location.
    pub port: u32,
    /// The device number on the bus, from 2: the hub has 1.
    pub number: u32,
    /// The number of its first video node, for capturing; the second one has metadata.
    pub video: u32,
}

impl Camera {
    /// Returns the camera of a port if all cameras were present from the start.
    pub fn in_port(port: u32) -> Self {
        Self { port, number: port + 1, video: 2 * (port - 1) }
    }

    pub fn serial(&self) -> String {
        format!("CAM{:05}", self.port)
    }

    /// Returns the path of the USB device without `/sys`.
    pub fn devpath(&self) -> String {
        format!("{CONTROLLER}/usb1/1-{}", self.port)
    }

    /// Returns the video node for capturing.
    pub fn video_node(&self) -> String {
        format!("/dev/video{}", self.video)
    }

    /// Returns the node of the USB device.
    pub fn usb_node(&self) -> String {
        format!("/dev/bus/usb/001/{:03}", self.number)
    }

    /// Returns its five devices in the order they appear.
    pub fn devices(&self) -> Vec<Device> {
        let video = |index: u32| self.video_device(index);
        vec![self.usb_device(), self.interface(0, 1), self.interface(1, 2), video(0), video(1)]
    }

    fn usb_device(&self) -> Device {
        let number = self.number;
        let properties = [
            ("MAJOR", "189".to_owned()),
            ("MINOR", (number - 1).to_string()),
            ("DEVNAME", format!("bus/usb/001/{number:03}")),
            ("DEVTYPE", "usb_device".to_owned()),
            ("DRIVER", "usb".to_owned()),
            ("PRODUCT", "46d/82d/11".to_owned()),
            ("TYPE", "239/2/1".to_owned()),
            ("BUSNUM", "001".to_owned()),
            ("DEVNUM", format!("{number:03}")),
        ];
        let mut attributes = texts(&[
            ("idVendor", "046d"),
            ("idProduct", "082d"),
            ("manufacturer", "Acme"),
            ("product", "HD Pro Webcam C920"),
            ("busnum", "1"),
            ("bDeviceClass", "ef"),
            ("bDeviceSubClass", "02"),
            ("bDeviceProtocol", "01"),
            ("bcdDevice", "0011"),
            ("bNumInterfaces", " 2"),
            ("configuration", ""),
            ("speed", "480"),
            ("version", " 2.00"),
        ]);
        let own = [("serial", self.serial()), ("devnum", number.to_string()), ("devpath", self.port.to_string())];
        attributes.extend(own);
        let driver = Some("usb");
        Device {
            devpath: self.devpath(),
            subsystem: "usb",
            class: false,
            driver,
            properties: properties.into(),
            attributes,
        }
    }

    fn interface_path(&self, number: u32) -> String {
        format!("{}/1-{}:1.{number}", self.devpath(), self.port)
    }

    fn interface(&self, number: u32, kind: u32) -> Device {
        let modalias = format!("usb:v046Dp082Dd0011dcEFdsc02dp01ic0Eisc{kind:02}ip00in{number:02}");
        let properties = [
            ("DEVTYPE", "usb_interface".to_owned()),
            ("DRIVER", "uvcvideo".to_owned()),
            ("PRODUCT", "46d/82d/11".to_owned()),
            ("TYPE", "239/2/1".to_owned()),
            ("INTERFACE", format!("14/{kind}/0")),
            ("MODALIAS", modalias),
        ];
        let attributes = vec![
            ("bInterfaceClass", "0e".to_owned()),
            ("bInterfaceSubClass", format!("{kind:02}")),
            ("bInterfaceProtocol", "00".to_owned()),
            ("bInterfaceNumber", format!("{number:02}")),
            ("bAlternateSetting", " 0".to_owned()),
        ];
        let (devpath, driver) = (self.interface_path(number), Some("uvcvideo"));
        Device { devpath, subsystem: "usb", class: false, driver, properties: properties.into(), attributes }
    }

    fn video_device(&self, index: u32) -> Device {
        let number = self.video + index;
        Device {
            devpath: format!("{}/video4linux/video{number}", self.interface_path(0)),
            subsystem: "video4linux",
            class: true,
            driver: None,
            properties: vec![
                ("MAJOR", "81".to_owned()),
                ("MINOR", number.to_string()),
                ("DEVNAME", format!("video{number}")),
            ],
            attributes: vec![("name", "HD Pro Webcam C920".to_owned()), ("index", index.to_string())],
        }
    }
}

/// Returns the controller and its root hub.
pub fn controller() -> Vec<Device> {
    let pci = Device {
        devpath: CONTROLLER.to_owned(),
        subsystem: "pci",
        class: false,
        driver: Some("xhci_hcd"),
        properties: texts(&[
            ("DRIVER", "xhci_hcd"),
            ("PCI_CLASS", "C0330"),
            ("PCI_ID", "8086:A36D"),
            ("PCI_SLOT_NAME", "0000:00:14.0"),
        ]),
        attributes: texts(&[("vendor", "0x8086"), ("device", "0xa36d")]),
    };
    let hub = Device {
        devpath: format!("{CONTROLLER}/usb1"),
        subsystem: "usb",
        class: false,
        driver: Some("usb"),
        properties: texts(&[
            ("MAJOR", "189"),
            ("MINOR", "0"),
            ("DEVNAME", "bus/usb/001/001"),
            ("DEVTYPE", "usb_device"),
            ("DRIVER", "usb"),
            ("PRODUCT", "1d6b/2/606"),
            ("TYPE", "9/0/1"),
            ("BUSNUM", "001"),
            ("DEVNUM", "001"),
        ]),
        attributes: texts(&[
            ("idVendor", "1d6b"),
            ("idProduct", "0002"),
            ("manufacturer", "Linux xhci-hcd"),
            ("product", "xHCI Host Controller"),
            ("serial", "0000:00:14.0"),
            ("bDeviceClass", "09"),
            ("speed", "480"),
        ]),
    };
    vec![pci, hub]
}

fn texts(of: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    of.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}
