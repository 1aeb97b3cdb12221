//! Views of all objects of a kind, by name and by what they belong to.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use akri_kube::watch::{Change, key_of};
use akri_model::names::Key;

use crate::views::View;
use crate::work::Work;

/// The objects of a kind.
pub(crate) struct Store<F> {
    items: BTreeMap<Key, Arc<View<F>>>,
    by_owner: BTreeMap<Work, BTreeSet<Key>>,
}

impl<F> Default for Store<F> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), by_owner: BTreeMap::new() }
    }
}

/// An object before and after a change; one of them is there.
pub(crate) struct Changed<F> {
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<View<F>>>,
    pub(crate) after: Option<Arc<View<F>>>,
}

impl<F> Changed<F> {
    /// Returns the former and the current owner of the object.
    pub(crate) fn owners(&self) -> BTreeSet<Work> {
        [&self.before, &self.after].into_iter().flatten().filter_map(|view| view.owner.clone()).collect()
    }
}

impl<F: PartialEq> Store<F> {
    /// Stores a view; returns `None` if the object was like that before.
    fn put(&mut self, view: View<F>) -> Option<Changed<F>> {
        let key = view.key.clone();
        if self.items.get(&key).is_some_and(|before| **before == view) {
            return None;
        }
        let before = self.remove(&key).and_then(|changed| changed.before);
        let after = Arc::new(view);
        if let Some(owner) = after.owner.clone() {
            self.by_owner.entry(owner).or_default().insert(key.clone());
        }
        self.items.insert(key.clone(), Arc::clone(&after));
        Some(Changed { key, before, after: Some(after) })
    }

    fn remove(&mut self, key: &Key) -> Option<Changed<F>> {
        let (key, before) = self.items.remove_entry(key)?;
        if let Some(Entry::Occupied(mut keys)) = before.owner.clone().map(|owner| self.by_owner.entry(owner)) {
            keys.get_mut().remove(&key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
        Some(Changed { key, before: Some(before), after: None })
    }

    /// Applies a change from the watch.
    pub(crate) fn take(&mut self, change: Change<View<F>>) -> Vec<Changed<F>> {
        match change {
            Change::All(views) => self.replace(views),
            Change::Put(view) => self.put(view).into_iter().collect(),
            Change::Deleted(metadata) => self.remove(&key_of(&metadata)).into_iter().collect(),
        }
    }

    fn replace(&mut self, views: Vec<View<F>>) -> Vec<Changed<F>> {
        let now: BTreeSet<Key> = views.iter().map(|view| view.key.clone()).collect();
        let deleted: Vec<Key> = self.items.keys().filter(|key| !now.contains(key)).cloned().collect();
        let removed: Vec<Changed<F>> = deleted.iter().filter_map(|key| self.remove(key)).collect();
        removed.into_iter().chain(views.into_iter().filter_map(|view| self.put(view))).collect()
    }

    /// Returns an object.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<View<F>>> {
        self.items.get(key).map(Arc::clone)
    }

    /// Returns the objects that belong to an owner.
    pub(crate) fn of(&self, owner: &Work) -> Vec<Arc<View<F>>> {
        let keys = self.by_owner.get(owner).into_iter().flatten();
        keys.filter_map(|key| self.get(key)).collect()
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<View<F>>> {
        self.items.values()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn work(name: &str) -> Work {
        Work::Instance(Key::new("default", name))
    }

    fn toy(name: &str, owner: &str) -> View<()> {
        let owner =
            json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "name": owner, "uid": "u", "controller": true});
        let metadata = json!({"namespace": "default", "name": name, "ownerReferences": [owner]});
        View::new(&serde_json::from_value(metadata).unwrap(), ())
    }

    fn names(store: &Store<()>, owner: &str) -> Vec<String> {
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
        let names: Vec<&str> = changed.iter().map(|changed| changed.key.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert_eq!(store.all().count(), 3);
    }
}
