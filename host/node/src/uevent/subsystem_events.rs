//! The time of the last event of each subsystem. One small value that all Configurations observe, so that no queue
//! builds up for busy ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Maximum number of subsystems that are tracked; Linux has about a hundred.
const SUBSYSTEMS: usize = 512;

/// The filter for all subsystems.
const ANY: &str = "*";

/// A point in the sequence of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The mark of the last event of each subsystem.
#[derive(Debug, Default)]
pub(super) struct SubsystemEvents {
    pub(super) now: Mark,
    last: BTreeMap<String, Mark>,
    /// The mark of the last loss of events of any subsystem.
    missed: Mark,
    /// The time of the last event.
    pub(super) at: Option<Instant>,
}

impl SubsystemEvents {
    /// Records events of these subsystems.
    pub(super) fn record(&mut self, subsystems: BTreeSet<String>) {
        self.now.0 += 1;
        self.at = Some(Instant::now());
        self.last.extend(subsystems.into_iter().map(|subsystem| (subsystem, self.now)));
        if self.last.len() > SUBSYSTEMS {
            self.last.clear();
            self.record_loss();
        }
    }

    /// Records a loss of events: any subsystem may have changed.
    pub(super) fn record_loss(&mut self) {
        self.now.0 += 1;
        self.missed = self.now;
    }

    /// Returns whether one of the subsystems had an event after `mark`.
    pub(super) fn matches(&self, subsystems: &BTreeSet<String>, mark: Mark) -> bool {
        let happened = |subsystem: &String| match subsystem.as_str() {
            ANY => self.now > mark,
            name => self.last.get(name).is_some_and(|last| *last > mark),
        };
        !subsystems.is_empty() && (self.missed > mark || subsystems.iter().any(happened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn event_matches_a_filter_on_its_subsystem_or_on_all() {
        let mut events = SubsystemEvents::default();
        let before = events.now;
        events.record(set(&["tty", "usb"]));
        for (asked, concerns) in
            [(&["tty"][..], true), (&["block", "usb"], true), (&["*"], true), (&["block"], false), (&[], false)]
        {
            assert_eq!(events.matches(&set(asked), before), concerns, "{asked:?}");
            assert!(!events.matches(&set(asked), events.now), "{asked:?}");
        }
    }

    #[test]
    fn lost_events_match_every_filter() {
        let mut events = SubsystemEvents::default();
        let before = events.now;
        events.record_loss();
        assert!(events.matches(&set(&["tty"]), before) && events.matches(&set(&["*"]), before));
        assert!(!events.matches(&set(&[]), before) && !events.matches(&set(&["tty"]), events.now));
    }

    #[test]
    fn more_subsystems_than_the_bound_lose_none() {
        let mut events = SubsystemEvents::default();
        events.record(set(&["tty"]));
        let before = events.now;
        for number in 0..10 * SUBSYSTEMS {
            events.record(set(&[&format!("made-up-{number}")]));
            assert!(events.last.len() <= SUBSYSTEMS);
        }
        assert!(events.matches(&set(&["made-up-0"]), before) && events.matches(&set(&["tty"]), before));
    }
}
