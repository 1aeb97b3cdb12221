//! Views of all objects of a kind, by name and by what they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_kube::watch::{Change, key_of};
use akri_model::names::Key;

use crate::views::View;
use crate::work::Work;

/// The objects of a kind.
pub(crate) struct Store<V> {
    items: BTreeMap<Key, Arc<V>>,
    by_owner: BTreeMap<Work, BTreeSet<Key>>,
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), by_owner: BTreeMap::new() }
    }
}

/// An object before and after a change; one of them is there.
pub(crate) struct Changed<V> {
    pub(crate) before: Option<Arc<V>>,
    pub(crate) after: Option<Arc<V>>,
}

impl<V: View> Changed<V> {
    /// Returns the former and the current owner of the object.
    pub(crate) fn owners(&self) -> BTreeSet<Work> {
        [&self.before, &self.after].into_iter().flatten().filter_map(|view| view.owner()).collect()
    }

    /// The object.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.after.as_ref().or(self.before.as_ref()).map(|view| view.key())
    }
}

impl<V: View> Store<V> {
    /// Stores a view; returns `None` if the object was like that before.
    fn put(&mut self, view: V) -> Option<Changed<V>> {
        let key = view.key().clone();
        if self.items.get(&key).is_some_and(|before| **before == view) {
            return None;
        }
        let before = self.remove(&key).and_then(|changed| changed.before);
        let after = Arc::new(view);
        if let Some(owner) = after.owner() {
            self.by_owner.entry(owner).or_default().insert(key.clone());
        }
        self.items.insert(key, Arc::clone(&after));
        Some(Changed { before, after: Some(after) })
    }

    fn remove(&mut self, key: &Key) -> Option<Changed<V>> {
        let before = self.items.remove(key)?;
        if let Some(owner) = before.owner() {
            let is_last = self.by_owner.get_mut(&owner).is_some_and(|keys| {
                keys.remove(key);
                keys.is_empty()
            });
            if is_last {
                self.by_owner.remove(&owner);
            }
        }
        Some(Changed { before: Some(before), after: None })
    }

    /// Applies a change from the watch.
    pub(crate) fn take(&mut self, change: Change<V>) -> Vec<Changed<V>> {
        match change {
            Change::All(views) => self.replace(views),
            Change::Put(view) => self.put(view).into_iter().collect(),
            Change::Deleted(metadata) => self.remove(&key_of(&metadata)).into_iter().collect(),
        }
    }

    fn replace(&mut self, views: Vec<V>) -> Vec<Changed<V>> {
        let now: BTreeSet<Key> = views.iter().map(|view| view.key().clone()).collect();
        let deleted: Vec<Key> = self.items.keys().filter(|key| !now.contains(key)).cloned().collect();
        let removed: Vec<Changed<V>> = deleted.iter().filter_map(|key| self.remove(key)).collect();
        removed.into_iter().chain(views.into_iter().filter_map(|view| self.put(view))).collect()
    }

    /// Returns an object.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.items.get(key).map(Arc::clone)
    }

    /// Returns the objects that belong to an owner.
    pub(crate) fn of(&self, owner: &Work) -> Vec<Arc<V>> {
        let keys = self.by_owner.get(owner).into_iter().flatten();
        keys.filter_map(|key| self.get(key)).collect()
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<V>> {
        self.items.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Toy {
        key: Key,
        owner: &'static str,
    }

    impl View for Toy {
        fn key(&self) -> &Key {
            &self.key
        }

        fn owner(&self) -> Option<Work> {
            Some(work(self.owner))
        }
    }

    fn work(name: &str) -> Work {
        Work::Instance(Key::new("default", name))
    }

    fn toy(name: &str, owner: &'static str) -> Toy {
        Toy { key: Key::new("default", name), owner }
    }

    fn names(store: &Store<Toy>, owner: &str) -> Vec<String> {
        store.of(&work(owner)).iter().map(|toy| toy.key.name.clone()).collect()
    }

    #[test]
    fn objects_are_found_by_owner() {
        let mut store = Store::default();
        assert!(store.put(toy("a", "x")).is_some());
        assert!(store.put(toy("a", "x")).is_none(), "nothing changed");
        store.put(toy("b", "x"));
        assert_eq!(names(&store, "x"), ["a", "b"]);
        let moved = store.put(toy("a", "y")).unwrap();
        assert_eq!(moved.owners(), [work("x"), work("y")].into());
        assert_eq!((names(&store, "x"), names(&store, "y")), (vec!["b".to_owned()], vec!["a".to_owned()]));
        assert!(store.remove(&Key::new("default", "b")).is_some() && names(&store, "x").is_empty());
        assert!(store.by_owner.len() == 1, "nothing is kept of owners without objects");
    }

    #[test]
    fn new_list_yields_changed_and_removed_objects() {
        let mut store = Store::default();
        store.replace(vec![toy("a", "x"), toy("b", "x"), toy("c", "x")]);
        let changed = store.replace(vec![toy("b", "x"), toy("c", "y"), toy("d", "x")]);
        let names: Vec<&str> = changed.iter().filter_map(|changed| Some(changed.key()?.name.as_str())).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert_eq!(store.all().count(), 3);
    }
}
