//! Publishes what owners decided, afterwards and in the background: a claim never waits for it.

mod write_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_cluster::{Cluster, ClusterError, ClusterResult, Report, WriteOutcome};
use akri_model::broker_info::Files;
use akri_model::instance::Instance;
use akri_model::names::Key;
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use write_queue::{Object, ObjectKind, PendingWrite, Write, WriteQueue};

/// Maximum number of concurrent writes.
const MAX_CONCURRENT: usize = 8;

/// Maximum number of failing objects that get a warning each.
const MAX_WARNINGS: usize = 3;

/// A handle; cheap to clone. The task behind it ends with the last one.
#[derive(Debug, Clone)]
pub struct Publisher {
    writes: Arc<WriteQueue>,
    _task: Arc<JoinSet<()>>,
}

impl Publisher {
    /// Starts the task.
    pub fn start(cluster: Arc<dyn Cluster>) -> Self {
        let writes = Arc::new(WriteQueue::new());
        let task = JoinSet::from_iter([run(cluster, Arc::clone(&writes))]);
        Self { writes, _task: Arc::new(task) }
    }

    /// Publishes an Instance; if it is local and `is_usage_due` is not set, its usage later.
    pub fn publish(&self, instance: Instance, is_usage_due: bool) {
        let usage_due = is_usage_due.then(Instant::now);
        let object = (ObjectKind::Instance, instance.key.clone());
        self.writes
            .enqueue(object, PendingWrite { usage_due, ..PendingWrite::new(Write::Publish(Box::new(instance))) });
    }

    /// Deletes an Instance. `is_used` says whether containers of this node still use it.
    pub fn delete(&self, key: Key, uid: String, is_used: bool) {
        self.enqueue(ObjectKind::Instance, key, Write::Delete { uid, is_used });
    }

    /// Publishes what brokers of this node report of an Instance, by slot.
    pub fn publish_broker_info(&self, key: Key, uid: String, infos: BTreeMap<u32, Files>) {
        self.enqueue(ObjectKind::BrokerInfo, key, Write::BrokerInfo { uid, infos });
    }

    /// Reports the state of a Configuration or of a discovery handler.
    pub fn report(&self, report: Report) {
        self.enqueue(ObjectKind::Report, report.object(), Write::Report(Box::new(report)));
    }

    /// Removes the report about a deleted Configuration, or a removed discovery handler.
    pub fn forget(&self, object: Key) {
        self.enqueue(ObjectKind::Report, object, Write::Forget);
    }

    /// Waits until every earlier write was tried once, or one of them got no answer. Delayed writes are tried at once.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.writes.flush(done);
        let _ = flushed.await; // the sender is dropped when the queue is flushed
    }

    fn enqueue(&self, kind: ObjectKind, key: Key, write: Write) {
        self.writes.enqueue((kind, key), PendingWrite::new(write));
    }
}

async fn run(cluster: Arc<dyn Cluster>, writes: Arc<WriteQueue>) {
    let mut report_changes = cluster.watches().report_changes.subscribe();
    let (mut outage, mut failing) = (Outage::default(), FailingObjects::default());
    let mut running = FuturesUnordered::new();
    loop {
        let next = async {
            outage.pause().await;
            writes.next().await
        };
        tokio::select! {
            (object, write) = next, if running.len() < MAX_CONCURRENT => running.push(attempt(&*cluster, object, write)),
            Some((object, write, result)) = running.next() => {
                outage.take_result(&result);
                failing.take_result(&object, &result);
                writes.attempted(object, write, &result, Instant::now());
            }
            Ok(()) = report_changes.changed() => writes.check_reports(),
        }
    }
}

async fn attempt(
    cluster: &dyn Cluster,
    object: Object,
    write: PendingWrite,
) -> (Object, PendingWrite, ClusterResult<WriteOutcome>) {
    let key = &object.1;
    let complete = |()| WriteOutcome::Complete;
    let result = match &write.write {
        Write::Publish(instance) => cluster.publish(instance, write.is_usage_due(Instant::now())).await,
        Write::Delete { uid, is_used } => cluster.delete(key, uid, *is_used).await.map(complete),
        Write::BrokerInfo { uid, infos } => cluster.publish_broker_info(key, uid, infos).await.map(complete),
        Write::Report(report) => cluster.report(report).await,
        Write::Forget => cluster.forget(key).await.map(complete),
    };
    let result = match result {
        // The owner of the Instance gets to know that, too, and creates it again or has removed it.
        Err(ClusterError::NotFound(_)) if matches!(write.write, Write::Publish(_) | Write::BrokerInfo { .. }) => {
            Ok(WriteOutcome::Complete)
        }
        result => result,
    };
    (object, write, result)
}

/// A time in which the API server does not answer. No write starts in it: each would wait as long as an answer may take.
struct Outage {
    backoff: Backoff,
    until: Option<Instant>,
}

impl Default for Outage {
    fn default() -> Self {
        Self { backoff: Backoff::new(RetryPolicy::PUBLISH), until: None }
    }
}

impl Outage {
    async fn pause(&self) {
        if let Some(until) = self.until {
            sleep_until(until).await;
        }
    }

    fn take_result(&mut self, result: &ClusterResult<WriteOutcome>) {
        let now = Instant::now();
        match result {
            // Writes that started together fail together, and count once.
            Err(ClusterError::Unavailable(_)) if self.until.is_some_and(|until| until > now) => {}
            Err(ClusterError::Unavailable(_)) => self.until = Some(now + self.backoff.failed(jitter())),
            Ok(_) | Err(ClusterError::NotFound(_) | ClusterError::Refused(_)) => *self = Self::default(),
        }
    }
}

/// Objects that can't be published. Each is logged once, and of many only some.
#[derive(Default)]
struct FailingObjects(BTreeSet<Object>);

impl FailingObjects {
    fn take_result(&mut self, object: &Object, result: &ClusterResult<WriteOutcome>) {
        match result {
            Err(error) if self.is_notable(object) => warn!(object = %object.1, "not published yet: {error}"),
            Err(error) => debug!(object = %object.1, "not published yet: {error}"),
            Ok(_) if self.0.remove(object) && self.0.is_empty() => info!("all objects are published again"),
            Ok(_) => {}
        }
    }

    /// Adds an object. Returns whether its failure gets a warning of its own.
    fn is_notable(&mut self, object: &Object) -> bool {
        let is_new = self.0.insert(object.clone());
        if is_new && self.0.len() == MAX_WARNINGS + 1 {
            warn!("further objects are not published yet");
        }
        is_new && self.0.len() <= MAX_WARNINGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_many_objects_are_logged_once() {
        let mut failing = FailingObjects::default();
        let object = |number| (ObjectKind::Instance, Key::new("default", format!("cam-{number}")));
        let warnings = |failing: &mut FailingObjects, count: usize| {
            (0..count).filter(|number| failing.is_notable(&object(*number))).count()
        };
        assert_eq!(warnings(&mut failing, 200), MAX_WARNINGS);
        assert_eq!(warnings(&mut failing, 201), 0, "nothing new, and many fail");
        (0..201).for_each(|number| failing.take_result(&object(number), &Ok(WriteOutcome::Complete)));
        assert_eq!(warnings(&mut failing, 1), 1, "it was published in between");
    }
}
