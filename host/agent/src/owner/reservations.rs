//! Reservations: slots that other nodes used of devices whose Instances were deleted with their Configuration. If it is
//! created again at once, as by `kubectl replace --force`, those slots are given to no one else until those nodes have claimed
//! them again (rule 43).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use akri_model::names::{Identity, Key, Usage};
use tokio::time::Instant;

/// The time that slots of a new Instance are kept for their former users, who claim them as soon as a round has found
/// the device.
pub(super) const RESERVED: Duration = Duration::from_secs(60);

/// The time that the usage of other nodes is kept for a device without an Instance.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum number of such devices.
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
        let until = Instant::now() + KEPT_FOR;
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
