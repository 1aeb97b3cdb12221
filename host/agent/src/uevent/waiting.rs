//! Events of the kernel that are not told yet, since udevd is still busy with them.
//!
//! Where udevd runs, a device is complete (properties, links, permissions of its node) once udevd's rules are through.
//! udevd says so itself, but only in its own network namespace, which is not that of a pod. There, what shows it is that
//! udevd's queue is empty: it keeps the file `queue` beside its database while it works (as `udevadm settle` knows).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::socket::Sender;

/// How long an event waits for udevd at most.
const LONGEST: Duration = Duration::from_secs(1);

/// Subsystems that wait at once; Linux has some hundred.
const SUBSYSTEMS: usize = 512;

/// How often udevd's queue is looked at, as long as something waits.
const LOOK: Duration = Duration::from_millis(20);

/// Subsystems that wait, and whether udevd can be heard.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    subsystems: BTreeMap<String, Wait>,
    /// udevd is heard: it has spoken, and has let nothing wait in vain since.
    hears_udevd: bool,
}

#[derive(Debug)]
struct Wait {
    since: Instant,
    /// udevd's queue was found empty. It may have been so because udevd had not begun yet, so the wait goes on.
    told: bool,
}

impl Waiting {
    /// Takes an event; whether it is to be told now.
    pub(super) fn take(&mut self, sender: Sender, subsystem: &str, udevd_runs: bool, now: Instant) -> bool {
        match sender {
            Sender::Udevd => {
                self.hears_udevd = true;
                self.subsystems.remove(subsystem);
                true
            }
            Sender::Kernel if !udevd_runs => {
                self.hears_udevd = false;
                true
            }
            Sender::Kernel if self.subsystems.len() >= SUBSYSTEMS => true,
            Sender::Kernel => {
                let wait = self.subsystems.entry(subsystem.to_owned()).or_insert(Wait { since: now, told: false });
                wait.told = false;
                false
            }
        }
    }

    /// When to look again whether something is due.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let expiry = self.subsystems.values().map(|wait| wait.since + LONGEST).min()?;
        let look = !self.hears_udevd && self.subsystems.values().any(|wait| !wait.told);
        Some(if look { expiry.min(now + LOOK) } else { expiry })
    }

    /// The subsystems to tell of: what waited too long, and where udevd can't be heard, all once it is idle.
    pub(super) fn due(&mut self, udevd_is_idle: bool, now: Instant) -> BTreeSet<String> {
        let expired = self.subsystems.extract_if(.., |_, wait| wait.since + LONGEST <= now);
        let mut due: BTreeSet<String> = expired.map(|(subsystem, _)| subsystem).collect();
        self.hears_udevd &= due.is_empty(); // it may be gone: its control socket stays behind when it is killed
        if udevd_is_idle && !self.hears_udevd {
            let settled = self.subsystems.iter_mut().filter(|(_, wait)| !wait.told);
            due.extend(settled.map(|(subsystem, wait)| {
                wait.told = true;
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
    fn without_udevd_the_kernel_is_believed_at_once() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        assert!(waiting.take(Sender::Kernel, "tty", false, now));
        assert_eq!(waiting.next(now), None);
    }

    #[test]
    fn with_udevd_its_own_word_counts() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        assert!(waiting.take(Sender::Udevd, "usb", true, now), "it can be heard");
        assert!(!waiting.take(Sender::Kernel, "tty", true, now));
        assert_eq!(waiting.next(now), Some(now + LONGEST));
        assert!(waiting.due(true, now + 20 * MS).is_empty(), "an empty queue says nothing that udevd would not say");
        assert!(waiting.take(Sender::Udevd, "tty", true, now + 30 * MS));
        assert_eq!(waiting.next(now + 30 * MS), None);
    }

    #[test]
    fn udevd_that_can_not_be_heard_is_done_when_its_queue_is_empty_and_once_more_at_the_end() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        assert!(!waiting.take(Sender::Kernel, "tty", true, now));
        assert_eq!(waiting.next(now), Some(now + LOOK));
        assert!(waiting.due(false, now + LOOK).is_empty());
        assert_eq!(names(&waiting.due(true, now + 2 * LOOK)), ["tty"]);
        assert!(waiting.due(true, now + 3 * LOOK).is_empty(), "told already");
        assert_eq!(waiting.next(now + 3 * LOOK), Some(now + LONGEST));
        assert!(!waiting.take(Sender::Kernel, "tty", true, now + 4 * LOOK), "another event");
        assert_eq!(names(&waiting.due(true, now + 5 * LOOK)), ["tty"]);
        assert_eq!(names(&waiting.due(false, now + LONGEST)), ["tty"]);
        assert_eq!(waiting.next(now + LONGEST), None);
    }

    #[test]
    fn udevd_that_is_stuck_or_deaf_delays_an_event_by_a_second_at_most() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.take(Sender::Udevd, "usb", true, now);
        waiting.take(Sender::Kernel, "tty", true, now);
        waiting.take(Sender::Kernel, "tty", true, now + 900 * MS);
        assert!(waiting.due(true, now + 999 * MS).is_empty());
        assert_eq!(names(&waiting.due(true, now + 1000 * MS)), ["tty"]);
        waiting.take(Sender::Kernel, "tty", true, now + 1001 * MS);
        assert_eq!(names(&waiting.due(true, now + 1021 * MS)), ["tty"], "it was silent once, so it is not relied on");
    }

    #[test]
    fn udevd_has_to_be_heard_again_after_it_was_away() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.take(Sender::Udevd, "usb", true, now);
        waiting.take(Sender::Kernel, "usb", false, now);
        waiting.take(Sender::Kernel, "tty", true, now);
        assert_eq!(names(&waiting.due(true, now + LOOK)), ["tty"]);
    }
}
