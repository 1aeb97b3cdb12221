//! A query, and the conditions that a device's name and properties match.

use akri_model::glob;
use serde::Serialize;

use crate::sysfs::Entry;

/// Matches of one kind, attributes, and properties asked about, each.
const MATCHES: usize = 32;
/// Bytes of a glob or a name.
const LENGTH: usize = 256;
/// Bytes of all of them.
const BYTES: usize = 16 << 10;
/// Components of an attribute's path.
const DEPTH: usize = 16;

/// A query. Several matches of one kind are alternatives, different kinds all have to hold.
#[serde_with::apply(
    Vec => #[serde(skip_serializing_if = "Vec::is_empty")],
    bool => #[serde(skip_serializing_if = "std::ops::Not::not")],
)]
#[derive(Debug, Default, Clone, Serialize)]
pub struct Query {
    pub(super) subsystems: Vec<String>,
    pub(super) sysnames: Vec<String>,
    pub(super) devpaths: Vec<String>,
    properties: Vec<(String, Vec<String>)>,
    tags: Vec<String>,
    pub(super) attributes: Vec<String>,
    /// Set if every ancestor of what matched is returned, too.
    pub ancestors: bool,
    /// Set if every descendant of what matched is returned, too.
    pub descendants: bool,
    #[serde(skip)]
    text: Text,
}

impl Query {
    /// Only devices of such a subsystem.
    pub fn match_subsystem(&mut self, glob: String) {
        self.text.take(&mut self.subsystems, glob, "subsystems");
    }

    /// Only devices of such a name.
    pub fn match_sysname(&mut self, glob: String) {
        self.text.take(&mut self.sysnames, glob, "sysnames");
    }

    /// Only devices at such a path.
    pub fn match_devpath(&mut self, glob: String) {
        self.text.take(&mut self.devpaths, glob, "devpaths");
    }

    /// Only devices that have the property, with such a value.
    pub fn match_property(&mut self, name: String, glob: String) {
        if !self.properties.iter().any(|(known, _)| *known == name) {
            let mut names: Vec<String> = self.properties.iter().map(|(name, _)| name.clone()).collect();
            if !self.text.take(&mut names, name.clone(), "properties") {
                return;
            }
            self.properties.push((name.clone(), Vec::new()));
        }
        if let Some((_, globs)) = self.properties.iter_mut().find(|(known, _)| *known == name) {
            self.text.take(globs, glob, "values of a property");
        }
    }

    /// Only devices with such a tag.
    pub fn match_tag(&mut self, glob: String) {
        self.text.take(&mut self.tags, glob, "tags");
    }

    /// Also reads an attribute, a path below the device's directory.
    pub fn read_attribute(&mut self, name: String) {
        let mut parts = name.split('/');
        if name.split('/').count() > DEPTH || parts.any(|part| matches!(part, "" | "." | "..") || part.contains('\0')) {
            self.text.wrong.get_or_insert(format!("{name:.256?} is not the path of an attribute below its device"));
        } else if !self.attributes.contains(&name) {
            self.text.take(&mut self.attributes, name, "attributes");
        }
    }

    /// The first thing that is wrong with it.
    pub(super) fn wrong(&self) -> Option<&str> {
        self.text.wrong.as_deref()
    }

    /// Returns whether the device matches the conditions on properties and tags.
    pub(super) fn meets(&self, entry: &Entry) -> bool {
        let value = |name: &str| entry.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let property = |(name, globs): &(String, Vec<String>)| value(name).is_some_and(|value| glob::any(globs, value));
        let tagged = || entry.tags.iter().any(|tag| glob::any(&self.tags, tag));
        self.properties.iter().all(property) && (self.tags.is_empty() || tagged())
    }
}

/// Returns whether a name may match: of no globs, each does.
pub(super) fn meets(globs: &[String], text: &str) -> bool {
    globs.is_empty() || glob::any(globs, text)
}

/// Bounds what a query may hold; a builder's functions can't answer, so what is wrong is told when the query runs.
#[derive(Debug, Default, Clone)]
struct Text {
    bytes: usize,
    wrong: Option<String>,
}

impl Text {
    fn take(&mut self, list: &mut Vec<String>, text: String, what: &str) -> bool {
        self.bytes += text.len();
        let why = if list.len() >= MATCHES {
            format!("a query holds at most {MATCHES} {what}")
        } else if text.len() > LENGTH || self.bytes > BYTES {
            format!("a query holds at most {LENGTH} bytes in one of its {what} and {BYTES} in all")
        } else {
            list.push(text);
            return true;
        };
        self.wrong.get_or_insert(why);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Query)) -> Option<String> {
        let mut query = Query::default();
        change(&mut query);
        query.wrong().map(str::to_owned)
    }

    #[test]
    fn queries_are_bounded() {
        let many = |each: fn(&mut Query, String)| move |q: &mut Query| (0..33).for_each(|i| each(q, format!("a{i}")));
        assert!(wrong(many(Query::match_subsystem)).unwrap().contains("32 subsystems"));
        assert!(wrong(many(Query::match_sysname)).unwrap().contains("32 sysnames"));
        assert!(wrong(many(Query::match_devpath)).unwrap().contains("32 devpaths"));
        assert!(wrong(many(Query::match_tag)).unwrap().contains("32 tags"));
        assert!(wrong(many(Query::read_attribute)).unwrap().contains("32 attributes"));
        assert!(wrong(many(|q, name| q.match_property(name, "*".to_owned()))).unwrap().contains("32 properties"));
        assert!(wrong(many(|q, glob| q.match_property("A".to_owned(), glob))).unwrap().contains("32 values"));
        assert!(wrong(|q| q.match_tag("x".repeat(257))).unwrap().contains("256 bytes"));
        assert_eq!(wrong(|q| (0..32).for_each(|i| q.match_tag(i.to_string()))), None);
    }

    #[test]
    fn attributes_are_paths_below_the_device() {
        for name in ["../dev", "a/../../b", "/etc/passwd", "", "a//b", ".", "a/./b", "a\0b", &"a/".repeat(20)] {
            assert!(wrong(|q| q.read_attribute(name.to_owned())).is_some(), "{name:?}");
        }
        for name in ["dev", "device/vendor", "queue/rotational"] {
            assert_eq!(wrong(|q| q.read_attribute(name.to_owned())), None, "{name:?}");
        }
    }

    #[test]
    fn property_values_are_alternatives_and_all_must_hold() {
        let mut query = Query::default();
        query.match_property("A".to_owned(), "1".to_owned());
        query.match_property("A".to_owned(), "2".to_owned());
        query.match_property("B".to_owned(), "*".to_owned());
        let entry = |pairs: &[(&str, &str)]| Entry {
            properties: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..Entry::default()
        };
        assert!(query.meets(&entry(&[("A", "2"), ("B", "")])));
        assert!(!query.meets(&entry(&[("A", "3"), ("B", "")])));
        assert!(!query.meets(&entry(&[("A", "1")])));
    }
}
