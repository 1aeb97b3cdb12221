//! Writes that wait for their time.

use std::collections::BTreeMap;
use std::time::Duration;

use akri_cluster::{ClusterError, Copies, Published};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{Object, PendingWrite, PendingWrites};

/// First and longest pause until an Instance that was left to another node is looked at again.
const LEFT: Duration = Duration::from_secs(30);
const MAX_LEFT: Duration = Duration::from_secs(600);

/// The time that the usage of a local device waits to be published, with what changes meanwhile (rule 77).
const COPIES: Duration = Duration::from_secs(5);

/// Instances left to the agent of another node, which may have gone since (rule 24).
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) writes: PendingWrites,
    since: Option<Instant>,
    /// The number of passes over it since the last successful write.
    looks: u32,
}

impl Left {
    pub(super) fn add(&mut self, object: Object, write: PendingWrite) {
        self.since.get_or_insert_with(Instant::now);
        self.writes.insert(object, write);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.pause())
    }

    pub(super) fn pause(&self) -> Duration {
        LEFT.saturating_mul(1 << self.looks.min(5)).min(MAX_LEFT)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> PendingWrites {
        if self.due().is_none_or(|due| now < due) {
            return PendingWrites::new();
        }
        (self.since, self.looks) = (None, self.looks.saturating_add(1));
        std::mem::take(&mut self.writes)
    }
}

/// Usage of local devices that is published at most every 5 s for each, whatever changes meanwhile.
#[derive(Debug, Default)]
pub(super) struct DelayedCopies(BTreeMap<Object, (Instant, PendingWrite)>);

impl DelayedCopies {
    /// Takes the newest content; it is due when the oldest unpublished one is.
    pub(super) fn add(&mut self, object: Object, write: PendingWrite, now: Instant) {
        let (_, kept) = self.0.entry(object).or_insert_with(|| (now + COPIES, PendingWrite::Forget));
        *kept = write;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|(due, _)| *due).min()
    }

    pub(super) fn take_due(&mut self, now: Instant) -> PendingWrites {
        let due = self.0.extract_if(.., |_, (due, _)| *due <= now);
        due.map(|(object, (_, write))| (object, write.at_once())).collect()
    }

    /// Adds all to writes that are tried now, unless there is a newer one.
    pub(super) fn add_all_to(&mut self, writes: &mut PendingWrites) {
        for (object, (_, write)) in std::mem::take(&mut self.0) {
            writes.entry(object).or_insert(write);
        }
        let now = std::mem::take(writes).into_iter().map(|(object, write)| (object, write.at_once()));
        writes.extend(now);
    }
}

impl PendingWrite {
    pub(super) fn at_once(self) -> Self {
        match self {
            Self::Publish(instance, _) => Self::Publish(instance, Copies::Now),
            other => other,
        }
    }
}

/// Writes that wait for their time.
#[derive(Debug, Default)]
pub(super) struct Later {
    pub(super) left: Left,
    pub(super) copies: DelayedCopies,
}

impl Later {
    /// Waits until one of these is due or something new is. Returns false at the end.
    pub(super) async fn is_due_or_woken(&mut self, woken: &mut mpsc::Receiver<()>) -> bool {
        let due = [self.left.due(), self.copies.due()].into_iter().flatten().min();
        tokio::select! {
            woken = woken.recv() => {
                self.left.looks = 0;
                woken.is_some()
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => true,
        }
    }

    pub(super) fn take_due(&mut self, now: Instant) -> PendingWrites {
        let mut due = self.left.take_due(now);
        due.extend(self.copies.take_due(now));
        due
    }

    /// Processes the result of a write, and returns the error if it failed.
    pub(super) fn take_result(
        &mut self,
        object: &Object,
        write: &PendingWrite,
        result: Result<Published, ClusterError>,
    ) -> Result<(), ClusterError> {
        let result = result?;
        if result != Published::CopiesLeft {
            self.copies.0.remove(object); // this one is newer
        }
        match result {
            Published::Whole => {}
            Published::LeftToAnotherNode => self.left.add(object.clone(), write.clone()),
            Published::CopiesLeft => self.copies.add(object.clone(), write.clone(), Instant::now()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use akri_model::names::Key;

    use super::super::ObjectKind;
    use super::*;

    #[test] // rule 77
    fn copies_are_due_5_s_after_the_first_change() {
        let (mut copies, start) = (DelayedCopies::default(), Instant::now());
        let object = (ObjectKind::Instance, Key::new("default", "cam-1"));
        let write = |uid: &str| PendingWrite::Delete { uid: uid.into(), is_used: false };
        copies.add(object.clone(), write("1"), start);
        copies.add(object.clone(), write("2"), start + COPIES / 2);
        assert_eq!(copies.due(), Some(start + COPIES));
        assert!(copies.take_due(start + COPIES / 2).is_empty());
        let due = copies.take_due(start + COPIES);
        assert!(matches!(&due[&object], PendingWrite::Delete { uid, .. } if uid == "2"));
        copies.add(object.clone(), write("3"), start + COPIES);
        assert_eq!(copies.due(), Some(start + COPIES * 2), "at most one in 5 s");
        let mut writes = PendingWrites::from([(object.clone(), write("4"))]);
        copies.add_all_to(&mut writes);
        assert!(matches!(&writes[&object], PendingWrite::Delete { uid, .. } if uid == "4"), "the newer one");
        assert_eq!(copies.due(), None);
    }
}
