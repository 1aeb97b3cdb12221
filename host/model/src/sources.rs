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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::Device;

    const C: Source = Source::Component;

    fn remote(path: &str) -> Source {
        Source::Remote(Address::Unix(path.to_owned()))
    }

    fn set(ids: &[&str]) -> DeviceSet {
        let device = |id: &&str| Device { id: (*id).to_owned(), ..Device::default() };
        DeviceSet { devices: ids.iter().map(device).collect(), ..DeviceSet::default() }
    }

    fn expecting(sources: &[&Source]) -> Sources {
        let mut all = Sources::default();
        sources.iter().for_each(|source| all.appear((*source).clone(), None, true));
        all
    }

    fn unavailable(what: &str) -> RoundError {
        RoundError::Unavailable(what.to_owned())
    }

    fn union(sources: &mut Sources) -> DeviceSet {
        match sources.said(10) {
            Said::Found(found) => found.set,
            other => panic!("{other:?}"),
        }
    }

    /// Ids of the union, and what it means not to be there.
    fn found(sources: &mut Sources) -> (Vec<String>, Unlisted) {
        let set = union(sources);
        (set.devices.into_iter().map(|device| device.id).collect(), set.unlisted)
    }

    fn kept(missing: &[&str]) -> Unlisted {
        Unlisted::Kept(ids(missing).into_iter().collect())
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn of_a_device_that_two_report_the_first_view_counts() {
        let (a, b) = (remote("/a"), remote("/b"));
        let mut sources = expecting(&[&b, &a, &C]);
        for (source, value) in [(&b, "b"), (&a, "a"), (&C, "c")] {
            let mut set = set(&["d", value]);
            set.devices[0].properties.insert("FROM".to_owned(), value.to_owned());
            sources.found(source, set);
        }
        let set = union(&mut sources);
        assert_eq!(set.devices[0].properties["FROM"], "c", "the component, then by address");
        assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["d", "c", "a", "b"]);
    }

    #[test]
    fn nothing_is_missing_before_all_who_may_know_it_have_spoken() {
        let a = remote("/a");
        let mut sources = expecting(&[&C, &a]);
        assert_eq!(sources.said(10), Said::Nothing);
        sources.found(&C, set(&["c1", "c2"]));
        assert_eq!(found(&mut sources), (ids(&["c1", "c2"]), kept(&[])));
        sources.found(&C, set(&["c1"]));
        assert_eq!(found(&mut sources), (ids(&["c1"]), kept(&["c2"])), "it spoke of this one itself");
        assert_eq!(found(&mut sources).1, kept(&[]), "told once");
        sources.failed(&a, unavailable("refused"));
        assert_eq!(found(&mut sources).1, kept(&[]), "a failure is no word");
        sources.found(&a, set(&[]));
        assert_eq!(found(&mut sources), (ids(&["c1"]), Unlisted::Missing));
    }

    #[test]
    fn who_comes_later_only_adds() {
        let a = remote("/a");
        let mut sources = expecting(&[&C]);
        sources.found(&C, set(&["c"]));
        sources.appear(a.clone(), Some(false), false);
        assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Missing), "its silence keeps nobody");
        sources.found(&a, set(&["a"]));
        assert_eq!(found(&mut sources).0, ids(&["c", "a"]));
    }

    #[test]
    fn who_fails_keeps_its_devices_and_is_noted() {
        let a = remote("/a");
        let mut sources = expecting(&[&C, &a]);
        sources.found(&C, set(&["c"]));
        sources.found(&a, set(&["a"]));
        sources.failed(&a, unavailable("unix:/a: connection refused"));
        let both = union(&mut sources);
        assert_eq!((both.devices.len(), &both.unlisted), (2, &Unlisted::Missing));
        assert_eq!(both.notes[0].reason, "Unavailable");
        assert_eq!(both.notes[0].message, "unavailable: unix:/a: connection refused; its devices stay as they are");
        sources.recovered(&a);
        let both = union(&mut sources);
        assert_eq!((both.devices.len(), both.notes.len()), (2, 0));
    }

    #[test]
    fn nobody_knows_about_the_devices_of_who_has_gone_until_another_speaks() {
        let (a, b) = (remote("/a"), remote("/b"));
        let mut sources = expecting(&[&a, &b]);
        sources.absent(&C);
        sources.found(&a, set(&["a"]));
        sources.found(&b, set(&["b"]));
        assert_eq!(found(&mut sources).0, ids(&["a", "b"]));
        sources.vanish(&b);
        assert_eq!(found(&mut sources), (ids(&["a"]), Unlisted::Unknown));
        sources.found(&a, set(&["a"]));
        assert_eq!(found(&mut sources), (ids(&["a"]), Unlisted::Missing));
        sources.vanish(&a);
        assert_eq!((sources.said(10), sources.is_lost()), (Said::Nobody, true));
        sources.appear(b.clone(), None, false);
        assert_eq!((sources.said(10), sources.is_lost()), (Said::Nothing, true), "being there is no word");
        sources.found(&b, set(&[]));
        assert_eq!(found(&mut sources), (ids(&[]), Unlisted::Missing));
    }

    #[test]
    fn who_was_never_there_takes_nothing_along() {
        let mut sources = expecting(&[&C]);
        sources.absent(&C);
        assert_eq!((sources.said(10), sources.is_lost()), (Said::Nobody, false));
    }

    #[test]
    fn who_is_silent_for_long_no_longer_answers_for_its_devices() {
        let a = remote("/a");
        let mut sources = expecting(&[&C, &a]);
        sources.found(&C, set(&["c"]));
        sources.silent(&a);
        assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Unknown));
        sources.found(&C, set(&["c"]));
        assert_eq!(found(&mut sources), (ids(&["c"]), Unlisted::Missing));
        sources.silent(&a);
        assert!(!sources.is_lost(), "it had none");
    }

    #[test]
    fn without_any_device_the_first_failure_counts() {
        let (a, b) = (remote("/a"), remote("/b"));
        let mut sources = expecting(&[&a, &b]);
        sources.failed(&b, unavailable("b"));
        assert_eq!(sources.said(10), Said::Failed(unavailable("b"), None));
        sources.failed(&a, unavailable("a"));
        assert_eq!(sources.said(10), Said::Failed(unavailable("a"), None));
    }

    #[test]
    fn what_was_found_just_before_a_failure_is_told_once() {
        let mut sources = expecting(&[&C]);
        sources.found(&C, set(&["c"]));
        sources.failed(&C, unavailable("c"));
        let Said::Failed(_, Some(found)) = sources.said(10) else { panic!() };
        assert_eq!(found.set.devices.len(), 1);
        assert_eq!(sources.said(10), Said::Failed(unavailable("c"), None));
    }

    #[test]
    fn a_component_that_disagrees_about_shared_is_not_used() {
        let a = remote("/a");
        let mut sources = Sources::default();
        sources.appear(C, Some(true), true);
        sources.appear(a.clone(), Some(false), true);
        sources.found(&C, set(&["c"]));
        sources.found(&a, set(&["a"]));
        let Said::Found(Found { set, shared }) = sources.said(10) else { panic!() };
        assert_eq!((set.devices.len(), shared), (1, Some(false)));
        let told = "the component says shared=true, but unix:/a serves the handler as shared=false; it is not used";
        assert!(set.notes[0].message.contains(told), "{:?}", set.notes);
    }

    #[test]
    fn what_the_first_withholds_the_second_does_not_hand_out() {
        let a = remote("/a");
        let mut sources = expecting(&[&C, &a]);
        sources.found(&C, DeviceSet { withheld: ["d".to_owned()].into(), ..DeviceSet::default() });
        sources.found(&a, set(&["d"]));
        let set = union(&mut sources);
        assert_eq!((set.devices.len(), set.withheld.len()), (0, 1));
    }

    #[test]
    fn notes_are_united_and_bounded() {
        let a = remote("/a");
        let mut sources = expecting(&[&C, &a]);
        let note = || Note { origin: String::new(), reason: "Dead".to_owned(), message: "no answer".to_owned() };
        let noted = || DeviceSet { notes: vec![note(); 8], notes_dropped: 1, ..DeviceSet::default() };
        sources.found(&C, noted());
        sources.found(&a, noted());
        let set = union(&mut sources);
        assert_eq!((set.notes.len(), set.notes_dropped), (10, 8));
    }

    proptest! {
        /// Whatever happens to sources that have all spoken: a device is in the union as long as one of them lists it.
        #[test]
        fn a_device_is_there_while_anyone_lists_it(
            words in prop::collection::vec((0..4_usize, prop::option::of(prop::collection::btree_set("[a-d]", 0..4))), 1..20)
        ) {
            let all = [C, remote("/a"), remote("/b"), remote("/c")];
            let mut sources = expecting(&all.iter().collect::<Vec<_>>());
            let mut last: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
            for (n, word) in words {
                match word {
                    Some(listed) => {
                        sources.found(&all[n], set(&listed.iter().map(String::as_str).collect::<Vec<_>>()));
                        last.insert(n, listed);
                    }
                    None => sources.failed(&all[n], unavailable("x")),
                }
                let expected: BTreeSet<String> = last.values().flatten().cloned().collect();
                if let Said::Found(Found { set, .. }) = sources.said(10) {
                    let ids: BTreeSet<String> = set.devices.iter().map(|device| device.id.clone()).collect();
                    prop_assert_eq!(ids.len(), set.devices.len());
                    prop_assert_eq!(ids, expected);
                    prop_assert_eq!(set.unlisted == Unlisted::Missing, last.len() == all.len());
                }
            }
        }
    }
}
