//! Publishes what owners decided, afterwards and in the background: a claim never waits for it.

mod delayed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_cluster::{Cluster, ClusterError, ConfigurationReport, Copies, HandlerReport, Published};
use akri_model::instance::Instance;
use akri_model::names::Key;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use delayed::Later;

/// First pause after a failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// Longest pause after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Writes on their way at once.
const AT_ONCE: usize = 8;

/// A handle; cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    queue: Arc<Mutex<WriteQueue>>,
    /// Wakes the task. A full queue is fine: one wake-up is enough.
    wake: mpsc::Sender<()>,
}

/// The queue of pending writes. A later write for an object replaces an earlier one, so the queue is bounded by the
/// number of objects, even if handlers change their devices often and the cluster is slow.
#[derive(Debug, Default)]
struct WriteQueue {
    writes: PendingWrites,
    flushes: Vec<oneshot::Sender<()>>,
}

type Object = (ObjectKind, Key);
type PendingWrites = BTreeMap<Object, PendingWrite>;

#[derive(Debug, Clone)]
enum PendingWrite {
    Publish(Box<Instance>, Copies),
    Delete { uid: String, is_used: bool },
    Report(Box<ConfigurationReport>),
    Forget,
    ReportHandler(Box<HandlerReport>),
    ForgetHandler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ObjectKind {
    Instance,
    Configuration,
    Handler,
}

impl Publisher {
    /// Starts the task. It ends when the last handle is gone and everything is published, or can't be.
    pub fn start(cluster: Arc<dyn Cluster>) -> Self {
        let (wake, woken) = mpsc::channel(1);
        let queue = Arc::default();
        tokio::spawn(run(cluster, Arc::clone(&queue), woken));
        Self { queue, wake }
    }

    /// The published Instance shall say this.
    pub fn publish(&self, instance: Instance, copies: Copies) {
        self.enqueue(ObjectKind::Instance, instance.key.clone(), PendingWrite::Publish(Box::new(instance), copies));
    }

    /// The Instance shall be gone. `is_used` says whether containers of this node still use it.
    pub fn delete(&self, key: Key, uid: String, is_used: bool) {
        self.enqueue(ObjectKind::Instance, key, PendingWrite::Delete { uid, is_used });
    }

    /// The Configuration's status shall say this.
    pub fn report(&self, report: ConfigurationReport) {
        self.enqueue(ObjectKind::Configuration, report.key.clone(), PendingWrite::Report(Box::new(report)));
    }

    /// Removes the report about this Configuration.
    pub fn forget(&self, key: Key) {
        self.enqueue(ObjectKind::Configuration, key, PendingWrite::Forget);
    }

    /// Reports the status of a discovery handler.
    pub fn report_handler(&self, report: HandlerReport) {
        self.enqueue(
            ObjectKind::Handler,
            Key::new("", report.name.clone()),
            PendingWrite::ReportHandler(Box::new(report)),
        );
    }

    /// Removes the report about this discovery handler.
    pub fn forget_handler(&self, name: &str) {
        self.enqueue(ObjectKind::Handler, Key::new("", name), PendingWrite::ForgetHandler);
    }

    /// Waits until all earlier writes were tried once, or nobody answered one of them. None of them waits for its time.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.change(|queue| queue.flushes.push(done));
        let _ = flushed.await; // a publisher that is gone has nothing to flush
    }

    fn enqueue(&self, kind: ObjectKind, key: Key, write: PendingWrite) {
        self.change(|queue| drop(queue.writes.insert((kind, key), write)));
    }

    fn change(&self, change: impl FnOnce(&mut WriteQueue)) {
        change(&mut lock(&self.queue));
        let _ = self.wake.try_send(()); // a full queue is fine: one wake-up is enough
    }
}

