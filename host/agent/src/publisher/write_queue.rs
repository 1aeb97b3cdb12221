//! The queue of pending writes, one for each object: a later write replaces an earlier one. So the queue is bounded by the number of
//! objects, even if handlers change their devices often and the cluster is slow.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_cluster::{ClusterError, ClusterResult, Report, WriteOutcome};
use akri_kube::work_queue::WorkQueue;
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::Key;
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The time that the usage of a local device waits to be published, with what changes meanwhile (rule 77).
const USAGE_DELAY: Duration = Duration::from_secs(5);

/// An object that is written.
pub(super) type Object = (ObjectKind, Key);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectKind {
    Instance,
    BrokerInfo,
    Report,
}

#[derive(Debug, Clone)]
pub(super) enum Write {
    Publish(Box<Instance>),
    Delete { uid: String, is_used: bool },
    BrokerInfo { uid: String, infos: BTreeMap<u32, Files> },
    Report(Box<Report>),
    Forget,
}

/// A write with its delays.
#[derive(Debug, Clone)]
pub(super) struct PendingWrite {
    pub(super) write: Write,
    /// The time from which on the usage of a local device is published; `None` if it may wait.
    pub(super) usage_due: Option<Instant>,
    /// Checks of an Instance that the agent of another node has to write (rule 24).
    pub(super) left: Backoff,
}

impl PendingWrite {
    pub(super) fn new(write: Write) -> Self {
        Self { write, usage_due: None, left: Backoff::new(RetryPolicy::LEFT_TO_OTHER_NODE) }
    }

    pub(super) fn is_usage_due(&self, now: Instant) -> bool {
        self.usage_due.is_some_and(|due| due <= now)
    }

    /// Usage that is due with one of two writes is due with the newer one.
    fn merge_usage_due(&mut self, other: Option<Instant>) {
        self.usage_due = [self.usage_due, other].into_iter().flatten().min();
    }

