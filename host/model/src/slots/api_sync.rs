//! The API server's view of the slots, and the steps that bring it closer to the state that this node wants
//! (rule 40, rule 41, rule 42).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::{Authority, Claim, SlotState, SlotTable};
use crate::instance::Version;
use crate::names::Usage;

/// The API server's view of an Instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum ApiView {
    /// Nothing was read since the agent started.
    #[default]
    Unknown,
    /// There is no such Instance.
    Absent,
    /// It exists.
    Present(PublishedSlots),
}

/// `deviceUsage` of an Instance, as of one of its versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PublishedSlots {
    /// The Instance's UID.
    pub uid: String,
    /// Its version.
    pub version: Version,
    /// Counts the lists of all Instances that are true, whatever the versions in them: a backup may have been restored (rule 106).
    pub history: u64,
    /// Every slot that has a key.
    pub slots: BTreeMap<u32, Usage>,
}

/// A change of slots of a shared Instance: a compare-and-swap of all of them or none (rule 10).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotPatch {
    /// The UID of the Instance it is for.
    pub uid: String,
    /// The version that it is based on, if it must not take effect on a later one.
    pub version: Option<Version>,
    /// The expected and the new usage of each slot; `None` expects that there is no key.
    pub changes: BTreeMap<u32, (Option<Usage>, Usage)>,
}

/// A step that brings the API server closer to what this node wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SyncStep {
    /// Make the Instance again: it was deleted, and its device is there (rule 27, rule 103).
    Create,
    /// Change slots.
    Patch(SlotPatch),
    /// Read the Instance: what is known of it may be older than a change that got no answer.
    Read,
}

/// An effect of a new view of the API server on a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SlotEvent {
    /// The API server shows a claim of this node that this node does not know: it may be in use.
    Adopted(u32),
    /// A container here uses the slot, and the API server shows that it belongs to somebody else.
    Overcommitted(u32, Usage),
}

impl SlotTable {
    /// Applies a view of the API server. A view that is older than the newest one is ignored. `claim` makes the claim for a
    /// slot that the API server shows as this node's although this node does not know it.
    pub fn observe(&mut self, view: ApiView, mut claim: impl FnMut(Usage) -> Claim) -> Vec<SlotEvent> {
        if self.is_outdated(&view) {
            return Vec::new();
        }
        if let ApiView::Present(published) = &view {
            self.newest = Some((published.history, published.version.clone()));
        }
        let before = std::mem::replace(&mut self.api, view);
        match self.api {
            ApiView::Unknown => return Vec::new(),
            _ if self.authority == Authority::Journal => return Vec::new(),
            ApiView::Absent => {
                // Nothing is left to give back. Slots of other nodes stay known, for the Instance that takes its place.
                self.slots.retain(|_, state| !matches!(state, SlotState::Releasing(_)));
                return Vec::new();
            }
            ApiView::Present(_) => {}
        }
        self.carry_others();
        let mut events = Vec::new();
        for slot in self.all_slots() {
            let shown = shown_in(&self.api, slot);
            let was = self.slots.remove(&slot).unwrap_or_default();
            let is_new = matches!(before, ApiView::Unknown) || shown != shown_in(&before, slot);
            let next = self.next(was, shown.clone(), &mut claim, slot, &mut events);
            if let SlotState::Held(held) = &next
                && shown != held.usage
                && !self.is_own(&shown)
                && !shown.is_free()
                && is_new
            {
                events.push(SlotEvent::Overcommitted(slot, shown));
            }
            if next != SlotState::Free {
                self.slots.insert(slot, next);
            }
        }
        let Self { api, carried, .. } = self;
        carried.retain(|slot| shown_in(api, *slot).is_free());
        if self.authority == Authority::DamagedJournal {
            self.authority = Authority::Journal;
            self.slots.retain(|_, state| !matches!(state, SlotState::Elsewhere(_)));
        }
        events
    }

    /// Notes the usage of others that an Instance has to show which takes the place of another one (rule 103).
    fn carry_others(&mut self) {
        let ApiView::Present(published) = &self.api else { return };
        let uid = published.uid.clone();
        if self.uid.as_ref().is_some_and(|of| *of != uid) {
            self.carried = self.others().slots.into_keys().collect();
        }
        self.uid = Some(uid);
    }

    /// Returns whether the last view is of that version of the Instance of that UID.
    pub fn has_observed(&self, uid: &str, version: &Version) -> bool {
        let ApiView::Present(known) = &self.api else { return false };
        !version.0.is_empty() && (known.uid.as_str(), &known.version) == (uid, version)
    }

    /// Returns whether a view is older than the newest one, be it of an earlier Instance of the name, or the answer to a request of
    /// before a deletion. Versions grow over all objects between two lists.
    pub fn is_outdated(&self, view: &ApiView) -> bool {
        let (Some((history, version)), ApiView::Present(new)) = (&self.newest, view) else { return false };
        match new.history.cmp(history) {
            Ordering::Less => true,
            Ordering::Equal => new.version.is_older_than(version),
            Ordering::Greater => false,
        }
    }

