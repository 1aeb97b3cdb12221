//! Kernel events that are held back until udevd has processed them.
//!
//! Where udevd runs, a device is complete (properties, links, permissions of its node) after udevd's rules have run.
//! udevd sends an event then, but only in its own network namespace, which a pod does not share. In a pod, the agent
//! waits until udevd's queue is empty: udevd keeps the file `queue` beside its database while it works (see `udevadm
//! settle`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::socket::Sender;

/// Maximum time an event waits for udevd.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of subsystems that wait; Linux has about a hundred.
const SUBSYSTEMS: usize = 512;

/// Interval of checks of udevd's queue while an event waits.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Subsystems with pending events, and whether udevd's own events are received.
#[derive(Debug, Default)]
pub(super) struct PendingEvents {
    subsystems: BTreeMap<String, PendingEvent>,
    /// Set if udevd's events arrive: one was received, and none was missed since.
    udevd_reachable: bool,
}

#[derive(Debug)]
struct PendingEvent {
    since: Instant,
    /// Set if the event was delivered because udevd's queue was empty. udevd may not have started on the event by then,
    /// so it stays pending.
    delivered: bool,
}

impl PendingEvents {
    /// Adds an event; returns whether it is to be delivered now.
    pub(super) fn take(&mut self, sender: Sender, subsystem: &str, udevd_runs: bool, now: Instant) -> bool {
        match sender {
            Sender::Udevd => {
                self.udevd_reachable = true;
                self.subsystems.remove(subsystem);
                true
            }
            Sender::Kernel if !udevd_runs => {
                self.udevd_reachable = false;
                true
            }
            Sender::Kernel if self.subsystems.len() >= SUBSYSTEMS => true,
            Sender::Kernel => {
                let wait = self
                    .subsystems
                    .entry(subsystem.to_owned())
                    .or_insert(PendingEvent { since: now, delivered: false });
                wait.delivered = false;
                false
            }
        }
    }

    /// Returns when to check for due events again.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let expiry = self.subsystems.values().map(|wait| wait.since + MAX_DELAY).min()?;
        let poll = !self.udevd_reachable && self.subsystems.values().any(|wait| !wait.delivered);
        Some(if poll { expiry.min(now + POLL_INTERVAL) } else { expiry })
    }

    /// Returns the subsystems whose events are due: those that waited too long and, if udevd's events do not arrive,
    /// all once udevd is idle.
    pub(super) fn due(&mut self, udevd_is_idle: bool, now: Instant) -> BTreeSet<String> {
        let expired = self.subsystems.extract_if(.., |_, wait| wait.since + MAX_DELAY <= now);
        let mut due: BTreeSet<String> = expired.map(|(subsystem, _)| subsystem).collect();
        self.udevd_reachable &= due.is_empty(); // a killed udevd leaves its control socket behind
        if udevd_is_idle && !self.udevd_reachable {
            let undelivered = self.subsystems.iter_mut().filter(|(_, wait)| !wait.delivered);
            due.extend(undelivered.map(|(subsystem, wait)| {
                wait.delivered = true;
                subsystem.clone()
            }));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn kernel_event_is_delivered_at_once_without_udevd() {
        let (mut pending, now) = (PendingEvents::default(), Instant::now());
        assert!(pending.take(Sender::Kernel, "tty", false, now));
        assert_eq!(pending.next(now), None);
    }

    #[test]
    fn kernel_event_waits_for_udevds_event() {
        let (mut pending, now) = (PendingEvents::default(), Instant::now());
        assert!(pending.take(Sender::Udevd, "usb", true, now), "it can be events");
        assert!(!pending.take(Sender::Kernel, "tty", true, now));
        assert_eq!(pending.next(now), Some(now + MAX_DELAY));
        assert!(pending.due(true, now + 20 * MS).is_empty(), "an empty queue says nothing that udevd would not say");
        assert!(pending.take(Sender::Udevd, "tty", true, now + 30 * MS));
        assert_eq!(pending.next(now + 30 * MS), None);
    }

    #[test]
    fn unreachable_udevd_is_done_when_its_queue_is_empty() {
        let (mut pending, now) = (PendingEvents::default(), Instant::now());
        assert!(!pending.take(Sender::Kernel, "tty", true, now));
        assert_eq!(pending.next(now), Some(now + POLL_INTERVAL));
        assert!(pending.due(false, now + POLL_INTERVAL).is_empty());
        assert_eq!(names(&pending.due(true, now + 2 * POLL_INTERVAL)), ["tty"]);
        assert!(pending.due(true, now + 3 * POLL_INTERVAL).is_empty(), "delivered already");
        assert_eq!(pending.next(now + 3 * POLL_INTERVAL), Some(now + MAX_DELAY));
        assert!(!pending.take(Sender::Kernel, "tty", true, now + 4 * POLL_INTERVAL), "another event");
        assert_eq!(names(&pending.due(true, now + 5 * POLL_INTERVAL)), ["tty"]);
        assert_eq!(names(&pending.due(false, now + MAX_DELAY)), ["tty"]);
        assert_eq!(pending.next(now + MAX_DELAY), None);
    }

    #[test]
    fn stuck_udevd_delays_an_event_by_a_second_at_most() {
        let (mut pending, now) = (PendingEvents::default(), Instant::now());
        pending.take(Sender::Udevd, "usb", true, now);
        pending.take(Sender::Kernel, "tty", true, now);
        pending.take(Sender::Kernel, "tty", true, now + 900 * MS);
        assert!(pending.due(true, now + 999 * MS).is_empty());
        assert_eq!(names(&pending.due(true, now + 1000 * MS)), ["tty"]);
        pending.take(Sender::Kernel, "tty", true, now + 1001 * MS);
        assert_eq!(names(&pending.due(true, now + 1021 * MS)), ["tty"], "it was silent once, so it is not relied on");
    }

    #[test]
    fn restarted_udevd_must_be_received_again() {
        let (mut pending, now) = (PendingEvents::default(), Instant::now());
        pending.take(Sender::Udevd, "usb", true, now);
        pending.take(Sender::Kernel, "usb", false, now);
        pending.take(Sender::Kernel, "tty", true, now);
        assert_eq!(names(&pending.due(true, now + POLL_INTERVAL)), ["tty"]);
    }
}
