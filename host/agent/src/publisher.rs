//! Publishes what owners decided, afterwards and in the background: a claim never waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::instance::Instance;
use akri_model::names::Key;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::cluster::{Cluster, ClusterError, Created, Report};

/// First pause after a failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// Longest pause after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// A handle; cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    wishes: mpsc::UnboundedSender<Wish>,
}

/// What is to be so. A later wish for one object replaces an earlier one, so the queue is never longer than there are
/// objects, once the task has looked at it.
#[derive(Debug)]
enum Wish {
    Publish(Box<Instance>),
    Delete { key: Key, uid: String },
    Report(Box<Report>),
    Forget(Key),
    Flush(oneshot::Sender<()>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Instance,
    Configuration,
}

impl Publisher {
    /// Starts the task. It ends when the last handle is gone and everything is published, or can't be.
    pub fn start(cluster: Arc<dyn Cluster>) -> Self {
        let (wishes, queue) = mpsc::unbounded_channel();
        tokio::spawn(run(cluster, queue));
        Self { wishes }
    }

    /// The published Instance shall say this.
    pub fn publish(&self, instance: Instance) {
        self.wish(Wish::Publish(Box::new(instance)));
    }

    /// The Instance shall be gone.
    pub fn delete(&self, key: Key, uid: String) {
        self.wish(Wish::Delete { key, uid });
    }

    /// The Configuration's status shall say this.
    pub fn report(&self, report: Report) {
        self.wish(Wish::Report(Box::new(report)));
    }

    /// There shall be no report about this Configuration.
    pub fn forget(&self, key: Key) {
        self.wish(Wish::Forget(key));
    }

    /// Waits until all earlier wishes were tried once.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.wish(Wish::Flush(done));
        let _ = flushed.await; // a publisher that is gone has nothing to flush
    }

    fn wish(&self, wish: Wish) {
        let _ = self.wishes.send(wish); // the task outlives all handles
    }
}

async fn run(cluster: Arc<dyn Cluster>, mut queue: mpsc::UnboundedReceiver<Wish>) {
    let mut pending: BTreeMap<(Kind, Key), Wish> = BTreeMap::new();
    let mut backoff = FIRST_BACKOFF;
    while let Some(wish) = queue.recv().await {
        let mut flushed = collect(wish, &mut queue, &mut pending);
        while !pending.is_empty() {
            let failed = attempt(&*cluster, &mut pending).await;
            flushed.drain(..).for_each(answer);
            if !failed {
                break;
            }
            if queue.is_closed() && queue.is_empty() {
                return;
            }
            wait(&mut backoff, &mut queue, &mut pending, &mut flushed).await;
        }
        backoff = FIRST_BACKOFF;
        flushed.into_iter().for_each(answer);
    }
}

/// Waits out the backoff; what comes in meanwhile is collected.
async fn wait(
    backoff: &mut Duration,
    queue: &mut mpsc::UnboundedReceiver<Wish>,
    pending: &mut BTreeMap<(Kind, Key), Wish>,
    flushed: &mut Vec<oneshot::Sender<()>>,
) {
    sleep(*backoff).await;
    *backoff = (*backoff * 2).min(MAX_BACKOFF);
    if let Ok(wish) = queue.try_recv() {
        flushed.extend(collect(wish, queue, pending));
    }
}

/// Takes everything that waits in the queue; the newest wish for an object counts.
fn collect(
    first: Wish,
    queue: &mut mpsc::UnboundedReceiver<Wish>,
    pending: &mut BTreeMap<(Kind, Key), Wish>,
) -> Vec<oneshot::Sender<()>> {
    let mut flushed = Vec::new();
    let mut next = Some(first);
    while let Some(wish) = next {
        let object = match &wish {
            Wish::Publish(instance) => (Kind::Instance, instance.key.clone()),
            Wish::Delete { key, .. } => (Kind::Instance, key.clone()),
            Wish::Report(report) => (Kind::Configuration, report.key.clone()),
            Wish::Forget(key) => (Kind::Configuration, key.clone()),
            Wish::Flush(_) => (Kind::Instance, Key::new("", "")),
        };
        match wish {
            Wish::Flush(done) => flushed.push(done),
            wish => drop(pending.insert(object, wish)),
        }
        next = queue.try_recv().ok();
    }
    flushed
}

/// Tries every wish once; says whether one failed and stays.
async fn attempt(cluster: &dyn Cluster, pending: &mut BTreeMap<(Kind, Key), Wish>) -> bool {
    let mut failed = BTreeMap::new();
    for (object, wish) in std::mem::take(pending) {
        if let Err(error) = fulfil(cluster, &wish).await {
            warn!(object = %object.1, "not published yet: {error}");
            failed.insert(object, wish);
        }
    }
    *pending = failed;
    !pending.is_empty()
}

async fn fulfil(cluster: &dyn Cluster, wish: &Wish) -> Result<(), ClusterError> {
    match wish {
        Wish::Publish(instance) => match cluster.publish(instance).await {
            Err(ClusterError::NotFound(_)) => recreate(cluster, instance).await,
            other => other,
        },
        Wish::Delete { key, uid } => cluster.delete(key, uid).await,
        Wish::Report(report) => cluster.report(report).await,
        Wish::Forget(key) => cluster.forget(key).await,
        Wish::Flush(_) => Ok(()),
    }
}

/// Somebody deleted an Instance whose device is there: it is made again, with its claims (rule 27).
async fn recreate(cluster: &dyn Cluster, instance: &Instance) -> Result<(), ClusterError> {
    match cluster.create(instance).await? {
        Created::New(_) => info!(instance = %instance.key, "created again"),
        Created::Taken(other) => warn!(instance = %instance.key, holder = other.uid, "another Instance has the name"),
    }
    Ok(())
}

fn answer(done: oneshot::Sender<()>) {
    let _ = done.send(()); // whoever asked may have given up
}
