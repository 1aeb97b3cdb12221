//! The Lease by which the agent of each node shows that it runs (rule 59), and which objects it has looked at (rule 131).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::names::{Key, node_hash};
use crate::sharing::Sharing;

/// The time that a Lease is good after its renewal.
pub const GOOD_FOR: Duration = Duration::from_secs(180);

/// The beginning of the name of a Lease.
const PREFIX: &str = "akri-agent-";

/// Longest name of a Lease.
const MAX_NAME: usize = 253;

/// Returns the name of the Lease of a node's agent. It has the node's name, by which an admission policy sees whose Lease it is
/// (rule 109); of a name that does not fit it has the beginning.
pub fn name(node: &str) -> String {
    let mut name = format!("{PREFIX}{node}");
    name.truncate(MAX_NAME);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the node of a Lease with such a name; of one that was cut off, its beginning.
pub fn node(lease: &str) -> Option<&str> {
    lease.strip_prefix(PREFIX)
}

/// Returns the name that the agent of version 0.1 gives it. It is read while nodes are upgraded.
pub fn former_name(node: &str) -> String {
    format!("{PREFIX}{}", node_hash(node))
}

/// The annotation with the highest versions of a Configuration and of a DiscoveryHandler that the agent's watches have shown.
const WATCHED: &str = "akri.sh/watched";

/// The annotation with the objects that they show and whose present generation the agent has not looked at.
const PENDING: &str = "akri.sh/pending";

/// The annotation with the highest version in each namespace that a report of the agent had.
const REPORTED: &str = "akri.sh/reported";

/// Most objects, and most namespaces, that are named in a Lease.
const MAX_NAMED: usize = 100;

/// A version, a `resourceVersion`, for each kind of objects: watches of two kinds are not equally fast.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of Configurations.
    pub configurations: u64,
    /// Of DiscoveryHandlers.
    pub handlers: u64,
}

impl Versions {
    /// Returns the version for the kind of an object: a DiscoveryHandler has no namespace.
    pub fn of(&mut self, object: &Key) -> &mut u64 {
        if object.namespace.is_empty() { &mut self.handlers } else { &mut self.configurations }
    }
}

/// A version for each namespace. That of DiscoveryHandlers has no name.
pub type NamespaceVersions = BTreeMap<String, u64>;

/// The objects that an agent has looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// It has looked at what was made or edited up to these versions, ...
    watched: Versions,
    /// ... but for these.
    pending: BTreeSet<Key>,
    /// The highest versions that its reports had: who has not seen them does not know its reports.
    reported: NamespaceVersions,
    /// The entries of the node about Instances that it shares.
    pub sharing: Sharing,
}

impl Progress {
    /// Creates it from the highest versions that were watched, the pending objects with the versions since which they have
    /// their generation, and the highest versions of reports. If too many objects are pending, what is older than all of them counts as
    /// watched; of too many namespaces the newest are named.
    pub fn new(mut watched: Versions, mut pending: BTreeMap<Key, u64>, mut reported: NamespaceVersions) -> Self {
        if pending.len() > MAX_NAMED {
            for (object, since) in std::mem::take(&mut pending) {
                let watched = watched.of(&object);
                *watched = (*watched).min(since.saturating_sub(1));
            }
        }
        let mut newest: Vec<u64> = reported.values().copied().collect();
        newest.sort_unstable_by(|one, other| other.cmp(one));
        if let Some(last) = newest.get(MAX_NAMED - 1) {
            reported.retain(|_, version| *version >= *last);
        }
        Self { watched, pending: pending.into_keys().collect(), reported, sharing: Sharing::default() }
    }

    /// Returns whether the agent has looked at an object that has its generation since that version.
    pub fn covers(&self, object: &Key, since: u64) -> bool {
        let mut watched = self.watched;
        since <= *watched.of(object) && !self.pending.contains(object)
    }

    /// Returns whether the agent has reported what is not seen yet in the namespace of an object; `seen` is the highest version there.
    pub fn is_ahead(&self, object: &Key, seen: u64) -> bool {
        self.reported.get(&*object.namespace).is_some_and(|reported| *reported > seen)
    }