fn lock(queue: &Mutex<WriteQueue>) -> MutexGuard<'_, WriteQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(cluster: Arc<dyn Cluster>, queue: Arc<Mutex<WriteQueue>>, mut woken: mpsc::Receiver<()>) {
    let (mut backoff, mut silent, mut failing) = (FIRST_BACKOFF, None, Failing::default());
    let mut later = Later::default();
    while later.is_due_or_woken(&mut woken).await {
        loop {
            put_back(&queue, later.take_due(Instant::now()));
            let WriteQueue { mut writes, flushes } = std::mem::take(&mut *lock(&queue));
            if !flushes.is_empty() {
                later.copies.add_all_to(&mut writes);
            }
            let failed = attempt(&*cluster, writes, &mut silent, &mut later, &mut failing).await;
            failing.attempt_ended(failed.is_empty());
            flushes.into_iter().for_each(answer);
            if failed.is_empty() {
                break;
            }
            put_back(&queue, failed);
            if woken.is_closed() {
                return;
            }
            tokio::select! {
                () = sleep(backoff) => {}
                // New writes need not wait for one that is refused, but all do while nobody answers.
                _ = woken.recv(), if silent.is_none() => {}
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
        backoff = FIRST_BACKOFF;
    }
}

/// Puts back what is to be tried again, unless there is a newer write; that one is as urgent then.
fn put_back(queue: &Mutex<WriteQueue>, writes: PendingWrites) {
    let mut queue = lock(queue);
    for (object, write) in writes {
        let is_urgent = matches!(write, PendingWrite::Publish(_, Copies::Now));
        let newest = queue.writes.entry(object).or_insert(write);
        if let PendingWrite::Publish(_, copies) = newest
            && is_urgent
        {
            *copies = Copies::Now;
        }
    }
}

/// Log lines about objects that can't be published, in one attempt.
const LOGGED: usize = 3;

/// Objects that can't be published. Each is logged once, and of many only some.
#[derive(Debug, Default)]
struct Failing {
    logged: BTreeSet<Object>,
    new: usize,
}

impl Failing {
    fn log(&mut self, object: &Object, error: &ClusterError) {
        if self.is_news(object) {
            warn!(object = %object.1, "not published yet: {error}");
        } else {
            debug!(object = %object.1, "not published yet: {error}");
        }
    }

    /// Returns whether the failure of an object gets a warning of its own.
    fn is_news(&mut self, object: &Object) -> bool {
        let is_new = self.logged.insert(object.clone());
        self.new += usize::from(is_new);
        is_new && self.new <= LOGGED
    }

    /// Returns how many new failures got no warning of their own in this attempt.
    fn take_more(&mut self) -> usize {
        std::mem::take(&mut self.new).saturating_sub(LOGGED)
    }

    fn attempt_ended(&mut self, is_all_published: bool) {
        let more = self.take_more();
        if more > 0 {
            warn!(more, "further objects are not published yet");
        }
        if is_all_published && !std::mem::take(&mut self.logged).is_empty() {
            info!("all objects are published again");
        }
    }
}

/// Tries every write once, some at the same time, but starts none after one that got no answer: most likely the others would get
/// none, either, and each after the whole time an answer may take. `silent` is that one; if it was the only one, the others have
/// their turn before it the next time. Returns those that failed.
async fn attempt(
    cluster: &dyn Cluster,
    writes: PendingWrites,
    silent: &mut Option<Object>,
    later: &mut Later,
    failing: &mut Failing,
) -> PendingWrites {
    let mut failed = PendingWrites::new();
    let mut queue = in_turn(writes, silent.take()).into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < AT_ONCE
            && silent.is_none()
            && let Some((object, write)) = queue.next()
        {
            later.left.writes.remove(&object); // this one is newer
            running.push(async move {
                let result = fulfil(cluster, &object.1, &write).await;
                (object, write, result)
            });
        }
        let Some((object, write, result)) = running.next().await else { break };
        let Err(error) = later.take_result(&object, &write, result) else { continue };
        failing.log(&object, &error);
        if matches!(error, ClusterError::Unavailable(_)) {
            silent.get_or_insert_with(|| object.clone());
        }
        failed.insert(object, write);
    }
    drop(running);
    failed.extend(queue);
    failed
}

/// All writes, those behind the one that got no answer first.
fn in_turn(mut writes: PendingWrites, silent: Option<Object>) -> Vec<(Object, PendingWrite)> {
    let Some(silent) = silent else { return writes.into_iter().collect() };
    let mut behind = writes.split_off(&silent);
    let own = behind.remove_entry(&silent);
    behind.into_iter().chain(writes).chain(own).collect()
}

async fn fulfil(cluster: &dyn Cluster, key: &Key, write: &PendingWrite) -> Result<Published, ClusterError> {
    let done = match write {
        PendingWrite::Publish(instance, copies) => match cluster.publish(instance, *copies).await {
            Err(ClusterError::NotFound(_)) => Ok(()), // the watch tells its owner, who creates it again or has given it up
            other => return other,
        },
        PendingWrite::Delete { uid, is_used } => cluster.delete(key, uid, *is_used).await,
        PendingWrite::Report(report) => cluster.report(report).await,
        PendingWrite::Forget => cluster.forget(key).await,
        PendingWrite::ReportHandler(report) => cluster.report_handler(report).await,
        PendingWrite::ForgetHandler => cluster.forget_handler(&key.name).await,
    };
    done.map(|()| Published::Whole)
}

fn answer(done: oneshot::Sender<()>) {
    let _ = done.send(()); // the receiver may have gone
}

#[cfg(test)]
mod tests {
    use akri_model::instance::{Online, Version};

    use super::*;

    #[test] // rule 77
    fn newer_write_is_as_urgent_as_the_due_one_that_it_replaces() {
        let instance = |capacity| Instance {
            key: Key::new("default", "cam-1"),
            uid: "u".into(),
            version: Version::default(),
            identity: None,
            configuration: "cam".into(),
            configuration_uid: "c".into(),
            cdi_name: "akri.sh/cam=1".into(),
            capacity,
            properties: BTreeMap::new(),
            shared: false,
            nodes: Vec::new(),
            device_usage: BTreeMap::new(),
            online: Online::True,
        };
        let of = |capacity, copies| {
            let write = PendingWrite::Publish(Box::new(instance(capacity)), copies);
            PendingWrites::from([((ObjectKind::Instance, Key::new("default", "cam-1")), write)])
        };
        for (due, expected) in [(Copies::Now, Copies::Now), (Copies::Later, Copies::Later)] {
            let queue = Mutex::new(WriteQueue { writes: of(2, Copies::Later), flushes: Vec::new() });
            put_back(&queue, of(1, due));
            let kept = lock(&queue).writes.pop_first().unwrap().1;
            assert!(matches!(kept, PendingWrite::Publish(kept, copies) if kept.capacity == 2 && copies == expected));
        }
    }

    #[test]
    fn failures_of_many_objects_are_logged_once() {
        let mut failing = Failing::default();
        let attempt = |failing: &mut Failing, count: usize| {
            let objects = (0..count).map(|number| (ObjectKind::Instance, Key::new("default", format!("cam-{number}"))));
            let warnings = objects.filter(|object| failing.is_news(object)).count();
            (warnings, failing.take_more())
        };
        assert_eq!(attempt(&mut failing, 200), (LOGGED, 200 - LOGGED));
        assert_eq!(attempt(&mut failing, 200), (0, 0), "nothing new");
        assert_eq!(attempt(&mut failing, 201), (1, 0));
        failing.attempt_ended(true);
        assert_eq!(attempt(&mut failing, 1), (1, 0), "it was published in between");
    }
}
