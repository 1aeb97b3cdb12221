//! Reports what is wrong with Configurations and DiscoveryHandlers on this node: the wanted entry of `status.nodes` is compared
//! with what the watches show until they agree (rule 34, rule 61). A node waits for its turn first, and looks at the watch
//! again: if enough others report the same, it does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_kube::watch::{Change, key_of};
use akri_model::names::Key;
use akri_model::node_report::{Step, step, turn};
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use akri_model::summary::NodeProblem;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::ClusterError;

/// Longest rest without a change.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// An object whose status has an entry for each node with a problem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A Configuration.
    Configuration(Key),
    /// A DiscoveryHandler, whose key has no namespace.
    Handler(Key),
}

impl Subject {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Configuration(key) | Self::Handler(key) => key,
        }
    }
}

/// The entry that an object should have of this node.
#[derive(Debug)]
struct Wanted {
    /// None means the object that has the name now.
    uid: Option<String>,
    report: Option<NodeProblem>,
    /// The time since which it could add its entry.
    since: Option<Instant>,
    backoff: Backoff,
    not_before: Instant,
}

/// The state of an object in the watch.
#[derive(Debug)]
struct Shown {
    uid: String,
    nodes: BTreeMap<String, NodeProblem>,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeMap<Subject, Wanted>,
    shown: BTreeMap<Subject, Shown>,
}

/// A write that is due: the entry of this node in the object of that UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) subject: Subject,
    pub(super) uid: String,
    pub(super) report: Option<NodeProblem>,
}

/// A handle; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ProblemReporter {
    node: Arc<str>,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl State {
    /// Takes what should be reported.
    fn want(&mut self, subject: Subject, uid: Option<String>, report: Option<NodeProblem>, now: Instant) -> bool {
        if self.wanted.get(&subject).is_some_and(|known| (&known.uid, &known.report) == (&uid, &report)) {
            return false;
        }
        self.wanted.insert(
            subject,
            Wanted { uid, report, since: None, backoff: Backoff::new(RetryPolicy::PUBLISH), not_before: now },
        );
        true
    }

    /// Returns what is due, and otherwise when to look again if nothing changes.
    fn due(&mut self, node: &str, now: Instant) -> Result<Due, Instant> {
        let mut next = now + LONGEST_REST;
        for (subject, wanted) in &mut self.wanted {
            let Some(shown) = self.shown.get(subject) else { continue };
            if wanted.uid.as_ref().is_some_and(|uid| *uid != shown.uid) {
                continue; // the watch has not shown this object yet, or shows the next of its name
            }
            let at = match step(&shown.nodes, node, wanted.report.as_ref()) {
                Step::Rest => {
                    wanted.since = None;
                    continue;
                }
                Step::Remove | Step::Change => wanted.not_before,
                Step::Add => {
                    let since = *wanted.since.get_or_insert(now);
                    wanted.not_before.max(since + turn(node, subject.key()))
                }
            };
            if at <= now {
                let report = wanted.report.clone();
                return Ok(Due { subject: subject.clone(), uid: shown.uid.clone(), report });
            }
            next = next.min(at);
        }
        Err(next)
    }

    fn put(&mut self, subject: Subject, object: &DynamicObject) {
        let nodes = object.data.pointer("/status/nodes").and_then(Value::as_object);
        let field = |entry: &Value, name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let report = |entry: &Value| NodeProblem::new(&field(entry, "reason"), &field(entry, "message"));
        let nodes = nodes.into_iter().flatten().map(|(node, entry)| (node.clone(), report(entry))).collect();
        self.shown.insert(subject, Shown { uid: object.uid().unwrap_or_default(), nodes });
    }
}

