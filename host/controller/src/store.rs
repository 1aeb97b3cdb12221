//! Views of all objects of a kind, by name and by what they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_kube::watch::{Change, key_of};
use akri_model::names::Key;

use crate::views::View;
use crate::work::Work;

/// The objects of a kind.
pub(crate) struct Store<F> {
    items: BTreeMap<Key, Arc<View<F>>>,
    by_owner: BTreeSet<(Work, Key)>,
}

impl<F> Default for Store<F> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), by_owner: BTreeSet::new() }
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
    fn put(
        &mut self,
        mut view: View<F>,
        mut complete: impl FnMut(&mut View<F>, Option<&View<F>>),
    ) -> Option<Changed<F>> {
        let key = view.key.clone();
        complete(&mut view, self.items.get(&key).map(|before| &**before));
        if self.items.get(&key).is_some_and(|before| **before == view) {
            return None;
        }
        let before = self.remove(&key).and_then(|changed| changed.before);
        let after = Arc::new(view);
        self.by_owner.extend(after.owner.clone().map(|owner| (owner, key.clone())));
        self.items.insert(key.clone(), Arc::clone(&after));
        Some(Changed { key, before, after: Some(after) })
    }

    fn remove(&mut self, key: &Key) -> Option<Changed<F>> {
        let (key, before) = self.items.remove_entry(key)?;
        if let Some(owner) = before.owner.clone() {
            self.by_owner.remove(&(owner, key.clone()));
        }
        Some(Changed { key, before: Some(before), after: None })
    }

    /// Applies a change from the watch.
    pub(crate) fn take(&mut self, change: Change<View<F>>) -> Vec<Changed<F>> {
        self.take_completed(change, |_, _| {})
    }

    /// Applies a change from the watch, after `complete` has taken into each view what the one before knows.
    pub(crate) fn take_completed(
        &mut self,
        change: Change<View<F>>,
        mut complete: impl FnMut(&mut View<F>, Option<&View<F>>),
    ) -> Vec<Changed<F>> {
        match change {
            Change::All(views) => {
                let now: BTreeSet<Key> = views.iter().map(|view| view.key.clone()).collect();
                let deleted: Vec<Key> = self.items.keys().filter(|key| !now.contains(key)).cloned().collect();
                let removed: Vec<Changed<F>> = deleted.iter().filter_map(|key| self.remove(key)).collect();
                removed.into_iter().chain(views.into_iter().filter_map(|view| self.put(view, &mut complete))).collect()
            }
            Change::Put(view) => self.put(view, complete).into_iter().collect(),
            Change::Deleted(metadata) => self.remove(&key_of(&metadata)).into_iter().collect(),
        }
    }

    /// Returns an object.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<View<F>>> {
        self.items.get(key).map(Arc::clone)
    }

    /// Returns the objects that belong to an owner.
    pub(crate) fn of(&self, owner: &Work) -> Vec<Arc<View<F>>> {
        let from = self.by_owner.range((owner.clone(), Key::default())..);
        from.take_while(|(of, _)| of == owner).filter_map(|(_, key)| self.get(key)).collect()
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
        assert_eq!(store.take(Change::Put(toy("a", "x"))).len(), 1);
        assert!(store.take(Change::Put(toy("a", "x"))).is_empty(), "nothing changed");
        store.take(Change::Put(toy("b", "x")));
        assert_eq!(names(&store, "x"), ["a", "b"]);
        let moved = store.take(Change::Put(toy("a", "y")));
        assert_eq!(moved[0].owners(), [work("x"), work("y")].into());
        assert_eq!((names(&store, "x"), names(&store, "y")), (vec!["b".to_owned()], vec!["a".to_owned()]));
        assert!(store.remove(&Key::new("default", "b")).is_some() && names(&store, "x").is_empty());
        assert!(store.by_owner.len() == 1, "nothing is kept of owners without objects");
    }

    #[test]
    fn new_list_yields_changed_and_removed_objects() {
        let mut store = Store::default();
        store.take(Change::All(vec![toy("a", "x"), toy("b", "x"), toy("c", "x")]));
        let changed = store.take(Change::All(vec![toy("b", "x"), toy("c", "y"), toy("d", "x")]));
        let names: Vec<&str> = changed.iter().map(|changed| changed.key.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert_eq!(store.all().count(), 3);
    }
}
