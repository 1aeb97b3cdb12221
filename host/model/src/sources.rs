//! Who reports the devices of one Configuration, and what they say together: a component, and the endpoints of remote
//! handlers of the same name (rule 31).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::device::{DeviceSet, Note, Unlisted};
use crate::discovery::RoundError;
use crate::remote::Address;

/// One who reports devices. Of two who report the same device, the first in this order counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The component of that name.
    Component,
    /// A remote handler.
    Remote(Address),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Component => f.write_str("the component"),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

/// What one source has said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Word {
    /// Whether many nodes see its devices, if it has said so.
    shared: Option<bool>,
    /// Its last devices: they stay whatever goes wrong.
    set: Option<DeviceSet>,
    /// What has gone wrong since.
    error: Option<RoundError>,
    /// It may know devices from before that it has not had the time to report.
    expected: bool,
}

/// All sources of a Configuration and their last words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    words: BTreeMap<Source, Word>,
    /// Ids in the last union.
    listed: BTreeSet<String>,
    /// A source has gone and nobody has spoken since: nobody knows about its devices.
    lost: bool,
    /// There is something about devices that was not told yet.
    news: bool,
}

/// What they say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// There is no source.
    Nobody,
    /// None has said anything yet.
    Nothing,
    /// None is well. This is why, and what the last of them said before, if that was not told yet.
    Failed(RoundError, Option<Found>),
    /// All devices.
    Found(Found),
}

/// All devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The union of all last sets; it says what it means not to be in it.
    pub set: DeviceSet,
    /// Whether many nodes see them; `None` if no source knows.
    pub shared: Option<bool>,
}

impl Sources {
    /// There is a source. Who is expected may know devices that are known from before: until it has spoken, they are not
    /// missing. Others only add.
    pub fn appear(&mut self, source: Source, shared: Option<bool>, expected: bool) {
        let word = self.words.entry(source).or_insert_with(|| Word { expected, ..Word::default() });
        word.shared = shared.or(word.shared);
    }

    /// A source is not there, and never was.
    pub fn absent(&mut self, source: &Source) {
        if self.words.get(source).is_some_and(|word| word.set.is_none()) {
            self.words.remove(source);
        } else {
            self.vanish(source);
        }
    }

    /// A source has gone, and nobody knows about its devices.
    pub fn vanish(&mut self, source: &Source) {
        self.lost |= self.words.remove(source).is_some();
    }

    /// A source has been listened to for long and has not said a word: what it said before no longer counts.
    pub fn silent(&mut self, source: &Source) {
        let Some(word) = self.words.get_mut(source) else { return };
        self.lost |= word.expected || word.set.is_some();
        *word = Word { shared: word.shared, ..Word::default() };
    }

    /// A source can be heard again, and has not said anything yet.
    pub fn recovered(&mut self, source: &Source) {
        if let Some(word) = self.words.get_mut(source) {
            word.error = None;
        }
    }

    /// A source has failed. Its devices stay as they are.
    pub fn failed(&mut self, source: &Source, error: RoundError) {
        if let Some(word) = self.words.get_mut(source) {
            word.error = Some(error);
        }
    }

    /// A source has reported its devices.
    pub fn found(&mut self, source: &Source, set: DeviceSet) {
        let Some(word) = self.words.get_mut(source) else { return };
        *word = Word { shared: word.shared, set: Some(set), ..Word::default() };
        (self.lost, self.news) = (false, true);
    }

    /// Whether a source has gone whose devices nobody knows about.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// What all say together, with at most so many notes. What is no longer listed counts as told.
    pub fn said(&mut self, notes: usize) -> Said {
        self.settle_disagreement();
        let is_well = |word: &Word| word.set.is_some() && word.error.is_none();
        if self.words.values().any(is_well) {
            return Said::Found(self.union(notes));
        }
        match self.words.values().find_map(|word| word.error.clone()) {
            Some(error) => {
                let untold = self.news && self.words.values().any(|word| word.set.is_some());
                Said::Failed(error, untold.then(|| self.union(notes)))
            }
            None if self.words.is_empty() => Said::Nobody,
            None => Said::Nothing,
        }
    }

    /// Remote handlers that disagree with a component can't register. So if there is one, the component came later.
    fn settle_disagreement(&mut self) {
        let remote = self.words.iter().find(|(source, word)| **source != Source::Component && word.shared.is_some());
        let Some((remote, shared)) = remote.map(|(source, word)| (source.to_string(), word.shared)) else { return };
        let Some(component) = self.words.get_mut(&Source::Component) else { return };
        if component.shared.is_some_and(|of_component| Some(of_component) != shared) {
            let says = |shared: Option<bool>| shared.unwrap_or_default();
            let message = format!(
                "the component says shared={}, but {remote} serves the handler as shared={}; it is not used",
                says(component.shared),
                says(shared)
            );
            *component = Word { error: Some(RoundError::Unavailable(message)), ..Word::default() };
        }
    }

    fn union(&mut self, notes: usize) -> Found {
        let mut union = Union { notes, ..Union::default() };
        for word in self.words.values() {
            union.add_failure(word);
            union.add(word.set.as_ref());
        }
        let Union { mut set, listed, .. } = union;
        set.unlisted = match () {
            () if self.lost => Unlisted::Unknown,
            () if self.words.values().any(|word| word.expected) => {
                Unlisted::Kept(self.listed.difference(&listed).cloned().collect())
            }
            () => Unlisted::Missing,
        };
        self.listed = listed;
        self.news = false;
        Found { set, shared: self.words.values().find_map(|word| word.shared) }
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

    fn add_failure(&mut self, word: &Word) {
        if let Some(error) = &word.error {
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
