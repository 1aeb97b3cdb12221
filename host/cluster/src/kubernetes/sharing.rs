//! Entries about shared Instances in the Lease of this node's agent: the controller writes into the Instances what many nodes have there
//! (rule 23, rule 114).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use akri_model::node_report::{MAX_SAME, join_delay, report_delay};
use akri_model::sharing::Sharing;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The pause after which a node looks whether the controller has joined it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The entries, with the times since when they are there. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SharingTracker {
    joining: Arc<Mutex<BTreeMap<Key, (String, Instant)>>>,
    missing: Arc<Mutex<BTreeMap<Key, Missing>>>,
    sender: watch::Sender<Sharing>,
}

/// A device that this node misses.
#[derive(Debug, Clone, Copy)]
struct Missing {
    online: Online,
    since: Instant,
    /// Others write so in the Instance; this node says it in its Lease.
    is_counted: bool,
}

impl SharingTracker {
    /// Returns the entries, and every change of them.
    pub(super) fn entries(&self) -> watch::Receiver<Sharing> {
        self.sender.subscribe()
    }

    /// Adds an entry: this node wants to join an Instance that another made. Returns the pause until it has to look again; `None` if the
    /// controller has not joined it in time, so that it has to join by itself.
    pub(super) fn join(&self, node: &str, instance: &Key, uid: &str, now: Instant) -> Option<Duration> {
        let mut joining = self.joining.lock();
        joining.retain(|key, (of, _)| key != instance || of == uid);
        let since = joining.entry(instance.clone()).or_insert_with(|| (uid.to_owned(), now)).1;
        drop(joining);
        self.send();
        (now.duration_since(since) < join_delay(node, instance)).then_some(LOOK_AGAIN)
    }

    /// Removes the entry of an Instance: this node has joined an Instance, or does not want to any more.
    pub(super) fn end_join(&self, instance: &Key) {
        if self.joining.lock().remove(instance).is_some() {
            self.send();
        }
    }

    /// Takes whether this node misses the device of an Instance of so many nodes. Returns the time for which it leaves it to others to
    /// write so: of few each does at once.
    pub(super) fn set_online(&self, node: &str, instance: &Instance, nodes: usize, now: Instant) -> Duration {
        let (mut missing, online) = (self.missing.lock(), instance.online);
        if !instance.shared || online == Online::True {
            missing.remove(&instance.key);
            return Duration::ZERO;
        }
        let new = Missing { online, since: now, is_counted: false };
        let entry = missing.entry(instance.key.clone()).or_insert(new);
        if entry.online != online {
            *entry = Missing { is_counted: entry.is_counted, ..new };
        }
        let delay = if nodes > MAX_SAME { report_delay(node, &instance.key) } else { Duration::ZERO };
        (entry.since + delay).saturating_duration_since(now)
    }

    /// Adds or removes an entry: enough others write that they miss a device that this node misses, too, or not. What this node writes is
    /// not in its Lease, which is renewed later than it sees the device again.
    pub(super) fn set_counted(&self, instance: &Key, is_counted: bool) {
        self.missing.lock().get_mut(instance).into_iter().for_each(|missing| missing.is_counted = is_counted);
        self.send();
    }

    /// This node has left an Instance.
    pub(super) fn forget(&self, instance: &Key) {
        self.missing.lock().remove(instance);
        self.joining.lock().remove(instance);
        self.send();
    }

    fn send(&self) {
        let joining = self.joining.lock().iter().map(|(key, (uid, _))| (key.clone(), uid.clone())).collect();
        let missing = self.missing.lock();
        let counted = missing.iter().filter(|(_, missing)| missing.is_counted);
        let counted = counted.map(|(key, missing)| (key.clone(), missing.online)).collect();
        let now = Sharing { joining, missing: Some(counted) };
        self.sender.send_if_modified(|before| {
            let is_changed = *before != now;
            *before = now;
            is_changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::patch::tests::instance;
    use super::*;

    #[test] // rule 23
    fn node_joins_by_itself_if_nobody_does_it_in_time() {
        let (tracker, key, start) = (SharingTracker::default(), Key::new("default", "cam"), Instant::now());
        let entries = tracker.entries();
        let join = |uid, seconds| tracker.join("a", &key, uid, start + Duration::from_secs(seconds));
        assert_eq!(join("u", 0), Some(LOOK_AGAIN));
        assert_eq!(entries.borrow().joining, [(key.clone(), "u".to_owned())].into());
        assert_eq!([join("u", 14), join("u", 60)], [Some(LOOK_AGAIN), None]);
        assert_eq!(join("v", 60), Some(LOOK_AGAIN), "it was made again");
        tracker.end_join(&key);
        assert!(entries.borrow().joining.is_empty());
    }

    #[test] // rule 114
    fn lease_names_what_others_write() {
        let (tracker, entries) = (SharingTracker::default(), SharingTracker::default().entries());
        assert_eq!(entries.borrow().missing, None, "nothing is known yet");
        let (entries, now) = (tracker.entries(), Instant::now());
        let mut instance = Instance { online: Online::False, ..instance(true, &[], &[]) };
        let set = |instance: &Instance, is_counted| {
            let delay = tracker.set_online("a", instance, 4, now);
            tracker.set_counted(&instance.key, is_counted);
            (delay.is_zero(), entries.borrow().missing.clone().unwrap())
        };
        assert_eq!(set(&instance, false), (false, BTreeMap::new()));
        assert_eq!(set(&instance, true), (false, [(instance.key.clone(), Online::False)].into()));
        assert!(tracker.set_online("a", &instance, 4, now + Duration::from_secs(3)).is_zero(), "it has waited");
        assert!(tracker.set_online("a", &instance, MAX_SAME, now).is_zero());
        instance.online = Online::True;
        assert_eq!(set(&instance, false), (true, BTreeMap::new()));
    }
}
