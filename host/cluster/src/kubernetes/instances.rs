//! A cache of the Instances of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_api::{condition, instance_to_model};
use akri_kube::watch::{Change, key_of, typed};
use akri_model::instance::{Instance, Online, Version};
use akri_model::instance_labels::{MANY_NODES_LABEL, node_label, node_label_value};
use akri_model::names::Key;
use akri_model::summary::{HANDLER_GONE, NodeProblem};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ObjectMeta};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use super::known_instances::{Known, Seen, Watched, replace};
use crate::{ClusterError, ClusterResult};

/// Time to wait for the first listing.
const FIRST_LISTING: Duration = Duration::from_secs(5);

/// The cache, with notification of changes. Clones share it.
#[derive(Clone)]
pub(super) struct Instances {
    node: Arc<str>,
    known: Arc<Mutex<Known>>,
    /// Instances that were found for devices of this node, which has not joined them yet.
    found: Arc<Mutex<BTreeMap<Key, Found>>>,
    /// The watches that have listed theirs.
    listed: watch::Sender<BTreeSet<Watched>>,
    /// Changes of usage, and of what other nodes find and serve, for owners.
    pub(super) changes: watch::Sender<()>,
}

/// A comparison of an Instance with what was seen of it before; true if owners have to know.
type Comparison = fn(&Seen, Option<&Seen>) -> bool;

/// An Instance that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) object: akri_api::Instance,
    pub(super) instance: Arc<Instance>,
}