    fn all_slots(&self) -> BTreeSet<u32> {
        let shown = match &self.api {
            ApiView::Present(published) => published.slots.keys().copied().collect(),
            _ => BTreeSet::new(),
        };
        shown.into_iter().chain(self.slots.keys().copied()).collect()
    }

    /// The state of a slot that the API server shows like this.
    fn next(
        &self,
        was: SlotState,
        shown: Usage,
        claim: &mut impl FnMut(Usage) -> Claim,
        slot: u32,
        events: &mut Vec<SlotEvent>,
    ) -> SlotState {
        let is_own = self.is_own(&shown);
        match was {
            SlotState::Held(claim) => SlotState::Held(claim),
            SlotState::Claiming(claim) if shown == claim.usage => SlotState::Held(claim),
            SlotState::Claiming(claim) if shown.is_free() || is_own => SlotState::Claiming(claim),
            SlotState::Releasing(_) if is_own => SlotState::Releasing(shown),
            SlotState::Elsewhere(usage) if shown.is_free() && self.carried.contains(&slot) => {
                SlotState::Elsewhere(usage)
            }
            SlotState::Free | SlotState::Elsewhere(_) if is_own => {
                events.push(SlotEvent::Adopted(slot));
                SlotState::Held(claim(shown))
            }
            _ if shown.is_free() => SlotState::Free,
            _ => SlotState::Elsewhere(shown),
        }
    }

    /// Returns whether this node claimed a slot through a device plugin, so that observing its containers ends the claim.
    fn is_own(&self, usage: &Usage) -> bool {
        !usage.ends_by_call() && usage.node() == Some(&*self.node)
    }

    /// The next step, if the Instance does not exist or the API server does not show what this node wants of a shared one. It is computed anew after
    /// each view, and repeated until there is none. Slots are given back only if `may_release`: the journal has that, so that an
    /// agent that starts again does not take them for held (rule 41).
    pub fn next_step(&self, may_release: bool) -> Option<SyncStep> {
        match &self.api {
            ApiView::Absent => Some(SyncStep::Create),
            _ if self.authority == Authority::Journal => None,
            ApiView::Unknown => Some(SyncStep::Read),
            ApiView::Present(published) => {
                let is_unconfirmed = |state: &SlotState| match state {
                    SlotState::Claiming(_) => true,
                    SlotState::Releasing(_) => may_release,
                    _ => false,
                };
                let read = self.slots.values().any(is_unconfirmed).then_some(SyncStep::Read);
                self.next_patch(published, may_release).map(SyncStep::Patch).or(read)
            }
        }
    }

    /// Claims go before releases, since an Allocate waits for them; with them goes what others used before the Instance was made
    /// again.
    fn next_patch(&self, published: &PublishedSlots, may_release: bool) -> Option<SlotPatch> {
        let claims = self.claims().map(|(slot, claim)| (slot, claim.usage.clone()));
        let carried = self.carried.iter().filter_map(|slot| match self.state(*slot) {
            SlotState::Elsewhere(usage) => Some((*slot, usage.clone())),
            _ => None,
        });
        let releases = self.taken().filter_map(|(slot, state)| match state {
            SlotState::Releasing(_) if may_release => Some((slot, Usage::Free)),
            _ => None,
        });
        self.patch(published, claims.chain(carried)).or_else(|| self.patch(published, releases))
    }

    /// Changes the slots that are free or this node's, and not as wanted.
    fn patch(&self, published: &PublishedSlots, wanted: impl Iterator<Item = (u32, Usage)>) -> Option<SlotPatch> {
        let changes: BTreeMap<u32, (Option<Usage>, Usage)> = wanted
            .filter_map(|(slot, wanted)| {
                let shown = published.slots.get(&slot);
                let changeable = shown.is_none_or(|shown| shown.is_free() || self.is_own(shown));
                let differs = *shown.unwrap_or(&Usage::Free) != wanted;
                (changeable && differs).then(|| (slot, (shown.cloned(), wanted)))
            })
            .collect();
        let from_free = changes.values().all(|(from, _)| from.as_ref().is_some_and(Usage::is_free));
        let version = (!from_free).then(|| published.version.clone());
        (!changes.is_empty()).then(|| SlotPatch { uid: published.uid.clone(), version, changes })
    }
}

/// Returns the usage of a slot in the API server's view. A missing key means that it is free.
fn shown_in(api: &ApiView, slot: u32) -> Usage {
    match api {
        ApiView::Present(published) => published.slots.get(&slot).cloned().unwrap_or_default(),
        ApiView::Unknown | ApiView::Absent => Usage::Free,
    }
}
