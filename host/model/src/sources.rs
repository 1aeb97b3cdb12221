//! The discovery sources of one Configuration, a component and the endpoints of remote handlers of the same name, and
//! their combined result (rule 31).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::configuration_status::DiscoveryStatus;
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

/// An event of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEvent {
    /// The source.
    pub source: DiscoverySource,
    /// The generation of the Configuration that it was asked with.
    pub generation: i64,
    /// The time of the kernel event that led to it.
    pub event_at: Option<Instant>,
    /// The content.
    pub update: SourceUpdate,
}

/// The content of a [`SourceEvent`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceUpdate {
    /// The connection to a remote handler is stable.
    Connected,
    /// The complete list of devices.
    Found {
        /// The devices.
        set: DeviceSet,
        /// The value of `shared`, if declared with them; a remote handler declares it when it registers.
        shared: Option<bool>,
    },
    /// There is no component of that name, for this reason.
    NoComponent(String),
    /// The round or the request failed, or the component is refused. Known devices are kept.
    Failed(RoundError),
}

/// The state of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SourceState {
    /// The value of `shared`, if declared.
    shared: Option<bool>,
    /// Its last devices, which are kept when it fails.
    set: Option<DeviceSet>,
    /// The error since the last success.
    error: Option<RoundError>,
    /// Set if it may know devices from before a restart that it has not reported yet.
    expected: bool,
    /// The time since which it is connected without having reported anything.
    silent_since: Option<Instant>,
}

/// The sources of a Configuration with their states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStates {
    /// Boxed: most Configurations have one.
    states: BTreeMap<DiscoverySource, Box<SourceState>>,
    /// The message that explains the absence of a component.
    no_component: String,
    /// Ids in the last merged set.
    listed: BTreeSet<String>,
    /// Set if a source was removed and none has reported since, so that the state of its devices is unknown.
    lost: bool,
    /// Set if devices were reported since the last merge.
    unreported: bool,
    /// The newest generation of the Configuration that a source has answered.
    answered: i64,
    /// The time of the kernel event that led to what was reported since the last merge.
    event_at: Option<Instant>,
}

/// The combined result of all sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedResult {
    /// The status; `None` if no source has reported or is connected yet.
    pub status: Option<DiscoveryStatus>,
    /// The devices; `None` if nothing is known that was not returned before.
    pub devices: Option<MergedDevices>,
}

/// The devices of all sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedDevices {
    /// The union of the last sets, with the meaning of absence from it.
    pub set: DeviceSet,
    /// The value of `shared`; `None` if no source has declared it.
    pub shared: Option<bool>,
    /// The time of the kernel event that led to the newest of them.
    pub event_at: Option<Instant>,
}

impl SourceStates {
    /// Adds a source. An expected one may know devices from before a restart: until it reports, they are not missing.
    pub fn add(&mut self, source: DiscoverySource, shared: Option<bool>, expected: bool) {
        let state =
            self.states.entry(source).or_insert_with(|| Box::new(SourceState { expected, ..SourceState::default() }));
        state.shared = shared.or(state.shared);
    }

    /// Removes the remote sources that are not there any more; their devices become unknown. Returns whether there were any.
    pub fn retain_remote(&mut self, is_there: impl Fn(&Address) -> bool) -> bool {
        let before = self.states.len();
        self.states.retain(|source, _| match source {
            DiscoverySource::Component => true,
            DiscoverySource::Remote(address) => is_there(address),
        });
        self.lost |= self.states.len() != before;
        self.states.len() != before
    }

