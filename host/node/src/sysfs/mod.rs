//! The devices of the node as the kernel (`/sys`) and udev's database (`/run/udev/data`) describe them.
//!
//! Reading blocks: call it from a thread that may. Nothing is remembered from one run to the next. See the kernel's
//! `Documentation/admin-guide/sysfs-rules.rst` and systemd's `sd-device` for what the files mean.

mod database;
mod device;
mod dir;
mod enumerate;
mod find;
mod query;
mod run;

use std::path::PathBuf;
use std::time::Instant;

use akri_model::glob;
use serde::{Deserialize, Serialize};

use self::device::Reader;
pub use self::query::Query;
use crate::Stop;

/// The directories to read.
#[derive(Debug, Clone)]
pub struct Sysfs {
    /// Usually `/sys`.
    pub root: PathBuf,
    /// Usually `/run/udev/data`; it need not exist.
    pub udev_data: PathBuf,
}

/// Bounds on one run.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Memory of the answer, about.
    pub bytes: usize,
    /// The deadline.
    pub until: Instant,
}

/// The answer.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Snapshot {
    /// In ascending order of path.
    pub entries: Vec<Entry>,
    /// Paths of devices that are there and could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// The number of other omitted entries: links that can't lead to a device, and entries beyond a bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: u32,
}

/// A device (`wit/udev.wit`).
#[serde_with::skip_serializing_none]
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Entry {
    /// Path below `/sys`, such as `/devices/virtual/mem/null`.
    pub devpath: String,
    /// Index in the snapshot.
    pub parent: Option<u32>,
    /// True if it is one that was asked for, not only its ancestor or descendant.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub matched: bool,
    /// The kernel's name, such as `video0`.
    pub sysname: String,
    /// The subsystem, such as `video4linux`.
    pub subsystem: Option<String>,
    /// The driver.
    pub driver: Option<String>,
    /// The device node, such as `/dev/video0`.
    pub devnode: Option<String>,
    /// In ascending order of names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<(String, String)>,
    /// Tags of udev.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The attributes asked for, in the order of names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(String, String)>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Entry {
    /// The memory it takes, about.
    pub fn bytes(&self) -> usize {
        let pairs = self.properties.iter().chain(&self.attributes);
        let pairs: usize = pairs.map(|(name, value)| size_of::<(String, String)>() + name.len() + value.len()).sum();
        let tags: usize = self.tags.iter().map(|tag| size_of::<String>() + tag.len()).sum();
        let names = [&self.subsystem, &self.driver, &self.devnode].into_iter().flatten().map(String::len);
        size_of::<Self>() + self.devpath.len() + self.sysname.len() + names.sum::<usize>() + pairs + tags
    }
}

impl Sysfs {
    /// Answers a query with devices of `granted` subsystems (globs); others only as ancestors or descendants, by name.
    ///
    /// Devices that cannot be read, or vanish meanwhile, are counted and left out.
    ///
    /// # Errors
    /// The query or its answer is too large, or nothing could be read.
    pub fn run(&self, query: &Query, granted: &[String], bounds: &Bounds) -> Result<Snapshot, Stop> {
        if let Some(wrong) = query.wrong() {
            return Err(Stop::Limit(wrong.to_owned()));
        }
        run::run(Reader::new(self, granted, bounds.until)?, query, bounds.bytes)
    }
}

/// Returns whether devices of this subsystem may be shown; those without one only if everything may.
pub fn is_granted(granted: &[String], subsystem: Option<&str>) -> bool {
    glob::any(granted, subsystem.unwrap_or_default())
}

#[cfg(test)]
mod tests;
