//! KubeVirt's environment variables for host devices, which tell a virtual machine's pod which USB or PCI device the
//! device plugin of a resource gave it.

/// The name of a resource as the environment variables spell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceName(String);

impl ResourceName {
    /// Reads the `discoveryProperties` entry `devicePluginResourceName`: `akri.sh/usb-key` is spelt `AKRI_SH_USB-KEY`.
    /// None if it is blank or not UTF-8.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(value).ok()?.trim();
        let name = name.replace(['.', '/'], "_").to_ascii_uppercase();
        if name.is_empty() { None } else { Some(Self(name)) }
    }

    /// `USB_RESOURCE_<name>` with bus and device number, for a node below `/dev/bus/usb`.
    pub fn usb(&self, devnode: &str, suffix: &str) -> Option<(String, String)> {
        let (bus, device) = devnode.strip_prefix("/dev/bus/usb/")?.split_once('/')?;
        let (bus, device): (u16, u16) = (bus.parse().ok()?, device.parse().ok()?);
        Some((format!("USB_RESOURCE_{}{suffix}", self.0), format!("{bus}:{device}")))
    }

    /// `PCI_RESOURCE_<name>` with the last PCI address in the path of a device that is not on a USB bus.
    pub fn pci(&self, devpath: &str) -> Option<(String, String)> {
        let mut components = devpath.split('/');
        if components.clone().any(|component| component.starts_with("usb")) {
            return None;
        }
        let address = components.rfind(|component| is_pci_address(component))?;
        Some((format!("PCI_RESOURCE_{}", self.0), address.to_owned()))
    }
}

/// `dddd:bb:ss.f` as the kernel writes it, hexadecimal; a domain may be longer. (`00:00:0.0` is a serial port.)
fn is_pci_address(component: &str) -> bool {
    let is_hex = |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some((domain, rest)) = component.split_once(':') else { return false };
    let Some((bus, rest)) = rest.split_once(':') else { return false };
    let Some((slot, function)) = rest.split_once('.') else { return false };
    is_hex(domain, domain.len().max(4)) && is_hex(bus, 2) && is_hex(slot, 2) && is_hex(function, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> Option<(String, String)> {
        Some((name.into(), value.into()))
    }

    #[test]
    fn resource_name_becomes_part_of_a_variable() {
        let spelt = |value: &str| ResourceName::parse(value.as_bytes()).map(|name| name.0);
        assert_eq!(spelt(" akri.sh/udev-usb-key\n"), Some("AKRI_SH_UDEV-USB-KEY".into()));
        assert_eq!(spelt(" \n"), None);
        assert_eq!(ResourceName::parse(&[0xff]), None);
    }

    #[test]
    fn usb_node_gives_numbers_without_zeros() {
        let name = ResourceName("A".into());
        assert_eq!(name.usb("/dev/bus/usb/001/010", ""), pair("USB_RESOURCE_A", "1:10"));
        assert_eq!(name.usb("/dev/bus/usb/002/005", "_3"), pair("USB_RESOURCE_A_3", "2:5"));
        for node in ["/dev/video0", "/dev/bus/usb/", "/dev/bus/usb/abc/def", "/dev/bus/usb/1", "/dev/bus/usb/1/2/3", ""]
        {
            assert_eq!(name.usb(node, ""), None, "{node}");
        }
    }

    #[test]
    fn pci_path_gives_its_last_address() {
        let name = ResourceName("A".into());
        let nvme = "/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0";
        assert_eq!(name.pci(nvme), pair("PCI_RESOURCE_A", "0000:01:00.0"));
        assert_eq!(name.pci("/devices/pci10000:e0/10000:e0:1f.7"), pair("PCI_RESOURCE_A", "10000:e0:1f.7"));
        for path in [
            "/devices/pci0000:00/0000:00:14.0/usb1/1-1",
            "/devices/pnp0/00:00/00:00:0/00:00:0.0/tty/ttyS0",
            "/devices/virtual/mem/null",
            "/devices/pci0000:00",
            "/devices/0000.00:14:0/0000:00:1g.0/0000:00:14.0.1",
            "",
        ] {
            assert_eq!(name.pci(path), None, "{path}");
        }
    }
}
