//! One run: what matches, then its descendants, then its ancestors.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::Stop;
use crate::sysfs::device::{self, Reader};
use crate::sysfs::{Entry, Query, Snapshot, enumerate};

/// Ancestors of one device.
const ANCESTORS: usize = 64;

/// Looks once; the answer takes `bytes` of memory at most, about.
pub(super) fn run(reader: Reader<'_>, query: &Query, bytes: usize) -> Result<Snapshot, Stop> {
    let mut run = Run { reader, query, entries: BTreeMap::new(), bytes_left: bytes };
    run.matches()?;
    if query.descendants {
        run.descendants()?;
    }
    if query.ancestors {
        run.ancestors()?;
    }
    Ok(run.finish())
}

struct Run<'a> {
    reader: Reader<'a>,
    query: &'a Query,
    entries: BTreeMap<String, Entry>,
    bytes_left: usize,
}

impl Run<'_> {
    fn matches(&mut self) -> Result<(), Stop> {
        for (devpath, subsystem) in enumerate::devices(&mut self.reader, Some(self.query))? {
            self.reader.in_time()?;
            let dir = self.reader.device_dir(&devpath);
            let entry = dir.as_ref().and_then(|dir| self.reader.entry(dir, &devpath, Some(&subsystem)));
            let (Some(dir), Some(mut entry)) = (dir, entry) else {
                self.reader.unread(devpath);
                continue;
            };
            if self.query.meets(&entry) {
                entry.attributes = self.reader.attributes(&dir, &devpath, self.query);
                entry.matched = true;
                self.add(entry)?;
            }
        }
        Ok(())
    }

    fn descendants(&mut self) -> Result<(), Stop> {
        let all = enumerate::devices(&mut self.reader, None)?;
        let matched: Vec<String> = self.entries.keys().map(|devpath| format!("{devpath}/")).collect();
        for above in matched {
            let below = all.range(above.clone()..).take_while(|(devpath, _)| devpath.starts_with(&above));
            for (devpath, subsystem) in below {
                if !self.entries.contains_key(devpath) {
                    self.relative(devpath, Some(subsystem))?;
                }
            }
        }
        Ok(())
    }

    fn ancestors(&mut self) -> Result<(), Stop> {
        let mut no_device = HashSet::new();
        let below: Vec<String> = self.entries.keys().cloned().collect();
        for mut devpath in below {
            for _ in 0..ANCESTORS {
                devpath.truncate(devpath.rfind('/').unwrap_or(0));
                if !devpath.starts_with("/devices/") || self.entries.contains_key(&devpath) {
                    break;
                }
                if !no_device.contains(&devpath) && !self.ancestor(&devpath)? {
                    no_device.insert(devpath.clone());
                }
            }
        }
        Ok(())
    }

    /// Adds the device at a path above another, if there is one: not every directory is a device.
    fn ancestor(&mut self, devpath: &str) -> Result<bool, Stop> {
        let Some(dir) = self.reader.device_dir(devpath).filter(|dir| dir.has("uevent")) else { return Ok(false) };
        if self.reader.count_device()? {
            self.relative(devpath, dir.link_name("subsystem").as_deref())?;
        }
        Ok(true)
    }

    /// Adds a device that did not match itself: all of it if its subsystem is granted, else its names.
    fn relative(&mut self, devpath: &str, subsystem: Option<&str>) -> Result<(), Stop> {
        self.reader.in_time()?;
        let mut entry = device::named(devpath, subsystem);
        if self.reader.granted(subsystem)
            && let Some(dir) = self.reader.device_dir(devpath)
            && let Some(full) = self.reader.entry(&dir, devpath, subsystem)
        {
            entry = full;
            entry.attributes = self.reader.attributes(&dir, devpath, self.query);
        }
        self.add(entry)
    }

    fn add(&mut self, entry: Entry) -> Result<(), Stop> {
        let left = self.bytes_left.checked_sub(entry.bytes());
        let too_large = || Stop::Limit("the answer is too large: ask for less at once".to_owned());
        self.bytes_left = left.ok_or_else(too_large)?;
        self.entries.insert(entry.devpath.clone(), entry);
        Ok(())
    }

    fn finish(self) -> Snapshot {
        let mut entries: Vec<Entry> = self.entries.into_values().collect();
        if self.query.ancestors {
            link_parents(&mut entries);
        }
        Snapshot { entries, unreadable: self.reader.unreadable, skipped: self.reader.skipped }
    }
}

/// Sets each entry's parent: the nearest ancestor that is a device. Ancestors are all there, and stand before.
fn link_parents(entries: &mut [Entry]) {
    let mut indices = HashMap::new();
    for (index, entry) in (0_u32..).zip(entries) {
        let mut above = entry.devpath.as_str();
        while let (None, Some((directory, _))) = (entry.parent, above.rsplit_once('/')) {
            entry.parent = indices.get(directory).copied();
            above = directory;
        }
        indices.insert(entry.devpath.clone(), index);
    }
}
