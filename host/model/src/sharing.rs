//! Entries of a node's Lease about the Instances that it shares with others: those that it wants to join, and those whose devices
//! it misses (rule 23, rule 114). So a thousand nodes write a thousand small objects, and the controller writes what all of them read.

use std::collections::{BTreeMap, BTreeSet};

use crate::instance::Online;
use crate::names::Key;

/// The annotation with the Instances that the node wants to join.
const JOINING: &str = "akri.sh/joining";

/// The annotation with the Instances whose devices the node misses; `?` follows those of which no handler can tell.
const MISSING: &str = "akri.sh/missing";

/// Most Instances that an annotation names.
pub const MAX_NAMED: usize = 900;

/// The entries of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Instances whose nodes it wants to be among, with their UIDs: an agent that was killed leaves the entry, and the Instance may be made
    /// again.
    pub joining: BTreeMap<Key, String>,
    /// Instances whose devices it misses; `None` if it can't tell yet, so that its entry of before counts.
    pub missing: Option<BTreeMap<Key, Online>>,
}

impl Sharing {
    /// Returns the annotations of the Lease.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let joining = self.joining.iter().take(MAX_NAMED).map(|(key, uid)| format!("{key}={uid}"));
        let joining = joining.collect::<Vec<_>>().join(",");
        let missing = self.missing.as_ref().map(|missing| {
            let named = missing.iter().take(MAX_NAMED).map(|(key, online)| match online {
                Online::Unknown => format!("{key}?"),
                Online::False | Online::True => key.to_string(),
            });
            named.collect::<Vec<_>>().join(",")
        });
        let joining = Some(joining).filter(|joining| !joining.is_empty());
        let both = [(JOINING, joining), (MISSING, missing)];
        both.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// Reads the annotations of a Lease.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let keys = |text: &str| {
            let keys = text.split(',').filter_map(|key| key.split_once('/'));
            keys.map(|(namespace, name)| Key::new(namespace, name)).collect::<Vec<_>>()
        };
        let of_missing = |key: Key| match key.name.strip_suffix('?') {
            Some(name) => (Key::new(&*key.namespace, name), Online::Unknown),
            None => (key, Online::False),
        };
        let of_joining = |key: Key| {
            let (name, uid) = key.name.split_once('=')?;
            Some((Key::new(&*key.namespace, name), uid.to_owned()))
        };
        let joining = annotations.get(JOINING).map(|text| keys(text).into_iter().filter_map(of_joining).collect());
        let joining = joining.unwrap_or_default();
        let missing = annotations.get(MISSING).map(|text| keys(text).into_iter().map(of_missing).collect());
        Self { joining, missing }
    }
}

/// A device that a node misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// `Unknown` if its handler can't tell.
    pub online: Online,
    /// The time at which that was first seen, in Unix seconds.
    pub since: i64,
}

/// The entries of all nodes.
#[derive(Debug, Default)]
pub struct SharedInstances {
    entries: BTreeMap<String, Sharing>,
    joining: BTreeMap<Key, BTreeMap<String, String>>,
    missing: BTreeMap<Key, BTreeMap<String, Missed>>,
}

impl SharedInstances {
    /// Takes the entries of a node as they are now, at `since` in Unix seconds, and returns the Instances whose entries have changed; a join
    /// that has ended is none.
    pub fn put(&mut self, node: &str, mut now: Sharing, since: i64) -> BTreeSet<Key> {
        let before = self.entries.remove(node).unwrap_or_default();
        now.missing = now.missing.or_else(|| before.missing.clone());
        let is_new = |(key, uid): &(&Key, &String)| before.joining.get(*key) != Some(*uid);
        let mut changed: BTreeSet<Key> = now.joining.iter().filter(is_new).map(|(key, _)| key.clone()).collect();
        before.joining.keys().for_each(|key| withdraw(&mut self.joining, key, node));
        for (key, uid) in &now.joining {
            self.joining.entry(key.clone()).or_default().insert(node.to_owned(), uid.clone());
        }
        let (was, is) = (before.missing.unwrap_or_default(), now.missing.clone().unwrap_or_default());
        let differs = |key: &&Key| was.get(*key) != is.get(*key);
        for key in was.keys().chain(is.keys()).filter(differs) {
            changed.insert(key.clone());
            match is.get(key) {
                Some(online) => {
                    let missed = Missed { online: *online, since };
                    self.missing.entry(key.clone()).or_default().insert(node.to_owned(), missed);
                }
                None => withdraw(&mut self.missing, key, node),
            }
        }
        if !now.joining.is_empty() || !is.is_empty() {
            self.entries.insert(node.to_owned(), now);
        }
        changed
    }

