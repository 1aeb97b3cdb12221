//! The discovery sources of one Configuration, a component and the endpoints of remote handlers of the same name, and
//! their combined result (rule 31).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::device::{AbsenceMeaning, DeviceSet, Note};
use crate::discovery::RoundError;
use crate::remote::Address;

/// A source of devices. If two sources report the same device, the first in this order wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiscoverySource {
    /// The component handler.
    Component,
    /// A remote handler.
    Remote(Address),
}

impl fmt::Display for DiscoverySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Component => f.write_str("the component"),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

/// The state of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SourceState {
    /// Whether its devices are shared, if declared.
    shared: Option<bool>,
    /// Its last devices, which are kept when it fails.
    set: Option<DeviceSet>,
    /// The error since the last success.
    error: Option<RoundError>,
    /// Whether it may know devices from before a restart that it has not reported yet.
    expected: bool,
}

/// The sources of a Configuration with their states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    states: BTreeMap<DiscoverySource, SourceState>,
    /// Ids in the last merged set.
    listed: BTreeSet<String>,
    /// Whether a source was removed and none has reported since, so that the state of its devices is unknown.
    lost: bool,
    /// Whether devices were reported since the last merge.
    unreported: bool,
}

/// The combined result of all sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergedResult {
    /// There is no source.
    NoSource,
    /// No source has reported yet.
    NoReport,
    /// All sources fail. Contains the error, and the devices reported before if they were not returned yet.
    Failed(RoundError, Option<MergedDevices>),
    /// The devices of all sources.
    Found(MergedDevices),
}

/// The devices of all sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedDevices {
    /// The union of the last sets, with the meaning of absence from it.
    pub set: DeviceSet,
    /// Whether the devices are shared; `None` if no source has declared it.
    pub shared: Option<bool>,
}

impl Sources {
    /// Adds a source. An expected one may know devices from before a restart: until it reports, they are not missing.
    pub fn add(&mut self, source: DiscoverySource, shared: Option<bool>, expected: bool) {
        let state = self.states.entry(source).or_insert_with(|| SourceState { expected, ..SourceState::default() });
        state.shared = shared.or(state.shared);
    }

    /// Removes a source that never reported, or one that no longer exists.
    pub fn remove_absent(&mut self, source: &DiscoverySource) {
        if self.states.get(source).is_some_and(|state| state.set.is_none()) {
            self.states.remove(source);
        } else {
            self.remove(source);
        }
    }

    /// Removes a source; its devices become unknown.
    pub fn remove(&mut self, source: &DiscoverySource) {
        self.lost |= self.states.remove(source).is_some();
    }

    /// Discards the devices of a source that was silent for too long.
    pub fn expire(&mut self, source: &DiscoverySource) {
        let Some(state) = self.states.get_mut(source) else { return };
        self.lost |= state.expected || state.set.is_some();
        *state = SourceState { shared: state.shared, ..SourceState::default() };
    }

    /// Clears the error of a source that is connected again.
    pub fn clear_error(&mut self, source: &DiscoverySource) {
        if let Some(state) = self.states.get_mut(source) {
            state.error = None;
        }
    }

    /// Records a failure of a source. Its devices are kept.
    pub fn record_failure(&mut self, source: &DiscoverySource, error: RoundError) {
        if let Some(state) = self.states.get_mut(source) {
            state.error = Some(error);
        }
    }

    /// Records the devices reported by a source.
    pub fn record_devices(&mut self, source: &DiscoverySource, set: DeviceSet) {
        let Some(state) = self.states.get_mut(source) else { return };
        *state = SourceState { shared: state.shared, set: Some(set), ..SourceState::default() };
        (self.lost, self.unreported) = (false, true);
    }

    /// Returns whether a source was removed whose devices are unknown.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the combined result, with at most that many notes.
    pub fn merge(&mut self, notes: usize) -> MergedResult {
        self.reject_component_that_differs();
        let is_well = |state: &SourceState| state.set.is_some() && state.error.is_none();
        if self.states.values().any(is_well) {
            return MergedResult::Found(self.union(notes));
        }
        match self.states.values().find_map(|state| state.error.clone()) {
            Some(error) => {
                let unsent = self.unreported && self.states.values().any(|state| state.set.is_some());
                MergedResult::Failed(error, unsent.then(|| self.union(notes)))
            }
            None if self.states.is_empty() => MergedResult::NoSource,
            None => MergedResult::NoReport,
        }
    }

    /// Disables a component that disagrees with a remote handler on `shared`. The component came later, since a
    /// disagreeing remote handler can't register.
    fn reject_component_that_differs(&mut self) {
        let remote =
            self.states.iter().find(|(source, state)| **source != DiscoverySource::Component && state.shared.is_some());
        let Some((remote, shared)) = remote.map(|(source, state)| (source.to_string(), state.shared)) else { return };
        let Some(component) = self.states.get_mut(&DiscoverySource::Component) else { return };
        if component.shared.is_some_and(|of_component| Some(of_component) != shared) {
            let mentions = |shared: Option<bool>| shared.unwrap_or_default();
            let message = format!(
                "the component says shared={}, but {remote} serves the handler as shared={}; it is not used",
                mentions(component.shared),
                mentions(shared)
            );
            *component = SourceState { error: Some(RoundError::Unavailable(message)), ..SourceState::default() };
        }
    }

    fn union(&mut self, notes: usize) -> MergedDevices {
        let mut union = Union { notes, ..Union::default() };
        for state in self.states.values() {
            union.add_failure(state);
            union.add(state.set.as_ref());
        }
        let Union { mut set, listed, .. } = union;
        set.absence = match () {
            () if self.lost => AbsenceMeaning::Unknown,
            () if self.states.values().any(|state| state.expected) => {
                AbsenceMeaning::Kept(self.listed.difference(&listed).cloned().collect())
            }
            () => AbsenceMeaning::Missing,
        };
        self.listed = listed;
        self.unreported = false;
        MergedDevices { set, shared: self.states.values().find_map(|state| state.shared) }
    }
}

#[derive(Default)]
struct Union {
    set: DeviceSet,
    listed: BTreeSet<String>,
    notes: usize,
}

impl Union {
    fn add(&mut self, set: Option<&DeviceSet>) {
        let Some(set) = set else { return };
        for device in &set.devices {
            if self.listed.insert(device.id.clone()) {
                self.set.devices.push(device.clone());
            }
        }
        for id in &set.withheld {
            if self.listed.insert(id.clone()) {
                self.set.withheld.insert(id.clone());
            }
        }
        self.set.kept.extend(set.kept.iter().cloned());
        self.set.notes_dropped += set.notes_dropped;
        set.notes.iter().for_each(|note| self.note(note.clone()));
    }

    fn add_failure(&mut self, state: &SourceState) {
        if let Some(error) = &state.error {
            let message = format!("{error}; its devices stay as they are");
            self.note(Note { origin: String::new(), reason: error.reason().to_owned(), message });
        }
    }

    fn note(&mut self, note: Note) {
        if self.set.notes.len() < self.notes {
            self.set.notes.push(note);
        } else {
            self.set.notes_dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests;
