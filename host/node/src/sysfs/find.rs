//! The devices a person means: by their node, their path or their name in the kernel.

use std::path::{Path, PathBuf};

use crate::Stop;
use crate::sysfs::{Bounds, Entry, Query, Sysfs};

/// Devices that may bear one name; a kernel name is unique in its subsystem only.
const ALIKE: usize = 16;

impl Sysfs {
    /// The devices `name` names, with their driver, node, properties and tags: `/dev/video0` or a link to it,
    /// `/sys/class/video4linux/video0` or another path of sysfs with or without its mount point, `video0`.
    pub fn find(&self, name: &str, bounds: &Bounds) -> Result<Vec<Entry>, Stop> {
        let Some(name) = self.name(name) else { return Ok(Vec::new()) };
        let mut query = Query::default();
        (name.ask)(&mut query, literal(&name.text));
        let found = self.run(&query, &["*".to_owned()], bounds)?.entries;
        let has_name = |entry: &Entry| (name.read)(entry) == Some(&name.text);
        Ok(found.into_iter().filter(has_name).take(ALIKE).collect())
    }

    /// Returns the kind of a name, with links resolved; `None` if it names a path that does not exist.
    fn name(&self, name: &str) -> Option<Name> {
        if name.starts_with("/dev/") {
            let node = Path::new(name).canonicalize().unwrap_or_else(|_| PathBuf::from(name));
            return Some(Name {
                text: node.to_str()?.to_owned(),
                ask: |query, glob| query.match_property("DEVNAME".to_owned(), glob),
                read: |entry| entry.devnode.as_deref(),
            });
        }
        if !name.starts_with('/') {
            let (ask, text) = (Query::match_sysname, name.to_owned());
            return Some(Name { text, ask, read: |entry| Some(&entry.sysname) });
        }
        let root = self.root.canonicalize().ok()?;
        let path = Path::new(name);
        let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/sys"));
        let below = below.or_else(|_| path.strip_prefix("/")).ok()?;
        let real = root.join(below).canonicalize().ok()?;
        let text = format!("/{}", real.strip_prefix(&root).ok()?.to_str()?);
        Some(Name { text, ask: Query::match_devpath, read: |entry| Some(&entry.devpath) })
    }
}

/// A name of a device: how a query asks for it, and where an entry has it.
struct Name {
    text: String,
    ask: fn(&mut Query, String),
    read: fn(&Entry) -> Option<&str>,
}

/// A glob that matches the text, and perhaps more: not every character can be kept from its meaning.
fn literal(text: &str) -> String {
    text.replace(['*', '?', '[', '|', '\\'], "?")
}
