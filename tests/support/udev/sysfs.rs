//! A simulated sysfs, and its uevents (Documentation/ABI/stable/sysfs-bus-usb,
//! Documentation/admin-guide/sysfs-rules.rst).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A device, as the kernel describes it.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Path without `/sys`.
    pub devpath: String,
    pub subsystem: &'static str,
    /// Set if its subsystem is a class; otherwise it is a bus.
    pub class: bool,
    pub driver: Option<&'static str>,
    /// The properties in its `uevent` file.
    pub properties: Vec<(&'static str, String)>,
    /// Attribute files: names and contents.
    pub attributes: Vec<(&'static str, String)>,
}

impl Device {
    fn get(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn name(&self) -> &str {
        self.devpath.rsplit('/').next().unwrap()
    }

    /// Returns its device node below /dev with major and minor number, if it has one.
    pub fn node(&self) -> Option<(&str, u32, u32)> {
        Some((self.get("DEVNAME")?, self.get("MAJOR")?.parse().unwrap(), self.get("MINOR")?.parse().unwrap()))
    }

    /// Returns the kernel's message when it is added or removed.
    pub fn uevent(&self, action: &str) -> Vec<u8> {
        let mut message = format!("{action}@{}\0ACTION={action}\0DEVPATH={}\0", self.devpath, self.devpath);
        message += &format!("SUBSYSTEM={}\0", self.subsystem);
        self.properties.iter().for_each(|(key, value)| message += &format!("{key}={value}\0"));
        message.into_bytes()
    }

    /// Returns the directory with links to all devices of its subsystem.
    fn index(&self) -> String {
        if self.class { format!("/class/{}", self.subsystem) } else { format!("/bus/{}/devices", self.subsystem) }
    }
}

/// The tree.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Creates an empty tree in a directory.
    pub fn new(root: PathBuf) -> Self {
        let tree = Self { root };
        tree.write("/kernel/uevent_seqnum", "1000\n");
        for directory in ["class", "bus", "devices"] {
            fs::create_dir_all(tree.root.join(directory)).unwrap();
        }
        tree
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Adds a device, with all links to it.
    pub fn add(&self, device: &Device) {
        let at = |name: &str| format!("{}/{name}", device.devpath);
        let uevent: String = device.properties.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        for (name, value) in &device.attributes {
            self.write(&at(name), &format!("{value}\n"));
        }
        let subsystem = format!("/{}/{}", if device.class { "class" } else { "bus" }, device.subsystem);
        fs::create_dir_all(self.path(&subsystem)).unwrap();
        self.link(&at("subsystem"), &subsystem);
        if let Some((parent, _)) = device.devpath.split_once("/video4linux/") {
            self.link(&at("device"), parent);
        }
        if let Some(driver) = device.driver {
            let driver = format!("{subsystem}/drivers/{driver}");
            fs::create_dir_all(self.path(&driver)).unwrap();
            self.link(&at("driver"), &driver);
        }
        if let Some((_, major, minor)) = device.node() {
            self.write(&at("dev"), &format!("{major}:{minor}\n"));
            self.link(&format!("/dev/char/{major}:{minor}"), &device.devpath);
        }
        self.write(&at("uevent"), &uevent);
        self.link(&format!("{}/{}", device.index(), device.name()), &device.devpath);
    }

    /// Removes a device and everything below it.
    pub fn remove(&self, device: &Device) {
        fs::remove_file(self.path(&format!("{}/{}", device.index(), device.name()))).unwrap();
        if let Some((_, major, minor)) = device.node() {
            fs::remove_file(self.path(&format!("/dev/char/{major}:{minor}"))).unwrap();
        }
        fs::remove_dir_all(self.path(&device.devpath)).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Creates a relative link, as in sysfs.
    fn link(&self, from: &str, to: &str) {
        let path = self.path(from);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let up = "../".repeat(from.trim_start_matches('/').matches('/').count());
        symlink(format!("{up}{}", to.trim_start_matches('/')), path).unwrap();
    }
}
