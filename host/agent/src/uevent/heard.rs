//! What has been heard: when something last happened in each subsystem. One small value that all Configurations look at,
//! so that nothing queues up for those that are busy.

use std::collections::{BTreeMap, BTreeSet};

/// Subsystems told apart; Linux has some hundred.
const SUBSYSTEMS: usize = 512;

/// Stands for all subsystems.
const ANY: &str = "*";

/// A moment in what was heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The last moment in which each subsystem had an event.
#[derive(Debug, Default)]
pub(super) struct Heard {
    now: Mark,
    last: BTreeMap<String, Mark>,
    /// When events of any subsystem may have been missed.
    missed: Mark,
}

impl Heard {
    pub(super) fn now(&self) -> Mark {
        self.now
    }

    /// Something happened in these subsystems.
    pub(super) fn note(&mut self, subsystems: BTreeSet<String>) {
        self.now.0 += 1;
        self.last.extend(subsystems.into_iter().map(|subsystem| (subsystem, self.now)));
        if self.last.len() > SUBSYSTEMS {
            self.last.clear();
            self.miss();
        }
    }

    /// Events were lost: any subsystem may have changed.
    pub(super) fn miss(&mut self) {
        self.now.0 += 1;
        self.missed = self.now;
    }

    /// Whether something happened since `mark` in one of the subsystems.
    pub(super) fn concerns(&self, subsystems: &BTreeSet<String>, mark: Mark) -> bool {
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
    fn an_event_concerns_whoever_asked_for_its_subsystem_or_for_all() {
        let mut heard = Heard::default();
        let before = heard.now();
        heard.note(set(&["tty", "usb"]));
        for (asked, concerns) in
            [(&["tty"][..], true), (&["block", "usb"], true), (&["*"], true), (&["block"], false), (&[], false)]
        {
            assert_eq!(heard.concerns(&set(asked), before), concerns, "{asked:?}");
            assert!(!heard.concerns(&set(asked), heard.now()), "{asked:?}");
        }
    }

    #[test]
    fn lost_events_concern_everyone_who_asked_for_any() {
        let mut heard = Heard::default();
        let before = heard.now();
        heard.miss();
        assert!(heard.concerns(&set(&["tty"]), before) && heard.concerns(&set(&["*"]), before));
        assert!(!heard.concerns(&set(&[]), before) && !heard.concerns(&set(&["tty"]), heard.now()));
    }

    #[test]
    fn more_subsystems_than_there_can_be_lose_none() {
        let mut heard = Heard::default();
        heard.note(set(&["tty"]));
        let before = heard.now();
        for number in 0..10 * SUBSYSTEMS {
            heard.note(set(&[&format!("made-up-{number}")]));
            assert!(heard.last.len() <= SUBSYSTEMS);
        }
        assert!(heard.concerns(&set(&["made-up-0"]), before) && heard.concerns(&set(&["tty"]), before));
    }
}
