//! Rate limits on published devices: each new device becomes an API object, a file and a socket, each new value a write to
//! the journal.

use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::device::Device;
use crate::names::Identity;
use crate::plan::Plan;

/// New Instances at once: the devices of a large plant at its start.
const NEW: u64 = 4096;
/// New Instances a second from then on, 1,200 a minute.
const NEW_PER_SECOND: u64 = 20;
/// Bytes of changed devices at once.
const CHANGED: u64 = 16 << 20;
/// Bytes of changed devices a second from then on.
const CHANGED_PER_SECOND: u64 = 1 << 20;
/// Known devices at once that look different, or are back.
const TOUCHED: u64 = 8192;
/// Known devices that look different, or are back, a second from then on.
const TOUCHED_PER_SECOND: u64 = 100;
/// Bytes of all devices of one Configuration on this node, with their slots.
const HELD: usize = 64 << 20;
/// Bytes of a slot, about: of its name and its use there are some copies.
const SLOT: usize = 256;

/// Returns the bytes that a device takes with its slots.
pub fn held_by(device: &Device, capacity: u32) -> usize {
    device.bytes() + SLOT * capacity as usize
}

/// Returns the slots that each of so many Instances may have, at most as many as are wanted.
pub fn bounded_capacity(wanted: u32, instances: usize) -> u32 {
    let most = HELD / SLOT / instances.max(1);
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX).max(1))
}

/// The budgets of one Configuration.
#[derive(Debug, Clone)]
pub struct PublishingBudget {
    new: Budget,
    changed: Budget,
    touched: Budget,
}

/// The part of a plan that has to wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deferred {
    /// Ids of devices that get no Instance yet.
    pub new: Vec<String>,
    /// Known devices whose new properties, or whose return, are not taken over yet.
    pub changed: usize,
    /// The time until the next attempt.
    pub wait: Option<Duration>,
}

impl Default for PublishingBudget {
    fn default() -> Self {
        Self {
            new: Budget::new(NEW, NEW_PER_SECOND),
            changed: Budget::new(CHANGED, CHANGED_PER_SECOND),
            touched: Budget::new(TOUCHED, TOUCHED_PER_SECOND),
        }
    }
}

impl PublishingBudget {
    /// Leaves in a plan what may be done now, beside the devices that have Instances, which take `held` bytes. That a device
    /// is gone never waits.
    pub fn limit(&mut self, plan: &mut Plan, held: usize, capacity: u32, now: Instant) -> Deferred {
        let mut deferred = Deferred::default();
        let mut room = HELD.saturating_sub(held);
        let mut may_create = |(_, device): &(Identity, Device)| {
            let fits = room.checked_sub(held_by(device, capacity));
            let may = fits.is_some() && self.new.take(1, now);
            room = fits.filter(|_| may).unwrap_or(room);
            may
        };
        for (_, device) in plan.publish.extract_if(.., |new| !may_create(new)) {
            deferred.new.push(device.id);
        }
        let mut may_change = |(_, device): &(Identity, Device)| {
            self.touched.take(1, now) && self.changed.take(device.bytes() as u64, now)
        };
        deferred.changed = plan.change.extract_if(.., |change| !may_change(change)).count();
        deferred.changed += plan.online.extract_if(.., |_| !self.touched.take(1, now)).count();
        if !deferred.new.is_empty() || deferred.changed > 0 {
            deferred.wait = Some(self.wait(now));
        }
        deferred
    }

    fn wait(&mut self, now: Instant) -> Duration {
        let waits = [&mut self.new, &mut self.changed, &mut self.touched].map(|budget| budget.wait(now));
        waits.into_iter().max().unwrap_or_default().max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: usize, bytes: usize) -> (Identity, Device) {
        let properties = [("K".to_owned(), "x".repeat(bytes))].into();
        (Identity::from_text(id.to_string()), Device { id: id.to_string(), properties, ..Device::default() })
    }

    #[test] // threat 8
    fn new_devices_are_published_at_a_bounded_rate() {
        let (start, mut budget) = (Instant::now(), PublishingBudget::default());
        let round =
            |ids: std::ops::Range<usize>| Plan { publish: ids.map(|id| device(id, 10)).collect(), ..Plan::default() };
        let mut plan = round(0..4096);
        assert_eq!(budget.limit(&mut plan, 0, 1, start), Deferred::default());
        assert_eq!(plan.publish.len(), 4096);
        let mut created = 0;
        for second in 1..=60 {
            let mut plan = round(second * 5000..second * 5000 + 4096);
            let deferred = budget.limit(&mut plan, 0, 1, start + Duration::from_secs(second as u64));
            assert_eq!(plan.publish.len() + deferred.new.len(), 4096);
            assert!(deferred.wait.is_some());
            created += plan.publish.len();
        }
        assert_eq!(created, 1200);
    }

    #[test]
    fn total_size_of_devices_is_bounded() {
        let (start, mut budget) = (Instant::now(), PublishingBudget::default());
        let mut plan = Plan { publish: (0..100).map(|id| device(id, 1 << 20)).collect(), ..Plan::default() };
        let deferred = budget.limit(&mut plan, 32 << 20, 1, start);
        assert_eq!((plan.publish.len(), deferred.new.len()), (31, 69));
    }

    #[test] // threat 68
    fn slots_of_all_devices_are_bounded() {
        let mut plan = Plan { publish: (0..4096).map(|id| device(id, 10)).collect(), ..Plan::default() };
        let deferred = PublishingBudget::default().limit(&mut plan, 0, 1000, Instant::now());
        assert_eq!((plan.publish.len(), deferred.new.len()), (262, 3834));
        for (wanted, instances, slots) in
            [(1000, 0, 1000), (1000, 262, 1000), (1000, 4096, 64), (3, 4096, 3), (9, 999_999, 1)]
        {
            assert_eq!(bounded_capacity(wanted, instances), slots, "{wanted} {instances}");
        }
    }

    #[test]
    fn returning_devices_are_published_at_a_bounded_rate() {
        let (start, mut budget) = (Instant::now(), PublishingBudget::default());
        let mut back = 0;
        for second in 0..60 {
            let all: Vec<Identity> = (0..4096).map(|id| device(id, 1).0).collect();
            let mut plan = Plan { online: all.clone(), offline: all, ..Plan::default() };
            budget.limit(&mut plan, 0, 1, start + Duration::from_secs(second));
            assert_eq!(plan.offline.len(), 4096, "that a device is gone is told at once");
            back += plan.online.len();
        }
        assert_eq!(back, 8192 + 59 * 100);
    }

    #[test] // threat 9
    fn changed_devices_are_published_at_a_bounded_rate() {
        let (start, mut budget) = (Instant::now(), PublishingBudget::default());
        let mut bytes = 0;
        for second in 0..60 {
            let mut plan = Plan { change: (0..3500).map(|id| device(id, 2000)).collect(), ..Plan::default() };
            let deferred = budget.limit(&mut plan, 0, 1, start + Duration::from_secs(second));
            assert_eq!(plan.change.len() + deferred.changed, 3500);
            bytes += plan.change.iter().map(|(_, device)| device.bytes()).sum::<usize>();
        }
        assert!((26 << 20..30 << 20).contains(&bytes), "{bytes}");
    }
}
