//! Publishes the files of claims. It compares what the directories hold with what it published last, again and again while
//! there are directories, so that nothing is lost for longer than an outage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_cluster::{Cluster, ClusterError, ObjectEvent};
use akri_model::broker_info::{ClaimDirectory, Files, MAX_GENERATIONS, Reading, limit};
use akri_model::budget::Budget;
use akri_model::claim::{ClaimState, Entry};
use akri_model::names::Key;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::BrokerInfoError;
use super::directories::Directories;
use crate::journal::Journal;

/// Pause between polls of the directories. A slot is given back two polls of pods after its container has ended, which is
/// longer by default: so the last files of a container are published while its slot is still its node's.
const INTERVAL: Duration = Duration::from_secs(1);

/// Cost of a write to one Instance. Five may follow each other, then one every ten seconds.
const WRITE: u64 = 10;
const BURST: u64 = 5 * WRITE;

/// The generations of claims on each slot of an Instance that have directories.
type Slots = BTreeMap<u32, BTreeSet<u64>>;

/// The state of one Instance.
#[derive(Debug)]
struct Published {
    uid: String,
    /// The information that the Instance shows of each slot; unknown for slots that are missing.
    infos: BTreeMap<u32, Files>,
    writes: Budget,
    /// The last error that was logged.
    error: Option<ClusterError>,
}

impl Published {
    fn new(uid: &str) -> Self {
        Self { uid: uid.to_owned(), infos: BTreeMap::new(), writes: Budget::new(BURST, 1), error: None }
    }
}

/// The task that publishes.
pub(super) struct Reporter {
    directories: Directories,
    cluster: Arc<dyn Cluster>,
    journal: Journal,
    published: BTreeMap<Key, Published>,
    /// Directories whose refused files were reported, and those that can't be removed.
    warned: BTreeSet<ClaimDirectory>,
    stuck: BTreeSet<ClaimDirectory>,
    unreadable: BTreeSet<ClaimDirectory>,
    /// Directories of before, if the journal has lost something: their claims may come back from other witnesses.
    unclear: BTreeSet<ClaimDirectory>,
    started: Instant,
}

/// Time after which the claims that a journal lost have come back.
const RESTORED: Duration = Duration::from_secs(600);

/// The API server does not answer.
struct Unavailable;

impl Reporter {
    pub(super) fn new(directories: Directories, cluster: Arc<dyn Cluster>, journal: Journal) -> Self {
        let (published, warned, stuck, unreadable) = Default::default();
        let before = || directories.list().unwrap_or_default();
        let unclear = if journal.lost_something() { before() } else { BTreeSet::new() };
        Self { directories, cluster, journal, published, warned, stuck, unreadable, unclear, started: Instant::now() }
    }

    /// Polls while there are directories.
    pub(super) async fn run(mut self, created: Arc<Notify>) {
        loop {
            created.notified().await;
            while self.poll().await {
                sleep(INTERVAL).await;
            }
        }
    }

    /// Publishes and removes what is due; returns whether directories are left to poll.
    async fn poll(&mut self) -> bool {
        let listed = match self.blocking(|directories| directories.list()).await {
            Ok(listed) => listed,
            Err(error) => {
                warn!("{error}");
                return true;
            }
        };
        self.warned.retain(|directory| listed.contains(directory));
        self.unreadable.retain(|directory| listed.contains(directory));
        if self.started.elapsed() > RESTORED {
            self.unclear.clear();
        }
        let listed: BTreeSet<ClaimDirectory> = listed.difference(&self.stuck).cloned().collect();
        let mut instances: BTreeMap<Key, Slots> = BTreeMap::new();
        for ClaimDirectory { instance, slot, generation } in listed {
            instances.entry(instance).or_default().entry(slot).or_default().insert(generation);
        }
        self.published.retain(|key, _| instances.contains_key(key));
        for (key, slots) in &instances {
            if self.serve(key, slots).await.is_err() {
                break; // most likely the others would get no answer, either
            }
        }
        !instances.is_empty()
    }

    /// Publishes what brokers report of one Instance, and removes the directories that are no longer needed.
    async fn serve(&mut self, key: &Key, slots: &Slots) -> Result<(), Unavailable> {
        let entry = self.journal.entry(key);
        let held = entry.as_ref().map(held).unwrap_or_default();
        let readings = self.read(key, slots).await;
        let written = match entry.as_ref().filter(|entry| !entry.uid.is_empty()) {
            Some(entry) => {
                self.report_refused(entry, slots, &readings);
                let infos = readings.into_iter().map(|(slot, reading)| (slot, reading.files)).collect();
                self.publish(entry, infos).await
            }
            None => Ok(BTreeSet::new()), // there is no Instance to publish it in
        };
        let waiting = match &written {
            Ok(waiting) => waiting.clone(),
            Err(Unavailable) => slots.keys().copied().collect(),
        };
        for (slot, generations) in slots {
            // The last files of a claim that has ended are published before they go.
            let kept = if held.contains(slot) || waiting.contains(slot) { MAX_GENERATIONS } else { 0 };
            let of = |generation: &u64| ClaimDirectory { instance: key.clone(), slot: *slot, generation: *generation };
            let outdated = generations.iter().rev().skip(kept).map(of);
            let outdated = outdated.filter(|directory| !self.unclear.contains(directory)).collect();
            self.remove(outdated).await;
        }
        written.map(drop)
    }

