//! Publishes the files of claims: each poll reads their directories once, and the publisher writes what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_cluster::{Cluster, ObjectEvent};
use akri_model::broker_info::{ClaimDirectory, Files, MAX_GENERATIONS, Reading, limit};
use akri_model::claim::{ClaimState, Entry};
use akri_model::names::Key;
use tokio::time::sleep;
use tracing::warn;

use super::BrokerInfo;
use crate::journal::Journal;
use crate::publisher::Publisher;

/// Pause between polls of the directories. A slot is released two polls of pods after its container has ended, which is longer
/// by default: the last files of a container are published while its slot still belongs to this node.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between two writes to an Instance while its claims last.
const PAUSE: Duration = Duration::from_secs(5);

/// Time after which unchanged files are written again, since somebody may have removed them from the status.
const REPUBLISH: Duration = Duration::from_secs(60);

/// The information that was published of an Instance.
#[derive(Debug, Default)]
pub(super) struct PublishedInfo {
    uid: String,
    infos: BTreeMap<u32, Files>,
    at: Option<Instant>,
}

/// The task that publishes.
pub(super) struct Reporter {
    pub(super) info: Arc<BrokerInfo>,
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) publisher: Publisher,
    pub(super) journal: Journal,
    pub(super) published: BTreeMap<Key, PublishedInfo>,
    /// Directories of which a problem was logged.
    pub(super) logged: BTreeSet<ClaimDirectory>,
    /// Directories that can't be removed.
    pub(super) stuck: BTreeSet<ClaimDirectory>,
}

impl Reporter {
    /// Polls while there are directories.
    pub(super) async fn run(mut self) {
        loop {
            self.info.created.notified().await;
            loop {
                let polled = tokio::task::spawn_blocking(move || {
                    let is_any_left = self.poll();
                    (self, is_any_left)
                });
                let Ok((reporter, is_any_left)) = polled.await else { return };
                self = reporter;
                if !is_any_left {
                    break;
                }
                sleep(INTERVAL).await;
            }
        }
    }

    /// Publishes and removes what is due; returns whether directories are left to poll.
    fn poll(&mut self) -> bool {
        let Ok(listed) = self.info.list().inspect_err(|error| warn!("{error}")) else { return true };
        self.logged.retain(|directory| listed.contains(directory));
        self.published.retain(|key, _| listed.iter().any(|directory| directory.instance == *key));
        let listed: Vec<ClaimDirectory> = listed.difference(&self.stuck).cloned().collect();
        for of_instance in listed.chunk_by(|one, next| one.instance == next.instance) {
            self.serve(of_instance);
        }
        !listed.is_empty()
    }

    /// Publishes what brokers report of one Instance, and removes the directories that are no longer needed.
    fn serve(&mut self, directories: &[ClaimDirectory]) {
        let Some(ClaimDirectory { instance, .. }) = directories.first() else { return };
        let entry = self.journal.entry(instance);
        let held = entry.as_ref().map(held_slots).unwrap_or_default();
        let slots: Vec<&[ClaimDirectory]> = directories.chunk_by(|one, next| one.slot == next.slot).collect();
        if let Some(entry) = entry.filter(|entry| !entry.uid.is_empty()) {
            let newest: Vec<&ClaimDirectory> = slots.iter().filter_map(|slot| slot.last()).collect();
            let readings = self.read(&entry, &newest);
            let has_ended = newest.iter().any(|directory| !held.contains(&directory.slot));
            self.publish(&entry, readings, has_ended);
        }
        for slot in slots {
            let is_held = slot.first().is_some_and(|directory| held.contains(&directory.slot));
            let kept = if is_held { MAX_GENERATIONS } else { 0 };
            slot.iter().rev().skip(kept).for_each(|directory| self.remove(directory));
        }
    }

    /// Reads directories, within the limit of a node.
    fn read(&mut self, entry: &Entry, directories: &[&ClaimDirectory]) -> BTreeMap<u32, Reading> {
        let mut readings = BTreeMap::new();
        for directory in directories {
            match self.info.read(directory) {
                Ok(reading) => drop(readings.insert(directory.slot, reading)),
                // The container has removed the agent's right to read it.
                Err(error) if self.logged.insert((*directory).clone()) => warn!("{error}"),
                Err(_) => {}
            }
        }
        limit(&mut readings);
        for directory in directories {
            if let Some(refusals) = readings.get(&directory.slot).and_then(Reading::refusals)
                && self.logged.insert((*directory).clone())
            {
                self.report_refused(entry, format!("slot {}: {refusals}", directory.slot));
            }
        }
        readings
    }

    fn report_refused(&self, entry: &Entry, message: String) {
        warn!(instance = %entry.key, "files of a broker are not published: {message}");
        let event = ObjectEvent::new("Instance", &entry.key, &entry.uid, "BrokerInfoRefused", message);
        self.cluster.record_event(event);
    }

    /// Publishes what has changed. The last files of a claim that has ended do not wait.
    fn publish(&mut self, entry: &Entry, readings: BTreeMap<u32, Reading>, has_ended: bool) {
        let known = self.published.entry(entry.key.clone()).or_default();
        if known.uid != entry.uid {
            *known = PublishedInfo { uid: entry.uid.clone(), ..PublishedInfo::default() };
        }
        let age = known.at.map_or(Duration::MAX, |at| at.elapsed());
        let is_changed = readings.iter().any(|(slot, reading)| known.infos.get(slot) != Some(&reading.files));
        if age >= REPUBLISH || (is_changed && (has_ended || age >= PAUSE)) {
            known.at = Some(Instant::now());
            known.infos.extend(readings.into_iter().map(|(slot, reading)| (slot, reading.files)));
            self.publisher.publish_broker_info(entry.key.clone(), entry.uid.clone(), known.infos.clone());
        }
    }

    /// Removes a directory. A directory that a container has made unremovable stays until it is removed by hand.
    fn remove(&mut self, directory: &ClaimDirectory) {
        if let Err(error) = self.info.remove(directory) {
            warn!("{error}; remove it by hand");
            self.stuck.insert(directory.clone());
        }
    }
}

/// Returns the slots that containers of this node hold.
fn held_slots(entry: &Entry) -> BTreeSet<u32> {
    let claims = entry.claims.iter().filter(|(_, claim)| claim.state != ClaimState::Releasing);
    claims.map(|(slot, _)| *slot).collect()
}