impl Instances {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            known: Arc::default(),
            found: Arc::default(),
            listed: watch::Sender::default(),
            changes: watch::Sender::default(),
        }
    }

    /// Applies a change from a watch.
    pub(super) fn take(&self, watched: Watched, change: Change<DynamicObject>) {
        let changed = match change {
            Change::All(objects) => {
                let now = objects.iter().filter_map(|object| self.read(watched, object));
                let now: BTreeMap<Key, Seen> = now.map(|seen| (seen.instance.key.clone(), seen)).collect();
                let is_first = !self.listed.borrow().contains(&watched);
                let changed = self.with(|known| replace(known.of(watched), now, is_first));
                self.listed.send_if_modified(|listed| listed.insert(watched)); // not before they are known
                changed || is_first
            }
            Change::Put(object) => match self.read(watched, &object) {
                Some(seen) => self.put(watched, seen, Seen::changed_since),
                None if object.metadata.deletion_timestamp.is_some() => false,
                None => self.remove(watched, object.metadata),
            },
            Change::Deleted(metadata) => {
                self.forget_found(&key_of(&metadata));
                self.remove(watched, *metadata)
            }
        };
        if changed {
            self.changes.send_replace(());
        }
    }

    /// Removes what a watch does not show any more.
    fn remove(&self, watched: Watched, metadata: ObjectMeta) -> bool {
        let key = key_of(&metadata);
        let version = Version(metadata.resource_version.unwrap_or_default());
        self.with(|known| known.remove(&[watched], &key, |seen| !version.is_older_than(&seen.instance.version)))
    }

    /// Applies the response of a request, which may precede the watch event, so that this shows nothing new; returns the Instance.
    pub(super) fn update(&self, object: &akri_api::Instance) -> Instance {
        self.apply(object, Seen::changed_since)
    }

    /// Applies the response of a patch of slots: the owner takes the usage from the Instance that this returns.
    pub(super) fn update_for_owner(&self, object: &akri_api::Instance) -> Instance {
        self.apply(object, Seen::finding_changed_since)
    }

    fn apply(&self, object: &akri_api::Instance, changed_since: Comparison) -> Instance {
        let seen = self.to_seen(object);
        let instance = Instance::clone(&seen.instance);
        let has_label = |watched: Watched| object.labels().contains_key(&watched.label(&self.node));
        let changed = if has_label(Watched::OfMany) && instance.mentions(&self.node) {
            self.put(Watched::OfMany, seen, changed_since)
        } else if has_label(Watched::OfNode) || instance.nodes.iter().any(|node| **node == *self.node) {
            self.put(Watched::OfNode, seen, changed_since)
        } else {
            // This node has left it.
            let is_known = |seen: &Seen| !instance.version.is_older_than(&seen.instance.version);
            self.keep_newer_found(object) || self.with(|known| known.remove(&Watched::ALL, &instance.key, is_known))
        };
        if changed {
            self.changes.send_replace(());
        }
        instance
    }

    /// Applies that an Instance does not exist. Its owner is notified even if it is unknown here: the owner may know it.
    pub(super) fn forget_deleted(&self, key: &Key, uid: &str) {
        self.with(|known| known.remove(&Watched::ALL, key, |seen| seen.instance.uid == uid));
        self.forget_found(key);
        self.changes.send_replace(());
    }

    /// Stores an Instance unless the watch has shown a newer version; returns whether owners have to know.
    fn put(&self, watched: Watched, seen: Seen, changed_since: Comparison) -> bool {
        self.with(|known| {
            let key = seen.instance.key.clone();
            if known.of(watched).get(&key).is_some_and(|before| seen.is_older_than(before)) {
                return false; // even of another UID: it is that of an earlier Instance of the name
            }
            let newest = known.get(&key);
            let is_new = newest.is_none_or(|newest| !seen.is_older_than(newest)) && changed_since(&seen, newest);
            known.of(watched).insert(key, seen);
            is_new
        })
    }

    /// Keeps an Instance until this node joins it, so that it need not be read again.
    pub(super) fn keep_found(&self, object: akri_api::Instance) {
        let (key, instance) = (key_of(&object.metadata), self.to_seen(&object).instance);
        self.found.lock().insert(key, Found { object, instance });
    }

    /// Keeps the newer version of an Instance that this node has not joined yet; returns whether it is one.
    fn keep_newer_found(&self, object: &akri_api::Instance) -> bool {
        let (mut found, now) = (self.found.lock(), self.to_seen(object).instance);
        let is_newer = |known: &Instance| known.uid == now.uid && !now.version.is_older_than(&known.version);
        let known = found.get_mut(&now.key).filter(|known| is_newer(&known.instance));
        known.map(|known| *known = Found { object: object.clone(), instance: now }).is_some()
    }

    /// Returns something of an Instance as it was seen last.
    pub(super) fn seen<T>(&self, key: &Key, read: impl FnOnce(&Seen) -> T) -> Option<T> {
        self.with(|known| known.get(key).map(read))
    }

    /// Returns an Instance that was found.
    pub(super) fn found<T>(&self, key: &Key, read: impl FnOnce(&Found) -> T) -> Option<T> {
        self.found.lock().get(key).map(read)
    }

    /// Forgets an Instance that was found: this node has joined it, or can't.
    pub(super) fn forget_found(&self, key: &Key) {
        self.found.lock().remove(key);
    }

    /// Waits until all have been listed.
    pub(super) async fn wait_for_listing(&self) -> ClusterResult<()> {
        let mut listed = self.listed.subscribe();
        let waited = timeout(FIRST_LISTING, listed.wait_for(|listed| listed.len() == Watched::ALL.len())).await;
        if matches!(waited, Ok(Ok(_))) { Ok(()) } else { Err(not_listed()) }
    }

    /// Returns the Instances that a test holds for, if all have been listed; with them those that were found and not joined yet: they
    /// exist, although this node does not watch them.
    pub(super) fn filter(&self, test: impl Fn(&Instance) -> bool) -> ClusterResult<Vec<Arc<Instance>>> {
        self.check_listing()?;
        Ok(self.with(|known| {
            let found = self.found.lock();
            let unknown = found.iter().filter(|(key, _)| known.get(key).is_none()).map(|(_, found)| &found.instance);
            let all = known.all().map(|seen| &seen.instance).chain(unknown);
            all.filter(|instance| test(instance)).cloned().collect()
        }))
    }

    /// Returns the first Instance known from the watch that a test holds for, if all have been listed.
    pub(super) fn find(&self, test: impl Fn(&Instance) -> bool) -> ClusterResult<Option<Instance>> {
        self.check_listing()?;
        let instance = |seen: &Seen| Instance::clone(&seen.instance);
        Ok(self.with(|known| known.all().find(|seen| test(&seen.instance)).map(instance)))
    }

    fn check_listing(&self) -> ClusterResult<()> {
        if self.listed.borrow().len() == Watched::ALL.len() { Ok(()) } else { Err(not_listed()) }
    }

    /// Returns one Instance.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Instance>> {
        self.seen(key, |seen| seen.instance.clone())
    }

    fn with<T>(&self, step: impl FnOnce(&mut Known) -> T) -> T {
        step(&mut self.known.lock())
    }

    /// Parses an Instance; one that is being deleted counts as deleted (rule 26), and one of many nodes is not there for others.
    fn read(&self, watched: Watched, object: &DynamicObject) -> Option<Seen> {
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let warn = |error: &String| warn!(instance = object.name_any(), "ignoring an invalid object: {error}");
        let seen = self.to_seen(&typed(object).inspect_err(warn).ok()?);
        (watched == Watched::OfNode || seen.instance.mentions(&self.node)).then_some(seen)
    }

    /// Converts an Instance; whether its device is online is taken from this node's entry in the status.
    fn to_seen(&self, object: &akri_api::Instance) -> Seen {
        let mut instance = instance_to_model(object);
        let conditions = object.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let found = condition::online(conditions).unwrap_or(Online::True);
        let problem = object.status.as_ref().and_then(|status| status.nodes.get(&*self.node));
        instance.online = match problem.map(|problem| problem.reason.as_str()) {
            None => Online::True,
            Some(HANDLER_GONE) => Online::Unknown,
            Some(_) => Online::False,
        };
        let labels = object.labels();
        let is_own = |value: &String| value == node_label_value(&self.node);
        let is_watched =
            labels.contains_key(MANY_NODES_LABEL) || labels.get(&node_label(&self.node)).is_some_and(is_own);
        let adopted = instance.identity.is_some() && is_watched;
        let nodes = object.status.iter().flat_map(|status| &status.nodes);
        let problems = nodes.map(|(node, of)| (node.clone(), NodeProblem::new(&of.reason, &of.message))).collect();
        Seen { instance: Arc::new(instance), adopted, found, problems }
    }
}