    /// Reads the newest directory of each slot, within what a node may publish.
    async fn read(&mut self, key: &Key, slots: &Slots) -> BTreeMap<u32, Reading> {
        let newest = |(slot, generations): (&u32, &BTreeSet<u64>)| {
            let generation = *generations.last()?;
            Some(ClaimDirectory { instance: key.clone(), slot: *slot, generation })
        };
        let newest: Vec<ClaimDirectory> = slots.iter().filter_map(newest).collect();
        let read = self.blocking(move |directories| {
            let read = |directory: ClaimDirectory| (directories.read(&directory), directory);
            Ok(newest.into_iter().map(read).collect::<Vec<_>>())
        });
        let mut readings = BTreeMap::new();
        for (reading, directory) in read.await.unwrap_or_default() {
            match reading {
                Ok(reading) => drop(readings.insert(directory.slot, reading)),
                Err(error) if self.unreadable.insert(directory) => warn!("{error}"),
                Err(_) => {} // a container can remove the right to read it; that is logged once
            }
        }
        limit(&mut readings);
        readings
    }

    /// Publishes what has changed. Returns the slots whose files are still to be published.
    async fn publish(&mut self, entry: &Entry, infos: BTreeMap<u32, Files>) -> Result<BTreeSet<u32>, Unavailable> {
        let known = self.published.entry(entry.key.clone()).or_insert_with(|| Published::new(&entry.uid));
        if known.uid != entry.uid {
            *known = Published::new(&entry.uid);
        }
        let is_new = |slot: &u32, files: &Files| known.infos.get(slot) != Some(files);
        let changed: BTreeMap<u32, Files> = infos.into_iter().filter(|(slot, files)| is_new(slot, files)).collect();
        let slots: BTreeSet<u32> = changed.keys().copied().collect();
        if changed.is_empty() {
            return Ok(slots);
        }
        let now = Instant::now();
        if !known.writes.wait(now).is_zero() {
            return Ok(slots);
        }
        let published = self.cluster.publish_broker_info(&entry.key, &entry.uid, &changed).await;
        if published.as_ref().is_ok_and(|foreign| *foreign != slots) || published.is_err() {
            known.writes.take(WRITE, now); // of foreign slots nothing was written
        }
        if published.as_ref().err() != known.error.as_ref() {
            known.error = published.as_ref().err().cloned();
            known.error.iter().for_each(|error| warn!(instance = %entry.key, %error, "brokerInfo is not published"));
        }
        match published {
            Ok(foreign) => {
                debug!(instance = %entry.key, ?slots, ?foreign, "brokerInfo published");
                let changed = changed.into_iter().filter(|(slot, _)| !foreign.contains(slot));
                known.infos.extend(changed);
                let held = held(entry);
                Ok(foreign.intersection(&held).copied().collect()) // the API server does not show the claim yet
            }
            Err(ClusterError::Unavailable(_)) => Err(Unavailable),
            Err(ClusterError::NotFound(_) | ClusterError::Refused(_)) => Ok(BTreeSet::new()),
        }
    }

    /// Reports the refused files of a claim, once for each claim.
    fn report_refused(&mut self, entry: &Entry, slots: &Slots, readings: &BTreeMap<u32, Reading>) {
        for (slot, reading) in readings {
            let generation = slots.get(slot).and_then(BTreeSet::last).copied().unwrap_or_default();
            let directory = ClaimDirectory { instance: entry.key.clone(), slot: *slot, generation };
            let Some(refusals) = reading.refusals() else { continue };
            if !self.warned.insert(directory) {
                continue;
            }
            let message = format!("slot {slot}: {refusals}");
            warn!(instance = %entry.key, "files of a broker are not published: {message}");
            let (key, uid) = (entry.key.clone(), entry.uid.clone());
            self.cluster.record_event(ObjectEvent { kind: "Instance", key, uid, reason: "BrokerInfoRefused", message });
        }
    }

    /// Removes directories. Unremovable directories of containers stay for a person.
    async fn remove(&mut self, outdated: Vec<ClaimDirectory>) {
        if outdated.is_empty() {
            return;
        }
        let removed = self.blocking(move |directories| {
            let stuck = outdated.into_iter().filter(|directory| match directories.remove(directory) {
                Ok(()) => false,
                Err(error) => {
                    warn!("{error}; remove it by hand");
                    true
                }
            });
            Ok(stuck.collect::<Vec<_>>())
        });
        self.stuck.extend(removed.await.unwrap_or_default());
    }

    async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Directories) -> Result<T, BrokerInfoError> + Send + 'static,
    ) -> Result<T, String> {
        let directories = self.directories.clone();
        let done = tokio::task::spawn_blocking(move || step(&directories)).await;
        done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

/// The slots that containers of this node hold.
fn held(entry: &Entry) -> BTreeSet<u32> {
    let claims = entry.claims.iter().filter(|(_, claim)| claim.state != ClaimState::Releasing);
    claims.map(|(slot, _)| *slot).collect()
}