    /// Applies an event of a source. A component is added by its first event; events of other unknown sources are ignored.
    pub fn apply(&mut self, event: SourceEvent, now: Instant) {
        let SourceEvent { source, generation, event_at, update } = event;
        if source == DiscoverySource::Component {
            self.add(source.clone(), None, false);
        }
        let Some(state) = self.states.get_mut(&source) else { return };
        state.silent_since = None;
        let is_answer = !matches!(update, SourceUpdate::Connected);
        match update {
            SourceUpdate::NoComponent(message) => self.remove_component(message),
            SourceUpdate::Connected => (state.silent_since, state.error) = (Some(now), None),
            SourceUpdate::Failed(error) => state.error = Some(error),
            SourceUpdate::Found { set, shared } => {
                let shared = shared.or(state.shared);
                **state = SourceState { shared, set: Some(set), ..SourceState::default() };
                (self.lost, self.unreported) = (false, true);
                self.event_at = event_at.or(self.event_at);
            }
        }
        // Where there is no component, the endpoints of a remote handler answer, if there are any.
        if is_answer && (self.states.is_empty() || self.states.contains_key(&source)) {
            self.answered = self.answered.max(generation);
        }
    }

    /// Returns the newest generation of the Configuration that a source has answered; 0 before the first answer.
    pub fn answered(&self) -> i64 {
        self.answered
    }

    /// Returns whether the component may know devices from before a restart and has neither reported nor failed.
    pub fn awaits_component(&self) -> bool {
        self.states.get(&DiscoverySource::Component).is_some_and(|state| state.expected && state.error.is_none())
    }

    /// Removes the component; its devices become unknown if it reported any.
    fn remove_component(&mut self, message: String) {
        self.no_component = message;
        let removed = self.states.remove(&DiscoverySource::Component);
        self.lost |= removed.is_some_and(|state| state.set.is_some());
    }

    /// Returns the time since which the first of the silent sources is connected.
    pub fn silent_since(&self) -> Option<Instant> {
        self.states.values().filter_map(|state| state.silent_since).min()
    }

    /// Discards the devices of sources that have been silent for the timeout: handlers for upstream Akri send nothing
    /// while they find nothing.
    pub fn expire_silent(&mut self, now: Instant, timeout: Duration) {
        let is_due = |state: &&mut Box<SourceState>| state.silent_since.is_some_and(|since| since + timeout <= now);
        for state in self.states.values_mut().filter(is_due) {
            self.lost |= state.expected || state.set.is_some();
            **state = SourceState { shared: state.shared, ..SourceState::default() };
        }
    }

    /// Returns the combined result, with at most that many notes.
    pub fn merge(&mut self, notes: usize) -> MergedResult {
        let is_well = |state: &SourceState| state.set.is_some() && state.error.is_none();
        let is_found = self.states.values().any(|state| is_well(state));
        let has_set = self.states.values().any(|state| state.set.is_some());
        let devices = if is_found || has_set && (self.unreported || self.lost) {
            Some(self.union(notes))
        } else {
            self.lost.then(|| MergedDevices {
                set: DeviceSet { absence: AbsenceMeaning::Unknown, ..DeviceSet::default() },
                ..MergedDevices::default()
            })
        };
        let found = devices.as_ref().filter(|_| is_found).map(|devices| DiscoveryStatus::found(&devices.set));
        MergedResult { status: found.or_else(|| self.status_without_devices()), devices }
    }

    fn status_without_devices(&self) -> Option<DiscoveryStatus> {
        if self.states.is_empty() {
            return Some(DiscoveryStatus::Failed(RoundError::NoHandler(self.no_component.clone())));
        }
        let error = self.states.values().find_map(|state| state.error.clone());
        error.map(DiscoveryStatus::Failed).or_else(|| self.silent_since().map(|_| DiscoveryStatus::Silent))
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
        let shared = self.states.values().find_map(|state| state.shared);
        MergedDevices { set, shared, event_at: self.event_at.take() }
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
        self.set.notes_dropped = self.set.notes_dropped.saturating_add(set.notes_dropped);
        self.set.left_out.extend(&set.left_out);
        set.notes.iter().for_each(|note| self.set.add_note(note.clone(), self.notes));
    }

    fn add_failure(&mut self, state: &SourceState) {
        if let Some(error) = &state.error {
            let message = format!("{error}; its devices stay as they are");
            let note = Note { origin: String::new(), reason: error.reason().to_owned(), message };
            self.set.add_note(note, self.notes);
        }
    }
}

#[cfg(test)]
mod tests;
