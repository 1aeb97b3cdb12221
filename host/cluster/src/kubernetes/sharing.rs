//! Entries about shared Instances in the Lease of this node's agent: the controller writes into the Instances what many nodes have there
//! (rule 23, rule 114).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::instance::{Instance, Online};
use akri_model::names::Key;
use akri_model::node_report::{MAX_SAME, join_delay, report_delay};
use akri_model::sharing::{MAX_NAMED, Sharing};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The time after which a device that came back may be reported as missing again.
const FLAPPING: Duration = Duration::from_secs(5);

/// The pause after which a node looks whether the controller has joined it, or whether others report what it misses.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The entries, with the times since when they are there. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SharingTracker {
    joining: Arc<Mutex<BTreeMap<Key, (String, Instant)>>>,
    missing: Arc<Mutex<BTreeMap<Key, Missing>>>,
    /// Instances whose devices were reported to be back, and when.
    back: Arc<Mutex<BTreeMap<Key, Instant>>>,
    /// The entries as the Lease has to show them.
    pub(super) entries: watch::Sender<Sharing>,
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
    /// Adds an entry: this node wants to join an Instance that another made. Returns the pause until it has to look again; `None` if the
    /// controller has not joined it in time, so that it has to join by itself.
    pub(super) fn join(&self, node: &str, instance: &Key, uid: &str, now: Instant) -> Option<Duration> {
        let mut joining = self.joining.lock();
        let is_other = |_: &Key, (of, _): &mut (String, Instant)| of != uid;
        drop(joining.extract_if(instance..=instance, is_other).next());
        let since = joining.entry(instance.clone()).or_insert_with(|| (uid.to_owned(), now)).1;
        drop(joining);
        self.show(instance);
        (now.duration_since(since) < join_delay(node, instance)).then_some(LOOK_AGAIN)
    }

    /// Removes the entry of an Instance: this node has joined an Instance, or does not want to any more.
    pub(super) fn end_join(&self, instance: &Key) {
        self.joining.lock().remove(instance);
        self.show(instance);
    }

    /// Takes whether this node misses the device of an Instance of so many nodes. Returns the time for which it leaves it to others to
    /// write so: of few each does at once, unless it has just written the opposite.
    pub(super) fn set_online(&self, node: &str, instance: &Instance, nodes: usize, now: Instant) -> Duration {
        let (mut missing, online) = (self.missing.lock(), instance.online);
        let back = self.back.lock().get(&instance.key).map(|at| (*at + FLAPPING).saturating_duration_since(now));
        let flaps_for = back.unwrap_or_default();
        if !instance.shared || online == Online::True {
            missing.remove(&instance.key);
            return flaps_for;
        }
        let new = Missing { online, since: now, is_counted: false };
        let entry = missing.entry(instance.key.clone()).or_insert(new);
        if entry.online != online {
            *entry = Missing { is_counted: entry.is_counted, ..new };
        }
        let delay = if nodes > MAX_SAME { report_delay(node, &instance.key) } else { Duration::ZERO };
        (entry.since + delay).saturating_duration_since(now).max(flaps_for)
    }

    /// The status of an Instance does not say any more that this node misses its device.
    pub(super) fn is_back(&self, instance: &Key, now: Instant) {
        let mut back = self.back.lock();
        back.retain(|_, at| now.duration_since(*at) < FLAPPING);
        back.insert(instance.clone(), now);
    }

    /// Returns whether the Lease has no room for an Instance whose device this node misses.
    pub(super) fn is_full(&self, instance: &Key) -> bool {
        self.missing.lock().range(..instance).filter(|(_, missing)| missing.is_counted).count() >= MAX_NAMED
    }

    /// Adds or removes an entry: enough others write that they miss a device that this node misses, too, or not. What this node writes is
    /// not in its Lease, which is renewed later than it sees the device again.
    pub(super) fn set_counted(&self, instance: &Key, is_counted: bool) {
        self.missing.lock().get_mut(instance).into_iter().for_each(|missing| missing.is_counted = is_counted);
        self.show(instance);
    }

    /// This node has left an Instance.
    pub(super) fn forget(&self, instance: &Key) {
        self.missing.lock().remove(instance);
        self.joining.lock().remove(instance);
        self.show(instance);
    }

    /// Shows the entries of one Instance, of perhaps a thousand.
    fn show(&self, instance: &Key) {
        let (joining, missing) = (self.joining.lock(), self.missing.lock());
        let joining = joining.get(instance).map(|(uid, _)| uid.clone());
        let counted = missing.get(instance).filter(|missing| missing.is_counted).map(|missing| missing.online);
        self.entries.send_if_modified(|shown| {
            let is_first = shown.missing.is_none();
            let of_missing = shown.missing.get_or_insert_default();
            put(&mut shown.joining, instance, joining) | put(of_missing, instance, counted) | is_first
        });
    }
}

/// Sets or removes an entry. Returns whether that changes anything.
fn put<T: Clone + PartialEq>(entries: &mut BTreeMap<Key, T>, key: &Key, value: Option<T>) -> bool {
    let before = match value.clone() {
        Some(value) => entries.insert(key.clone(), value),
        None => entries.remove(key),
    };
    before != value
}

#[cfg(test)]
mod tests {
    use super::super::patch::tests::instance;
    use super::*;

    #[test] // rule 23
    fn node_joins_by_itself_if_nobody_does_it_in_time() {
        let (tracker, key, start) = (SharingTracker::default(), Key::new("default", "cam"), Instant::now());
        let entries = tracker.entries.subscribe();
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
        let (tracker, entries) = (SharingTracker::default(), SharingTracker::default().entries.subscribe());
        assert_eq!(entries.borrow().missing, None, "nothing is known yet");
        let (entries, now) = (tracker.entries.subscribe(), Instant::now());
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

    #[test] // rule 114
    fn lease_without_room_leaves_instances_to_be_written() {
        let (tracker, now) = (SharingTracker::default(), Instant::now());
        let key = |number: usize| Key::new("default", format!("cam-{number:04}"));
        for number in (0..MAX_NAMED + 2).rev() {
            let missing = Instance { key: key(number), online: Online::False, ..instance(true, &[], &[]) };
            tracker.set_online("a", &missing, 4, now);
            assert!(!tracker.is_full(&missing.key));
            tracker.set_counted(&missing.key, true);
        }
        let named = Sharing::read(&tracker.entries.borrow().to_annotations()).missing.unwrap();
        let has_entry = |number| named.contains_key(&key(number)) && !tracker.is_full(&key(number));
        assert!((0..MAX_NAMED).all(has_entry));
        assert!(
            (MAX_NAMED..MAX_NAMED + 2).all(|number| !named.contains_key(&key(number)) && tracker.is_full(&key(number)))
        );
    }

    #[test] // rule 114
    fn device_that_comes_and_goes_is_reported_once_in_5_s() {
        let (tracker, start) = (SharingTracker::default(), Instant::now());
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        for shared in [true, false] {
            let instance = Instance { online: Online::False, ..instance(shared, &["a"], &[]) };
            let mut reported = 0;
            for tenths in (0..100).step_by(2) {
                if tracker.set_online("a", &instance, 1, at(tenths)).is_zero() {
                    reported += 1;
                    tracker.is_back(&instance.key, at(tenths + 1));
                }
                tracker.set_online("a", &Instance { online: Online::True, ..instance.clone() }, 1, at(tenths + 1));
            }
            assert_eq!(reported, 2);
            tracker.back.lock().clear();
        }
    }
}
