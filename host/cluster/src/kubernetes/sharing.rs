//! Entries about shared Instances in the Lease of this node's agent: the controller writes into the Instances what many nodes have there
//! (rule 23, rule 114).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use akri_model::node_report::{join_delay, report_delay};
use akri_model::sharing::Sharing;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Nodes of an Instance of which each writes at once that it misses the device.
const FEW: usize = 3;

/// The pause after which a node looks whether the controller has joined it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The entries, with the times since when they are there. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SharingTracker {
    joining: Arc<Mutex<BTreeMap<Key, (String, Instant)>>>,
    missing: Arc<Mutex<BTreeMap<Key, (Online, Instant)>>>,
    sender: watch::Sender<Sharing>,
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

    /// Adds or removes an entry by whether this node misses the device of an Instance of so many nodes. Returns the time for which it leaves it to others to
    /// write so.
    pub(super) fn set_online(&self, node: &str, instance: &Instance, nodes: usize, now: Instant) -> Duration {
        let mut missing = self.missing.lock();
        let before = missing.remove(&instance.key).filter(|(online, _)| *online == instance.online);
        let since = before.map_or(now, |(_, since)| since);
        if instance.shared && instance.online != Online::True {
            missing.insert(instance.key.clone(), (instance.online, since));
        }
        drop(missing);
        self.send();
        let delay = if nodes > FEW { report_delay(node, &instance.key) } else { Duration::ZERO };
        (since + delay).saturating_duration_since(now)
    }

    /// This node has left an Instance.
    pub(super) fn forget(&self, instance: &Key) {
        self.missing.lock().remove(instance);
        self.joining.lock().remove(instance);
        self.send();
    }

    fn send(&self) {
        let joining = self.joining.lock().iter().map(|(key, (uid, _))| (key.clone(), uid.clone())).collect();
        let missing = self.missing.lock().iter().map(|(key, (online, _))| (key.clone(), *online)).collect();
        let now = Sharing { joining, missing: Some(missing) };
        self.sender.send_if_modified(|before| {
            let is_changed = *before != now;
            *before = now;
            is_changed
        });
    }
}

#[cfg(test)]
mod tests {
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
}