impl ProblemReporter {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.into(), state: Arc::default(), changed: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a change from a watch of Configurations or of DiscoveryHandlers.
    pub(super) fn take(&self, subject: fn(Key) -> Subject, change: &Change<DynamicObject>) {
        let of = |object: &DynamicObject| subject(key_of(&object.metadata));
        let mut state = self.state();
        match change {
            Change::All(objects) => {
                let kind = std::mem::discriminant(&subject(Key::new("", "")));
                state.shown.retain(|known, _| std::mem::discriminant(known) != kind);
                objects.iter().for_each(|object| state.put(of(object), object));
            }
            Change::Put(object) => state.put(of(object), object),
            Change::Deleted(metadata) => drop(state.shown.remove(&subject(key_of(metadata)))),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Reports a problem with an object, or that there is none any more.
    pub(super) fn report(&self, subject: Subject, uid: Option<String>, report: Option<NodeProblem>) {
        if self.state().want(subject, uid, report, Instant::now()) {
            self.changed.notify_one();
        }
    }

    /// Forgets an object, whose status went with it.
    pub(super) fn forget(&self, subject: &Subject) {
        self.state().wanted.remove(subject);
    }

    /// Waits for a write that is due. The caller gives its result to [`ProblemReporter::written`].
    pub(super) async fn next(&self) -> Due {
        loop {
            let due = self.state().due(&self.node, Instant::now());
            match due {
                Ok(due) => return due,
                Err(next) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = sleep_until(next) => {}
                },
            }
        }
    }

    /// Takes the result of a write: the object, if the write changed it.
    pub(super) fn written(&self, due: &Due, written: Result<Option<DynamicObject>, ClusterError>) {
        let mut state = self.state();
        let changed = written.is_ok_and(|object| {
            object.as_ref().into_iter().for_each(|object| state.put(due.subject.clone(), object));
            object.is_some()
        });
        let Some(wanted) = state.wanted.get_mut(&due.subject) else { return };
        if changed {
            wanted.backoff.reset();
        } else {
            wanted.not_before = Instant::now() + wanted.backoff.failed(jitter()); // the watch may show more by then
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn subject() -> Subject {
        Subject::Configuration(Key::new("default", "cam"))
    }

    fn object(nodes: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "cam", "uid": "u"}, "status": {"nodes": nodes},
        }))
        .unwrap()
    }

    fn report(reason: &str) -> Option<NodeProblem> {
        Some(NodeProblem::new(reason, "m"))
    }

    fn later(now: Instant) -> Instant {
        now + Duration::from_secs(10)
    }

    #[test] // rule 61
    fn node_waits_for_its_turn_and_looks_again() {
        let (mut state, now) = (State::default(), Instant::now());
        state.want(subject(), Some("u".into()), report("R"), now);
        assert_eq!(state.due("a", later(now)).ok(), None, "the watch has not shown the object");
        state.put(subject(), &object(json!({})));
        let turn = turn("a", subject().key());
        assert_eq!(state.due("a", now), Err(now + turn));
        let entry = json!({"reason": "R", "message": "m"});
        state.put(subject(), &object(json!({"b": entry, "c": entry, "d": entry})));
        assert_eq!(state.due("a", later(now)), Err(later(now) + LONGEST_REST), "three others report it");
        state.put(subject(), &object(json!({"b": entry, "c": entry})));
        assert_eq!(state.due("a", later(now)), Err(later(now) + turn), "a new turn");
        let due = state.due("a", later(later(now))).unwrap();
        assert_eq!((due.uid.as_str(), due.report), ("u", report("R")));
    }

    #[test] // rule 61
    fn entry_of_this_node_is_changed_and_removed_at_once() {
        let (mut state, now) = (State::default(), Instant::now());
        state.put(subject(), &object(json!({"a": {"reason": "R", "message": "m"}})));
        state.want(subject(), Some("u".into()), report("S"), now);
        assert_eq!(state.due("a", now).unwrap().report, report("S"));
        assert!(
            state.want(subject(), Some("u".into()), None, now) && !state.want(subject(), Some("u".into()), None, now)
        );
        assert_eq!(state.due("a", now).unwrap().report, None);
        state.put(subject(), &object(json!({})));
        assert!(state.due("a", now).is_err());
    }

    #[test] // rule 36
    fn entry_that_the_controller_removed_is_written_again() {
        let (mut state, now) = (State::default(), Instant::now());
        state.want(subject(), Some("u".into()), report("R"), now);
        state.put(subject(), &object(json!({"a": {"reason": "R", "message": "m"}})));
        assert!(state.due("a", now).is_err());
        state.put(subject(), &object(json!({})));
        assert_eq!(state.due("a", now), Err(now + turn("a", subject().key())));
        assert_eq!(state.due("a", later(now)).unwrap().report, report("R"));
    }

    #[test]
    fn object_that_was_made_again_is_left_alone() {
        let (mut state, now) = (State::default(), Instant::now());
        state.put(subject(), &object(json!({"a": {"reason": "R"}})));
        state.want(subject(), Some("of before".into()), None, now);
        assert!(state.due("a", now).is_err());
        state.want(subject(), None, None, now);
        assert!(state.due("a", now).is_ok());
    }

    #[test]
    fn write_that_changes_nothing_is_not_repeated_at_once() {
        let reporter = ProblemReporter::new("a");
        reporter.take(Subject::Configuration, &Change::Put(object(json!({"a": {"reason": "R"}}))));
        reporter.report(subject(), Some("u".into()), None);
        let due = reporter.state().due("a", Instant::now()).unwrap_or_else(|_| panic!("nothing is due"));
        reporter.written(&due, Ok(None));
        assert!(reporter.state().due("a", Instant::now()).is_err());
        reporter.written(&due, Ok(Some(object(json!({})))));
        reporter.take(Subject::Configuration, &Change::All(Vec::new()));
        assert!(reporter.state().shown.is_empty());
    }
}
