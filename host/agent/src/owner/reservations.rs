//! Slots that other nodes had of devices whose Instances are gone with their Configuration. Somebody may make it again at once,
//! as `kubectl replace --force` does, and until those nodes have claimed their slots again, nobody else may have them (rule 43).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use akri_model::names::{Identity, Key, Usage};
use tokio::time::Instant;

/// How long slots of a new Instance are kept for their users, who claim them as soon as a round has found the device.
pub(super) const RESERVED: Duration = Duration::from_secs(60);

/// How long it is known what others had of a device without an Instance, and of how many.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
const DEVICES: usize = 4096;

/// The slots that other nodes had, for all Configurations of this agent.
#[derive(Debug, Default)]
pub struct Reservations(Mutex<BTreeMap<(Key, Identity), OfOthers>>);

#[derive(Debug)]
struct OfOthers {
    slots: BTreeMap<u32, Usage>,
    until: Instant,
}

impl Reservations {
    /// Keeps the slots that others have of a device whose Instance goes.
    pub(super) fn keep(&self, configuration: &Key, identity: &Identity, slots: BTreeMap<u32, Usage>) {
        let until = Instant::now() + REMEMBERED;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, of_others| of_others.until > Instant::now());
        if !slots.is_empty() && kept.len() < DEVICES {
            kept.insert((configuration.clone(), identity.clone()), OfOthers { slots, until });
        }
    }

    /// Returns the slots that others had of a device, for its new Instance.
    pub(super) fn take(&self, configuration: &Key, identity: &Identity) -> BTreeMap<u32, Usage> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.remove(&(configuration.clone(), identity.clone()));
        found.filter(|of_others| of_others.until > Instant::now()).map(|of_others| of_others.slots).unwrap_or_default()
    }
}