    /// Returns the annotations of the Lease.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let Versions { configurations, handlers } = self.watched;
        let pending: Vec<String> = self.pending.iter().map(Key::to_string).collect();
        let reported: Vec<String> = self.reported.iter().map(|(namespace, at)| format!("{namespace}={at}")).collect();
        let mut annotations = self.sharing.to_annotations();
        let own = [
            (WATCHED, format!("{configurations},{handlers}")),
            (PENDING, pending.join(",")),
            (REPORTED, reported.join(",")),
        ];
        annotations.extend(own.map(|(key, value)| (key.to_owned(), value)));
        annotations
    }

    /// Reads the annotations of a Lease. An agent of version 0.1 has none: it has looked at nothing.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let text = |key| annotations.get(key).map(String::as_str).unwrap_or_default();
        let mut versions = text(WATCHED).split(',').map(|version| version.parse().unwrap_or_default());
        let mut next = || versions.next().unwrap_or_default();
        let watched = Versions { configurations: next(), handlers: next() };
        let keys = text(PENDING).split(',').filter_map(|key| key.split_once('/'));
        let pending = keys.map(|(namespace, name)| Key::new(namespace, name)).collect();
        let reported = text(REPORTED).split(',').filter_map(|reported| reported.split_once('='));
        let reported = reported.filter_map(|(namespace, at)| Some((namespace.to_owned(), at.parse().ok()?))).collect();
        Self { watched, pending, reported, sharing: Sharing::read(annotations) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 131
    fn annotations_have_the_objects_that_were_looked_at() {
        let key = |number: u64| Key::new("default", format!("cam-{number}"));
        let pending = |count: u64| (0..count).map(|number| (key(number), 40 + number)).collect::<BTreeMap<_, _>>();
        let progress = |pending| Progress::new(Versions { configurations: 50, handlers: 60 }, pending, BTreeMap::new());
        let covered = |progress: &Progress| {
            let read = Progress::read(&progress.to_annotations());
            assert_eq!(read, *progress);
            [(key(1), 41), (key(500), 39), (key(500), 50), (key(500), 51)].map(|(key, since)| read.covers(&key, since))
        };
        assert_eq!(covered(&progress(pending(0))), [true, true, true, false]);
        assert_eq!(covered(&progress(pending(2))), [false, true, true, false]);
        assert_eq!(covered(&progress(pending(101))), [false, true, false, false], "too many to be named");
        assert_eq!(covered(&Progress::read(&BTreeMap::new())), [false; 4]);
        let handlers = |progress: &Progress| {
            let read = Progress::read(&progress.to_annotations());
            [("udev", 45), ("udev", 60), ("onvif", 60), ("onvif", 61)]
                .map(|(name, since)| read.covers(&Key::new("", name), since))
        };
        let udev = (Key::new("", "udev"), 45);
        assert_eq!(handlers(&progress(pending(101))), [true, true, true, false], "those are of another kind");
        assert_eq!(handlers(&progress([udev.clone()].into())), [false, false, true, false]);
        let mut both = pending(101);
        both.extend([udev]);
        assert_eq!(
            (handlers(&progress(both.clone())), covered(&progress(both))),
            ([false; 4], [false, true, false, false])
        );
    }

    #[test] // rule 131
    fn reports_are_ahead_until_their_version_is_seen() {
        let reported = NamespaceVersions::from([("".to_owned(), 70), ("default".to_owned(), 55)]);
        let progress = Progress::new(Versions::default(), BTreeMap::new(), reported);
        let read = Progress::read(&progress.to_annotations());
        assert_eq!(read, progress);
        let (cam, other, udev) = (Key::new("default", "cam"), Key::new("other", "cam"), Key::new("", "udev"));
        assert_eq!([54, 55, 56].map(|seen| read.is_ahead(&cam, seen)), [true, false, false]);
        assert!(!read.is_ahead(&other, 0), "nothing was reported there");
        assert_eq!([69, 70].map(|seen| read.is_ahead(&udev, seen)), [true, false]);
        let many = (0..150).map(|number| (format!("n-{number:03}"), number)).collect();
        let progress = Progress::new(Versions::default(), BTreeMap::new(), many);
        let is_named = |namespace: &str| progress.is_ahead(&Key::new(namespace, "cam"), 0);
        assert_eq!(["n-049", "n-050", "n-149"].map(is_named), [false, true, true], "the newest are named");
    }

    #[test] // rule 109
    fn lease_name_has_the_name_of_the_node_and_fits() {
        assert_eq!(name("node-a.example"), "akri-agent-node-a.example");
        let label = "n".repeat(60);
        let longest = format!("{label}.{label}.{label}.{}-{}", "n".repeat(58), "n".repeat(11));
        assert_eq!(longest.len(), 253);
        let name = name(&longest);
        assert!(name.len() <= MAX_NAME && format!("akri-agent-{longest}").starts_with(&name));
        assert!(name.ends_with('n'), "{name}");
    }
}
