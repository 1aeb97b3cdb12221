//! The devices a person means: by their node, their path or their name in the kernel.

use std::path::{Path, PathBuf};

use crate::sysfs::{Bounds, Entry, Query, Stop, Sysfs};

/// Devices that may bear one name; a kernel name is unique in its subsystem only.
const ALIKE: usize = 16;

impl Sysfs {
    /// The devices `name` names, with their driver, node, properties and tags: `/dev/video0` or a link to it,
    /// `/sys/class/video4linux/video0` or another path of sysfs with or without its mount point, `video0`.
    pub fn find(&self, name: &str, bounds: &Bounds) -> Result<Vec<Entry>, Stop> {
        let Some(name) = self.name(name) else { return Ok(Vec::new()) };
        let all = ["*".to_owned()];
        let found = self.run(&name.query(), &all, bounds)?.entries;
        Ok(found.into_iter().filter(|entry| name.is_of(entry)).take(ALIKE).collect())
    }

    /// Returns the kind of a name, with links resolved; `None` if it names a path that does not exist.
    fn name(&self, name: &str) -> Option<Name> {
        if name.starts_with("/dev/") {
            let node = Path::new(name).canonicalize().unwrap_or_else(|_| PathBuf::from(name));
            return Some(Name::Node(node.to_str()?.to_owned()));
        }
        if !name.starts_with('/') {
            return Some(Name::Kernel(name.to_owned()));
        }
        let root = self.root.canonicalize().ok()?;
        let path = Path::new(name);
        let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/sys"));
        let below = below.or_else(|_| path.strip_prefix("/")).ok()?;
        let real = root.join(below).canonicalize().ok()?;
        Some(Name::Path(format!("/{}", real.strip_prefix(&root).ok()?.to_str()?)))
    }
}

/// A name of a device.
enum Name {
    Node(String),
    /// Without sysfs' mount point.
    Path(String),
    Kernel(String),
}

impl Name {
    fn query(&self) -> Query {
        let mut query = Query::default();
        match self {
            Self::Node(node) => query.match_property("DEVNAME".to_owned(), literal(node)),
            Self::Path(path) => query.match_devpath(literal(path)),
            Self::Kernel(name) => query.match_sysname(literal(name)),
        }
        query
    }

    fn is_of(&self, entry: &Entry) -> bool {
        match self {
            Self::Node(node) => entry.devnode.as_ref() == Some(node),
            Self::Path(path) => entry.devpath == *path,
            Self::Kernel(name) => entry.sysname == *name,
        }
    }
}

/// A glob that matches the text, and perhaps more: not every character can be kept from its meaning.
fn literal(text: &str) -> String {
    text.replace(['*', '?', '[', '|', '\\'], "?")
}
