//! One device: its `uevent` file, what udev's database says of it, its attributes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Instant;

use crate::Stop;
use crate::sysfs::dir::{Dir, resolve};
use crate::sysfs::{Entry, Query, Sysfs, database, is_granted};

/// Bytes of an attribute's value.
const ATTRIBUTE: usize = 4096;
/// Bytes of a `uevent` file; the kernel's buffer has 2048.
const UEVENT: usize = 4096;
/// Bytes of a database file.
const DATABASE: usize = 64 << 10;
/// Properties of one device.
const PROPERTIES: usize = 512;
/// Unreadable devices that are named; the rest is counted as skipped.
const UNREADABLE: usize = 1000;

/// Devices one run looks at; the rest is counted as skipped.
const DEVICES: usize = 65_536;

/// Reads devices for one run and keeps its bounds.
pub(super) struct Reader<'a> {
    pub(super) root: Dir,
    /// None where udev does not run.
    database: Option<Dir>,
    granted: &'a [String],
    buffer: Vec<u8>,
    visited: usize,
    until: Instant,
    pub(super) unreadable: Vec<String>,
    pub(super) skipped: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(sysfs: &Sysfs, granted: &'a [String], until: Instant) -> Result<Self, Stop> {
        let failed = |error| Stop::Unavailable(format!("{}: {error}", sysfs.root.display()));
        Ok(Self {
            root: Dir::root(&sysfs.root).map_err(failed)?,
            database: Dir::root(&sysfs.udev_data).ok(),
            granted,
            buffer: vec![0; DATABASE],
            visited: 0,
            until,
            unreadable: Vec::new(),
            skipped: 0,
        })
    }

    /// Returns whether devices of this subsystem may be shown.
    pub(super) fn granted(&self, subsystem: Option<&str>) -> bool {
        is_granted(self.granted, subsystem)
    }

    /// Counts one more device: whether it may still be looked at.
    pub(super) fn count_device(&mut self) -> Result<bool, Stop> {
        self.in_time()?;
        self.visited += 1;
        Ok(self.visited <= DEVICES || self.skip())
    }

    /// Ends the work that nobody waits for any more: the round has been given up by then.
    pub(super) fn in_time(&self) -> Result<(), Stop> {
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(Stop::Unavailable("sysfs was not read before the end of the round".to_owned()))
    }

    /// Remembers a device that could not be read. A device that has gone meanwhile is absent.
    pub(super) fn unread(&mut self, devpath: String) {
        match self.root.dir(devpath.trim_start_matches('/')) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(dir) if dir.has("uevent") && self.unreadable.len() < UNREADABLE => self.unreadable.push(devpath),
            _ => {
                self.skip();
            }
        }
    }

    /// Counts something that is left out.
    pub(super) fn skip(&mut self) -> bool {
        self.skipped = self.skipped.saturating_add(1);
        false
    }

    /// Returns everything about a device of a granted subsystem but its attributes; `None` if it has gone.
    pub(super) fn entry(&mut self, dir: &Dir, devpath: &str, subsystem: Option<&str>) -> Option<Entry> {
        let mut properties = self.uevent(dir)?;
        let record = self.database_record(subsystem.unwrap_or_default(), kernel_name(devpath), &properties);
        properties.extend(record.properties);
        let mut entry = named(devpath, subsystem);
        entry.driver = properties.get("DRIVER").cloned();
        entry.devnode = properties.remove("DEVNAME").and_then(|name| devnode(&name));
        properties.extend(entry.devnode.clone().map(|node| ("DEVNAME".to_owned(), node)));
        properties.insert("DEVPATH".to_owned(), devpath.to_owned());
        properties.extend(subsystem.map(|subsystem| ("SUBSYSTEM".to_owned(), subsystem.to_owned())));
        entry.properties = properties.into_iter().take(PROPERTIES).collect();
        entry.tags = record.tags;
        Some(entry)
    }

    fn uevent(&mut self, dir: &Dir) -> Option<BTreeMap<String, String>> {
        let text = String::from_utf8_lossy(dir.read("uevent", self.buffer.get_mut(..UEVENT)?).ok()?);
        Some(text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn database_record(&mut self, subsystem: &str, name: &str, uevent: &BTreeMap<String, String>) -> database::Record {
        let Some(database) = &self.database else { return database::Record::default() };
        match database.read(&database::file_name(subsystem, name, uevent), &mut self.buffer) {
            Ok(bytes) => database::parse(&String::from_utf8_lossy(bytes)),
            Err(_) => database::Record::default(),
        }
    }

    /// The attributes the query asks for, of a device of a granted subsystem.
    pub(super) fn attributes(&mut self, dir: &Dir, devpath: &str, query: &Query) -> Vec<(String, String)> {
        let names = query.attributes.iter();
        names.filter_map(|name| Some((name.clone(), self.attribute(dir, devpath, name)?))).collect()
    }

    fn attribute(&mut self, dir: &Dir, devpath: &str, name: &str) -> Option<String> {
        match name.rsplit_once('/') {
            None => self.value(dir, name),
            Some((way, name)) => {
                let dir = self.walk(devpath, way)?;
                self.value(&dir, name)
            }
        }
    }

    /// An attribute's text; of `driver`, `subsystem` and `module` what their link is called, as udev has it, and of
    /// `iommu_group` likewise: the group's number is what its `/dev/vfio` node is called.
    fn value(&mut self, dir: &Dir, name: &str) -> Option<String> {
        if let "driver" | "subsystem" | "module" | "iommu_group" = name {
            return dir.link_name(name);
        }
        let bytes = dir.read(name, self.buffer.get_mut(..ATTRIBUTE)?).ok()?;
        Some(String::from_utf8_lossy(bytes).trim_end().to_owned())
    }

    /// The directory at `way` from a device. The only link it follows is `device`, and it never enters a device of a
    /// subsystem that is not granted: what another device says is that device's.
    fn walk(&self, devpath: &str, way: &str) -> Option<Dir> {
        let mut path = devpath.to_owned();
        let mut dir = self.device_dir(&path)?;
        for part in way.split('/') {
            path = match dir.link(part) {
                Some(target) if part == "device" => resolve(&path, &target)?,
                Some(_) => return None,
                None => format!("{path}/{part}"),
            };
            dir = self.device_dir(&path)?;
            let subsystem = dir.link_name("subsystem");
            if (subsystem.is_some() || dir.has("uevent")) && !self.granted(subsystem.as_deref()) {
                return None;
            }
        }
        Some(dir)
    }

    /// The directory of a path below `/devices`.
    pub(super) fn device_dir(&self, devpath: &str) -> Option<Dir> {
        let path = devpath.strip_prefix('/').filter(|path| path.starts_with("devices/"))?;
        self.root.dir(path).ok()
    }
}

/// Returns the part of an entry that every caller may see: the names.
pub(super) fn named(devpath: &str, subsystem: Option<&str>) -> Entry {
    Entry {
        devpath: devpath.to_owned(),
        sysname: kernel_name(devpath).replace('!', "/"),
        subsystem: subsystem.map(str::to_owned),
        ..Entry::default()
    }
}

fn kernel_name(devpath: &str) -> &str {
    devpath.rsplit('/').next().unwrap_or_default()
}

/// The device node of a `DEVNAME`; none if it would lie outside of /dev.
fn devnode(name: &str) -> Option<String> {
    let name = name.strip_prefix("/dev/").unwrap_or(name);
    let below = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    below.then(|| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_nodes_lie_below_dev() {
        for (name, node) in [
            ("tty1", Some("/dev/tty1")),
            ("bus/usb/001/002", Some("/dev/bus/usb/001/002")),
            ("/dev/sda", Some("/dev/sda")),
            ("../etc/passwd", None),
            ("/etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(devnode(name).as_deref(), node, "{name:?}");
        }
    }

    #[test]
    fn escaped_slash_is_a_slash_in_the_name() {
        let entry = named("/devices/pci0000:00/block/cciss!c0d0", Some("block"));
        assert_eq!(entry.sysname, "cciss/c0d0");
        assert!(entry.properties.is_empty());
    }
}
