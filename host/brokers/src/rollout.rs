//! Limits the number of brokers of a Configuration that are replaced at a time (rule 57).

use std::collections::BTreeMap;

/// The brokers of one Instance, as its last reconcile found them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Brokers that are wanted.
    pub desired: usize,
    /// Wanted brokers that are ready.
    pub running: usize,
    /// Wanted brokers that work well enough to be counted on, whatever their spec.
    pub available: usize,
    /// The working brokers that wait to be replaced.
    pub outdated: usize,
    /// The brokers with the wanted spec that have failed.
    pub failing: usize,
}

/// The brokers of all Instances of a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollout {
    instances: BTreeMap<String, Counts>,
    total: Counts,
}

impl Rollout {
    /// Takes what a reconcile of an Instance found. Returns whether that is new.
    pub fn update(&mut self, instance: &str, counts: Counts) -> bool {
        if self.instances.get(instance) == Some(&counts) {
            return false;
        }
        self.forget(instance);
        self.count(counts, usize::saturating_add);
        self.instances.insert(instance.to_owned(), counts);
        true
    }

    /// Removes an Instance that does not exist any more.
    pub fn forget(&mut self, instance: &str) {
        if let Some(before) = self.instances.remove(instance) {
            self.count(before, usize::saturating_sub);
        }
    }

    fn count(&mut self, counts: Counts, by: fn(usize, usize) -> usize) {
        let total = &mut self.total;
        total.desired = by(total.desired, counts.desired);
        total.running = by(total.running, counts.running);
        total.available = by(total.available, counts.available);
        total.outdated = by(total.outdated, counts.outdated);
        total.failing = by(total.failing, counts.failing);
    }

    /// Takes one place for the replacement of a working broker of an Instance: a tenth of all brokers, and at least one, may
    /// be unavailable. `instances` is how many the Configuration has: before all have been counted, nothing is replaced. A
    /// broker with the new spec that fails stops all further replacements.
    pub fn replace(&mut self, instance: &str, instances: usize) -> bool {
        let allowed = self.instances.len() >= instances && self.places() > 0;
        let Some(counts) = self.instances.get(instance).filter(|_| allowed).copied() else { return false };
        let available = counts.available.saturating_sub(1);
        self.update(instance, Counts { available, outdated: counts.outdated.saturating_sub(1), ..counts });
        true
    }

    /// Returns the number of working brokers that may be replaced now.
    fn places(&self) -> usize {
        let Counts { desired, available, .. } = self.total;
        let unavailable = desired.saturating_sub(available);
        if self.is_stopped() { 0 } else { (desired / 10).max(1).saturating_sub(unavailable) }
    }

    /// Returns whether a failing new broker keeps outdated ones from being replaced.
    pub fn is_stopped(&self) -> bool {
        self.total.failing > 0 && self.total.outdated > 0
    }

    /// The brokers of all Instances together.
    pub fn total(&self) -> Counts {
        self.total
    }

    /// The brokers of that many Instances. Those that have not been counted yet, as after a start of the controller, may want some.
    pub fn total_of(&self, instances: usize) -> Counts {
        let uncounted = instances.saturating_sub(self.instances.len());
        Counts { desired: self.total.desired.saturating_add(uncounted), ..self.total }
    }

    /// Instances with brokers that wait to be replaced, as many as there are places.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        let waiting = self.instances.iter().filter(|(_, counts)| counts.outdated > 0);
        waiting.map(|(instance, _)| instance.as_str()).take(self.places())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: Counts = Counts { desired: 1, running: 1, available: 1, outdated: 1, failing: 0 };
    const NEW: Counts = Counts { outdated: 0, ..OLD };
    const GONE: Counts = Counts { running: 0, available: 0, outdated: 0, ..OLD };

    fn rollout(instances: usize) -> Rollout {
        let mut rollout = Rollout::default();
        for number in 0..instances {
            rollout.update(&number.to_string(), OLD);
        }
        rollout
    }

    fn replaced_at_once(instances: usize) -> usize {
        let mut rollout = rollout(instances);
        (0..instances).filter(|number| rollout.replace(&number.to_string(), instances)).count()
    }

    #[test] // rule 57
    fn tenth_of_all_brokers_and_at_least_one_is_replaced_at_a_time() {
        assert_eq!([1, 2, 9, 19, 20, 200].map(replaced_at_once), [1, 1, 1, 1, 2, 20]);
    }

    #[test] // rule 57
    fn next_one_follows_when_the_new_one_works() {
        let mut rollout = rollout(2);
        assert!(rollout.replace("0", 2) && !rollout.replace("1", 2));
        rollout.update("0", GONE);
        assert!(!rollout.replace("1", 2), "the first one is still being replaced");
        assert_eq!(rollout.waiting().count(), 0);
        rollout.update("0", NEW);
        assert_eq!(rollout.waiting().collect::<Vec<_>>(), ["1"]);
        assert!(rollout.replace("1", 2));
    }

    #[test] // rule 57
    fn new_broker_that_fails_stops_the_rollout() {
        let mut rollout = rollout(40);
        rollout.update("0", Counts { failing: 1, ..GONE });
        assert!(rollout.is_stopped() && !rollout.replace("1", 40));
        rollout.update("0", NEW);
        assert!(!rollout.is_stopped() && rollout.replace("1", 40));
    }

    #[test]
    fn nothing_is_replaced_before_all_instances_are_counted() {
        let mut rollout = rollout(1);
        assert!(!rollout.replace("0", 2) && !rollout.replace("unknown", 1));
        rollout.update("1", NEW);
        assert!(rollout.replace("0", 2));
    }

    #[test] // rule 56
    fn instances_that_are_not_counted_yet_may_want_brokers() {
        let rollout = rollout(1);
        assert_eq!([0, 1, 3].map(|instances| rollout.total_of(instances).desired), [1, 1, 3]);
        assert_eq!(rollout.total_of(3).running, 1);
    }

    #[test]
    fn instance_that_is_gone_does_not_count() {
        let mut rollout = rollout(2);
        rollout.update("0", GONE);
        assert!(!rollout.replace("1", 2));
        rollout.forget("0");
        assert!(rollout.replace("1", 1));
        assert_eq!((rollout.total().desired, rollout.total().available), (1, 0));
    }

    proptest! {
        #[test]
        fn totals_are_those_of_the_instances(
            updates in prop::collection::vec((0usize..5, 0usize..4, 0usize..4, any::<bool>()), 0..40)
        ) {
            let mut rollout = Rollout::default();
            let mut expected = BTreeMap::new();
            for (instance, desired, available, forget) in updates {
                let name = instance.to_string();
                let counts = Counts { desired, available: available.min(desired), ..Counts::default() };
                if forget {
                    rollout.forget(&name);
                    expected.remove(&name);
                } else {
                    rollout.update(&name, counts);
                    expected.insert(name, counts);
                }
            }
            prop_assert_eq!(rollout.total().desired, expected.values().map(|c| c.desired).sum::<usize>());
            prop_assert_eq!(rollout.total().available, expected.values().map(|c| c.available).sum::<usize>());
        }
    }
}