    /// Returns the pause until a write that did not fail has to be tried again.
    fn pause_after(&mut self, outcome: WriteOutcome, now: Instant) -> Option<Duration> {
        match outcome {
            WriteOutcome::Complete => None,
            WriteOutcome::LeftToOtherNode => Some(self.left.failed(jitter())),
            WriteOutcome::UsageDeferred => {
                Some(self.usage_due.get_or_insert(now + USAGE_DELAY).saturating_duration_since(now))
            }
            WriteOutcome::RetryAfter(pause) => Some(pause),
        }
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct WriteQueue {
    due: WorkQueue<Object>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeMap<Object, PendingWrite>,
    in_flight: BTreeSet<Object>,
    /// Reports that were written, for when the cluster wants them checked.
    reports: BTreeMap<Object, Write>,
    /// The objects that each flush waits for. Dropping the sender ends it.
    flushes: Vec<(BTreeSet<Object>, oneshot::Sender<()>)>,
}

impl WriteQueue {
    pub(super) fn new() -> Self {
        Self { due: WorkQueue::new(RetryPolicy::PUBLISH), state: Mutex::default() }
    }

    /// Adds a write, which is due now.
    pub(super) fn enqueue(&self, object: Object, mut write: PendingWrite) {
        let mut state = self.state.lock();
        state.reports.remove(&object);
        write.merge_usage_due(state.pending.get(&object).and_then(|replaced| replaced.usage_due));
        state.pending.insert(object.clone(), write);
        self.due.push(object);
    }

    /// Waits for a write that is due. The caller returns it with [`WriteQueue::attempted`].
    pub(super) async fn next(&self) -> (Object, PendingWrite) {
        loop {
            let object = self.due.next().await;
            let mut state = self.state.lock();
            let State { pending, reports, in_flight, .. } = &mut *state;
            let report = || reports.remove(&object).map(PendingWrite::new);
            if let Some(write) = pending.remove(&object).or_else(report) {
                in_flight.insert(object.clone());
                return (object, write);
            }
            self.due.done(object, None);
        }
    }

    /// Takes the result of a write. What is left to do is tried again, unless there is a newer write for the object.
    pub(super) fn attempted(
        &self,
        object: Object,
        mut write: PendingWrite,
        result: &ClusterResult<WriteOutcome>,
        now: Instant,
    ) {
        let pause = result.as_ref().map(|outcome| write.pause_after(*outcome, now));
        let mut state = self.state.lock();
        state.in_flight.remove(&object);
        let is_unanswered = matches!(result, Err(ClusterError::Unavailable(_)));
        state.flushes.retain_mut(|(waiting, _)| {
            let is_awaited = waiting.remove(&object);
            !(waiting.is_empty() || is_awaited && is_unanswered)
        });
        match (state.pending.entry(object.clone()), &pause) {
            (Entry::Vacant(_), Ok(None)) if matches!(write.write, Write::Report(_)) => {
                state.reports.insert(object.clone(), write.write);
            }
            (_, Ok(None)) => {}
            (Entry::Occupied(mut newer), _) => newer.get_mut().merge_usage_due(write.usage_due),
            (Entry::Vacant(entry), _) => drop(entry.insert(write)),
        }
        match pause {
            Ok(pause) => self.due.done(object, pause),
            Err(_) => drop(self.due.failed(object)),
        }
    }

    /// Tries all reports again.
    pub(super) fn check_reports(&self) {
        let state = self.state.lock();
        let objects = state.reports.keys().chain(state.pending.keys()).chain(&state.in_flight);
        let reports = objects.filter(|(kind, _)| *kind != ObjectKind::Instance);
        reports.for_each(|object| self.due.push(object.clone()));
    }

    /// Tries all writes now. `done` is dropped when each was tried once, or one of them got no answer.
    pub(super) fn flush(&self, done: oneshot::Sender<()>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        for (object, write) in &mut state.pending {
            write.merge_usage_due(Some(now));
            self.due.push(object.clone());
        }
        let waiting: BTreeSet<Object> = state.pending.keys().chain(&state.in_flight).cloned().collect();
        if !waiting.is_empty() {
            state.flushes.push((waiting, done));
        }
    }
}

#[cfg(test)]
mod tests {
    use akri_model::configuration_status::ConfigurationStatus;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn object() -> Object {
        (ObjectKind::Instance, Key::new("default", "cam-1"))
    }

    fn write(uid: &str) -> PendingWrite {
        PendingWrite::new(Write::Delete { uid: uid.into(), is_used: false })
    }

    fn uid(write: &PendingWrite) -> &str {
        if let Write::Delete { uid, .. } = &write.write { uid } else { "" }
    }

    #[tokio::test]
    async fn deferred_usage_is_due_5_s_after_the_first_change() {
        let (queue, start) = (WriteQueue::new(), Instant::now());
        for (number, at) in [("1", start), ("2", start + USAGE_DELAY / 2)] {
            queue.enqueue(object(), write(number));
            let (_, tried) = queue.next().await;
            assert_eq!((uid(&tried), tried.is_usage_due(at)), (number, false));
            queue.attempted(object(), tried, &Ok(WriteOutcome::UsageDeferred), at);
        }
        let waiting = queue.state.lock().pending[&object()].clone();
        assert_eq!((uid(&waiting), waiting.usage_due), ("2", Some(start + USAGE_DELAY)));
        queue.enqueue(object(), write("3"));
        let (_, due) = queue.next().await;
        assert_eq!((uid(&due), due.is_usage_due(start + USAGE_DELAY)), ("3", true));
        queue.attempted(object(), due, &Ok(WriteOutcome::Complete), start + USAGE_DELAY);
        assert!(queue.state.lock().pending.is_empty());
    }

    #[tokio::test]
    async fn newer_write_is_as_urgent_as_the_failed_one_that_it_replaces() {
        let (queue, now) = (WriteQueue::new(), Instant::now());
        queue.enqueue(object(), PendingWrite { usage_due: Some(now), ..write("1") });
        let (_, urgent) = queue.next().await;
        queue.enqueue(object(), write("2"));
        queue.attempted(object(), urgent, &Err(ClusterError::Refused("no".into())), now);
        let (_, newer) = queue.next().await;
        assert_eq!((uid(&newer), newer.is_usage_due(now)), ("2", true));
    }

    #[tokio::test] // rule 61
    async fn report_is_checked_again_when_others_change_it() {
        let (queue, now) = (WriteQueue::new(), Instant::now());
        let (key, status) = (Key::new("default", "cam"), ConfigurationStatus::default());
        let report = akri_cluster::ConfigurationReport { key: key.clone(), uid: "u".into(), generation: 1, status };
        let write = Write::Report(Box::new(Report::Configuration(report)));
        queue.enqueue((ObjectKind::Report, key), PendingWrite::new(write));
        let (object, tried) = queue.next().await;
        queue.check_reports(); // what the attempt saw is outdated
        queue.attempted(object, tried, &Ok(WriteOutcome::Complete), now);
        let (object, again) = queue.next().await;
        assert!(matches!(again.write, Write::Report(_)));
        queue.attempted(object, again, &Ok(WriteOutcome::Complete), now);
        assert_eq!(queue.due.waiting(), 0);
        queue.check_reports();
        assert_eq!(queue.due.waiting(), 1);
    }

    #[tokio::test]
    async fn flush_waits_for_every_write_or_the_first_without_an_answer() {
        let (queue, now) = (WriteQueue::new(), Instant::now());
        let other = (ObjectKind::Instance, Key::new("default", "cam-2"));
        let unanswered = Err(ClusterError::Unavailable("no answer".into()));
        for (result, ends_early) in [(Ok(WriteOutcome::Complete), false), (unanswered, true)] {
            queue.enqueue(object(), write("1"));
            queue.enqueue(other.clone(), write("2"));
            let (done, mut flushed) = oneshot::channel();
            queue.flush(done);
            let mut is_flushed = || flushed.try_recv() == Err(TryRecvError::Closed);
            let (tried, first) = queue.next().await;
            queue.attempted(tried, first, &result, now);
            assert_eq!(is_flushed(), ends_early);
            let (tried, second) = queue.next().await;
            queue.attempted(tried, second, &Ok(WriteOutcome::Complete), now);
            assert!(is_flushed());
        }
    }
}