fn not_listed() -> ClusterError {
    ClusterError::Unavailable("the API server has not listed the Instances yet".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: &str, usage: &str) -> DynamicObject {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"namespace": "default", "name": "cam-1", "uid": "u", "resourceVersion": version},
            "spec": {
                "configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "shared": true, "nodes": ["a"],
                "deviceUsage": {"cam-1-0": usage},
            },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test] // rule 77
    fn older_list_does_not_undo_the_answer_to_a_request() {
        let (instances, key) = (Instances::new("a"), Key::new("default", "cam-1"));
        instances.update(&typed(&object("9", "a")).unwrap());
        instances.take(Watched::OfNode, Change::All(vec![object("8", "")]));
        assert_eq!(instances.get(&key).unwrap().device_usage["cam-1-0"], "a");
        instances.take(Watched::OfNode, Change::All(vec![object("10", "")]));
        assert_eq!(instances.get(&key).unwrap().device_usage["cam-1-0"], "");
        instances.take(Watched::OfNode, Change::All(Vec::new()));
        assert_eq!(instances.get(&key), None);
    }

    #[test] // rule 106
    fn list_of_a_restored_store_is_the_truth() {
        let (instances, key) = (Instances::new("a"), Key::new("default", "cam-1"));
        let usage = || instances.get(&key).unwrap().device_usage["cam-1-0"].clone();
        instances.take(Watched::OfNode, Change::All(vec![object("90", "a")]));
        let mut changes = instances.changes.subscribe();
        changes.mark_unchanged();
        instances.take(Watched::OfNode, Change::All(vec![object("7", "b")]));
        assert_eq!((usage(), changes.has_changed().unwrap()), ("b".to_owned(), true));
        instances.take(Watched::OfNode, Change::Put(object("8", "")));
        assert_eq!(usage(), "", "and so is what follows");
        instances.update(&typed(&object("9", "a")).unwrap());
        assert_eq!(usage(), "a");
    }

    #[test] // rule 23
    fn instance_stays_while_its_labels_change() {
        let (instances, key) = (Instances::new("a"), Key::new("default", "cam-1"));
        let of = |version: &str, label: &str| {
            let mut object = object(version, "a");
            object.metadata.labels = Some(BTreeMap::from([(label.to_owned(), "1".to_owned())]));
            object
        };
        instances.take(Watched::OfNode, Change::All(vec![of("5", &node_label("a"))]));
        assert!(instances.filter(|_| true).is_err(), "one of two watches has listed");
        instances.take(Watched::OfMany, Change::All(Vec::new()));
        instances.take(Watched::OfMany, Change::Put(of("6", MANY_NODES_LABEL)));
        let all = || instances.filter(|_| true).unwrap().iter().map(|all| all.version.0.clone()).collect::<Vec<_>>();
        assert_eq!(all(), ["6"], "the newer of both");
        instances.take(Watched::OfNode, Change::Deleted(Box::new(of("7", MANY_NODES_LABEL).metadata)));
        assert_eq!(all(), ["6"], "it has lost its label of the node, and is there");
        instances.update(&typed(&of("8", MANY_NODES_LABEL)).unwrap());
        assert_eq!(all(), ["8"]);
        instances.take(Watched::OfMany, Change::Deleted(Box::new(of("9", MANY_NODES_LABEL).metadata)));
        assert_eq!(instances.get(&key), None);

        // One watch lists a restored store before the other does.
        for watched in Watched::ALL {
            instances.take(watched, Change::All(vec![of("90", MANY_NODES_LABEL)]));
        }
        instances.take(Watched::OfMany, Change::All(vec![of("10", MANY_NODES_LABEL)]));
        instances.take(Watched::OfMany, Change::Put(of("11", MANY_NODES_LABEL)));
        instances.take(Watched::OfNode, Change::All(Vec::new()));
        assert_eq!(all(), ["11"]);
    }

    #[test] // rule 23
    fn instance_of_many_nodes_is_there_for_those_alone() {
        let (instances, key) = (Instances::new("b"), Key::new("default", "cam-1"));
        let is_there = |object| {
            instances.take(Watched::OfMany, Change::Put(object));
            instances.get(&key).is_some()
        };
        assert!(!is_there(object("5", "a")), "only 'a' sees and uses it");
        assert!(is_there(object("6", "b")), "one that uses it gives it back");
        assert!(!is_there(object("7", "")));
    }

    #[test] // rule 77
    fn older_events_do_not_undo_the_answer_to_a_request() {
        let (instances, key) = (Instances::new("a"), Key::new("default", "cam-1"));
        let mut again = object("9", "");
        again.metadata.uid = Some("v".to_owned());
        instances.update(&typed(&again).unwrap());
        instances.take(Watched::OfNode, Change::Put(object("7", "a")));
        instances.take(Watched::OfNode, Change::Deleted(Box::new(object("8", "a").metadata)));
        assert_eq!(instances.get(&key).unwrap().uid, "v", "those are of the Instance before it");
        again.metadata.resource_version = Some("10".to_owned());
        instances.take(Watched::OfNode, Change::Deleted(Box::new(again.metadata)));
        assert_eq!(instances.get(&key), None);
    }

    #[test] // rule 77, rule 126
    fn owners_are_notified_of_what_answers_to_requests_show_first() {
        let instances = Instances::new("a");
        let mut changes = instances.changes.subscribe();
        let labels = BTreeMap::from([(node_label("a"), "a".to_owned())]);
        let mut is_notified = |version: &str, usage: &str, online: &str, nodes: &[&str], is_of_owner: bool| {
            let mut object = object(version, usage);
            object.metadata.labels = Some(labels.clone());
            object.data["spec"]["nodes"] = json!(nodes);
            object.data["status"] = json!({"conditions": [{
                "type": "Online", "status": online, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]});
            changes.mark_unchanged();
            let response = typed(&object).unwrap();
            let apply = if is_of_owner { Instances::update_for_owner } else { Instances::update };
            apply(&instances, &response);
            let by_response = changes.has_changed().unwrap();
            instances.take(Watched::OfNode, Change::Put(object));
            assert_eq!(changes.has_changed().unwrap(), by_response, "the event has nothing new");
            by_response
        };
        assert!(is_notified("5", "", "True", &["a"], true), "it was not known, and others may have claimed");
        assert!(!is_notified("6", "a", "True", &["a"], true), "the owner has claimed it");
        assert!(is_notified("7", "b", "True", &["a"], false), "another node has claimed it");
        assert!(!is_notified("8", "b", "True", &["a"], false), "a status that owners need not know");
        for is_of_owner in [true, false] {
            let versions = if is_of_owner { ["9", "10"] } else { ["11", "12"] };
            assert!(is_notified(versions[0], "b", "False", &["a"], is_of_owner), "another node misses the device");
            assert!(
                is_notified(versions[1], "b", "True", &["a", "b"], is_of_owner),
                "it is back, and another one serves it"
            );
        }
        assert!(!is_notified("4", "", "False", &["a"], false), "an answer that is late");
    }

    #[test] // rule 77
    fn owners_are_notified_of_instances_that_requests_miss() {
        let (instances, key) = (Instances::new("a"), Key::new("default", "cam-1"));
        let mut changes = instances.changes.subscribe();
        instances.take(Watched::OfMany, Change::All(Vec::new()));
        instances.take(Watched::OfNode, Change::All(vec![object("7", "")]));
        changes.mark_unchanged();
        let mut left = object("8", "");
        left.data["spec"]["nodes"] = json!([]);
        let late = DynamicObject { metadata: object("6", "").metadata, ..left.clone() };
        instances.update(&typed(&late).unwrap());
        assert!(instances.get(&key).is_some(), "an answer from before it joined");
        instances.update(&typed(&left).unwrap());
        assert_eq!((instances.get(&key), changes.has_changed().unwrap()), (None, true), "this node has left it");
        instances.take(Watched::OfNode, Change::Put(object("9", "")));
        instances.keep_found(typed(&object("9", "")).unwrap());
        changes.mark_unchanged();
        instances.forget_deleted(&key, "other");
        assert!(instances.get(&key).is_some(), "another one of the name");
        instances.forget_deleted(&key, "u");
        let all = || instances.filter(|_| true).unwrap();
        assert_eq!((all(), changes.has_changed().unwrap()), (vec![], true));
        instances.keep_found(typed(&object("9", "")).unwrap());
        instances.take(Watched::OfNode, Change::Deleted(Box::new(object("10", "").metadata)));
        assert_eq!(all(), [], "a deleted one does not exist");
    }
}