    /// Forgets a node, and returns the Instances whose entries have changed.
    pub fn remove(&mut self, node: &str) -> BTreeSet<Key> {
        self.put(node, Sharing { missing: Some(BTreeMap::new()), ..Sharing::default() }, 0)
    }

    /// Returns the nodes that want to join the Instance of that UID.
    pub fn joining(&self, instance: &Key, uid: &str) -> BTreeSet<String> {
        let nodes = self.joining.get(instance).into_iter().flatten().filter(|(_, of)| *of == uid);
        nodes.map(|(node, _)| node.clone()).collect()
    }

    /// Returns the nodes that miss the device of an Instance.
    pub fn missing(&self, instance: &Key) -> Option<&BTreeMap<String, Missed>> {
        self.missing.get(instance)
    }
}

/// Removes a node from the entries of an Instance, and the Instance with the last of them.
fn withdraw<T>(all: &mut BTreeMap<Key, BTreeMap<String, T>>, key: &Key, node: &str) {
    if let Some(nodes) = all.get_mut(key) {
        nodes.remove(node);
        if nodes.is_empty() {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("default", format!("cam-{number:06}"))
    }

    fn sharing(joining: &[usize], missing: Option<&[(usize, Online)]>) -> Sharing {
        Sharing {
            joining: joining.iter().map(|number| (key(*number), "u".to_owned())).collect(),
            missing: missing.map(|all| all.iter().map(|(number, online)| (key(*number), *online)).collect()),
        }
    }

    #[test] // rule 23, rule 114
    fn annotations_have_what_a_node_joins_and_misses() {
        for entries in [
            sharing(&[], None),
            sharing(&[1], None),
            sharing(&[1, 2], Some(&[])),
            sharing(&[], Some(&[(3, Online::False), (4, Online::Unknown)])),
        ] {
            assert_eq!(Sharing::read(&entries.to_annotations()), entries);
        }
        let many: Vec<usize> = (0..2_000).collect();
        let annotations = sharing(&many, Some(&[])).to_annotations();
        assert_eq!(Sharing::read(&annotations).joining.len(), MAX_NAMED);
    }

    #[test] // rule 23
    fn nodes_join_until_their_entries_go() {
        let mut all = SharedInstances::default();
        assert_eq!(all.put("a", sharing(&[1, 2], None), 7), [key(1), key(2)].into());
        assert_eq!(all.put("b", sharing(&[1], None), 7), [key(1)].into());
        assert_eq!(all.joining(&key(1), "u"), ["a".to_owned(), "b".to_owned()].into());
        assert_eq!(all.joining(&key(1), "v"), BTreeSet::new(), "it was made again");
        assert_eq!(all.put("a", sharing(&[2], None), 7), BTreeSet::new(), "nothing to do for one that has joined");
        assert_eq!(all.joining(&key(1), "u"), ["b".to_owned()].into());
        assert_eq!(all.joining(&key(2), "u"), ["a".to_owned()].into());
        all.remove("a");
        all.remove("b");
        assert!(all.joining.is_empty() && all.entries.is_empty());
    }

    #[test] // rule 114
    fn node_that_starts_still_misses_what_it_missed() {
        let mut all = SharedInstances::default();
        let missing = |all: &SharedInstances| all.missing(&key(1)).map(|nodes| nodes["a"].since);
        all.put("a", sharing(&[], Some(&[(1, Online::False)])), 7);
        assert_eq!(all.put("a", sharing(&[], None), 8), BTreeSet::new(), "its agent starts");
        assert_eq!(all.put("a", sharing(&[], Some(&[(1, Online::False), (2, Online::False)])), 9), [key(2)].into());
        assert_eq!(missing(&all), Some(7));
        assert_eq!(all.put("a", sharing(&[], Some(&[(1, Online::Unknown)])), 10), [key(1), key(2)].into());
        assert_eq!(missing(&all), Some(10));
        assert_eq!(all.put("a", sharing(&[], Some(&[])), 11), [key(1)].into());
        assert_eq!(missing(&all), None);
        all.put("a", sharing(&[], Some(&[(1, Online::False)])), 7);
        assert_eq!(all.remove("a"), [key(1)].into());
        assert_eq!(missing(&all), None);
    }
}
