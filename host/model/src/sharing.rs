//! What a node tells of the Instances that it shares with others, in the Lease of its agent: which it wants to join, and whose devices
//! it misses (rule 23, rule 114). So a thousand nodes write a thousand small objects, and the controller writes what all of them read.

use std::collections::{BTreeMap, BTreeSet};

use crate::instance::Online;
use crate::names::Key;

/// The annotation with the Instances that the node wants to join.
const JOINING: &str = "akri.sh/joining";

/// The annotation with the Instances whose devices the node misses; `?` follows those of which no handler can tell.
const MISSING: &str = "akri.sh/missing";

/// Most Instances that an annotation names.
const MAX_NAMED: usize = 900;

/// What one node tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Instances whose nodes it wants to be among.
    pub joining: BTreeSet<Key>,
    /// Instances whose devices it misses; `None` if it can't tell yet, so that what it told before counts.
    pub missing: Option<BTreeMap<Key, Online>>,
}

impl Sharing {
    /// Returns the annotations of the Lease.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let joining = self.joining.iter().take(MAX_NAMED).map(Key::to_string).collect::<Vec<_>>().join(",");
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
        let joining = annotations.get(JOINING).map(|text| keys(text).into_iter().collect()).unwrap_or_default();
        let missing = annotations.get(MISSING).map(|text| keys(text).into_iter().map(of_missing).collect());
        Self { joining, missing }
    }
}

/// What all nodes tell.
#[derive(Debug, Default)]
pub struct SharedInstances {
    told: BTreeMap<String, Sharing>,
    joining: BTreeMap<Key, BTreeSet<String>>,
    missing: BTreeMap<Key, BTreeMap<String, Online>>,
}

impl SharedInstances {
    /// Takes what a node tells now, and returns the Instances of which that says something new.
    pub fn put(&mut self, node: &str, mut now: Sharing) -> BTreeSet<Key> {
        let before = self.told.remove(node).unwrap_or_default();
        now.missing = now.missing.or_else(|| before.missing.clone());
        let mut changed: BTreeSet<Key> = now.joining.difference(&before.joining).cloned().collect();
        before.joining.iter().for_each(|key| withdraw(&mut self.joining, key, |nodes| nodes.remove(node)));
        for key in &now.joining {
            self.joining.entry(key.clone()).or_default().insert(node.to_owned());
        }
        let (was, is) = (before.missing.unwrap_or_default(), now.missing.clone().unwrap_or_default());
        let differs = |key: &&Key| was.get(*key) != is.get(*key);
        for key in was.keys().chain(is.keys()).filter(differs) {
            changed.insert(key.clone());
            match is.get(key) {
                Some(online) => drop(self.missing.entry(key.clone()).or_default().insert(node.to_owned(), *online)),
                None => withdraw(&mut self.missing, key, |nodes| nodes.remove(node).is_some()),
            }
        }
        if !now.joining.is_empty() || !is.is_empty() {
            self.told.insert(node.to_owned(), now);
        }
        changed
    }

    /// Forgets a node, and returns the Instances of which it told something.
    pub fn remove(&mut self, node: &str) -> BTreeSet<Key> {
        self.put(node, Sharing { missing: Some(BTreeMap::new()), ..Sharing::default() })
    }

    /// Returns the nodes that want to join an Instance.
    pub fn joining(&self, instance: &Key) -> BTreeSet<String> {
        self.joining.get(instance).cloned().unwrap_or_default()
    }

    /// Returns the nodes that miss the device of an Instance.
    pub fn missing(&self, instance: &Key) -> Option<&BTreeMap<String, Online>> {
        self.missing.get(instance)
    }
}

/// Removes a node from what is told of an Instance, and the Instance with the last of them.
fn withdraw<T: Default + PartialEq>(all: &mut BTreeMap<Key, T>, key: &Key, remove: impl Fn(&mut T) -> bool) {
    if let Some(nodes) = all.get_mut(key)
        && remove(nodes)
        && *nodes == T::default()
    {
        all.remove(key);
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
            joining: joining.iter().map(|number| key(*number)).collect(),
            missing: missing.map(|all| all.iter().map(|(number, online)| (key(*number), *online)).collect()),
        }
    }

    #[test] // rule 23, rule 114
    fn annotations_of_a_lease_have_what_a_node_tells() {
        for told in [
            sharing(&[], None),
            sharing(&[1], None),
            sharing(&[1, 2], Some(&[])),
            sharing(&[], Some(&[(3, Online::False), (4, Online::Unknown)])),
        ] {
            assert_eq!(Sharing::read(&told.to_annotations()), told);
        }
        let many: Vec<usize> = (0..2_000).collect();
        let annotations = sharing(&many, Some(&[])).to_annotations();
        assert_eq!(Sharing::read(&annotations).joining.len(), MAX_NAMED);
    }

    #[test] // rule 23
    fn nodes_join_until_they_say_so_no_more() {
        let mut all = SharedInstances::default();
        assert_eq!(all.put("a", sharing(&[1, 2], None)), [key(1), key(2)].into());
        assert_eq!(all.put("b", sharing(&[1], None)), [key(1)].into());
        assert_eq!(all.joining(&key(1)), ["a".to_owned(), "b".to_owned()].into());
        assert_eq!(all.put("a", sharing(&[2], None)), BTreeSet::new(), "nothing to do for one that has joined");
        assert_eq!((all.joining(&key(1)), all.joining(&key(2))), (["b".to_owned()].into(), ["a".to_owned()].into()));
        all.remove("a");
        all.remove("b");
        assert!(all.joining.is_empty() && all.told.is_empty());
    }

    #[test] // rule 114
    fn node_that_can_not_tell_yet_still_misses_what_it_missed() {
        let mut all = SharedInstances::default();
        let missing =
            |all: &SharedInstances| all.missing(&key(1)).map(|nodes| nodes.keys().cloned().collect::<Vec<_>>());
        all.put("a", sharing(&[], Some(&[(1, Online::False)])));
        assert_eq!(all.put("a", sharing(&[], None)), BTreeSet::new(), "its agent starts");
        assert_eq!(missing(&all), Some(vec!["a".to_owned()]));
        assert_eq!(all.put("a", sharing(&[], Some(&[(1, Online::Unknown)]))), [key(1)].into());
        assert_eq!(all.put("a", sharing(&[], Some(&[]))), [key(1)].into());
        assert_eq!(missing(&all), None);
        all.put("a", sharing(&[], Some(&[(1, Online::False)])));
        assert_eq!(all.remove("a"), [key(1)].into());
        assert_eq!(missing(&all), None);
    }
}
