//! Instances get the names that their Configuration wants, once nobody uses them under the old ones (rule 125).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_model::claim_machine::ManagedInstance;
use akri_model::device::{Device, DeviceSet};
use akri_model::instance_names::{NameProblem, WantedNames, is_misnamed, wanted};
use akri_model::names::{HashInput, Identity, has_usual_name};
use akri_model::slots::ApiView;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::OwnerState;
use super::naming::{NamingError, make_way};

/// Pause until Instances that were used are looked at again.
const AGAIN: Duration = Duration::from_secs(5);

/// The time after which a name that another had is tried again.
const RETRY: Duration = Duration::from_secs(300);

/// Maximum number of problems in the status.
const SHOWN: usize = 10;

/// The identity of a device, and whether its Instance can be made anew, with the name that was wanted then.
pub(super) type WayResult = (Identity, Option<String>, Result<bool, NamingError>);

/// The names that are wanted, and what is done for them.
#[derive(Default)]
pub(super) struct Names {
    wanted: WantedNames,
    /// Names that others had when this node wanted them, since when, and the devices for which it did.
    pub(super) taken: BTreeMap<Identity, (String, Instant)>,
    /// The UIDs of Instances that were given up for another name.
    pub(super) left: BTreeMap<Identity, String>,
    /// Instances that were deleted, and are named anew.
    superseded: BTreeSet<Identity>,
    /// Devices for whose names way is being made.
    clearing: BTreeSet<Identity>,
    pub(super) ways: JoinSet<WayResult>,
}

impl Names {
    fn is_taken(&self, identity: &Identity, name: &str) -> bool {
        self.taken.get(identity).is_some_and(|(taken, _)| taken == name)
    }

    /// Returns the devices for which a name is tried again that another had.
    fn due(&mut self) -> Vec<Identity> {
        let wanted = &self.wanted;
        self.taken.retain(|identity, _| wanted.contains_key(identity));
        let is_due = |(_, (_, since)): &(&Identity, &mut (String, Instant))| since.elapsed() >= RETRY;
        let due = self.taken.iter_mut().filter(is_due).map(|(identity, (_, since))| {
            *since = Instant::now();
            identity.clone()
        });
        due.collect()
    }
}

impl OwnerState {
    /// Works out the names for a set of devices, and starts to rename the Instances that nobody uses.
    pub(super) async fn update_names(&mut self, set: &DeviceSet, shared: bool) {
        let configuration = &self.configuration;
        let mut names = self.machine.instances().values().map(|instance| &instance.entry().key.name);
        let is_named =
            configuration.instance_name.is_some() || !names.all(|name| has_usual_name(&configuration.key.name, name));
        self.names.wanted = if is_named { self.wanted_names(set, shared) } else { WantedNames::new() };
        self.drop_superseded().await;
        let misnamed: BTreeSet<Identity> =
            self.names.wanted.keys().filter(|identity| self.is_misnamed(identity)).cloned().collect();
        if !misnamed.is_empty() {
            self.last.again.get_or_insert(Instant::now() + AGAIN);
        }
        misnamed.into_iter().chain(self.names.due()).for_each(|identity| self.clear_way(&identity));
        self.health.status.names = self.name_problems();
    }

    /// Forgets Instances that were deleted for others. Returns whether there were any.
    pub(super) async fn drop_superseded(&mut self) -> bool {
        let superseded = std::mem::take(&mut self.names.superseded).into_iter();
        let deleted: Vec<Identity> = superseded.filter(|identity| self.is_deleted(identity)).collect();
        let is_any = !deleted.is_empty();
        self.remove(deleted).await;
        is_any
    }

    fn wanted_names(&self, set: &DeviceSet, shared: bool) -> WantedNames {
        let identity = |device: &Device| HashInput::new(&device.id, shared, &self.context.node).identity();
        let current = |identity: &Identity| Some(self.machine.get(identity)?.entry().key.name.as_str());
        let devices = set.devices.iter().map(|device| (identity(device), device));
        wanted(&self.configuration, devices, current)
    }

    /// Returns the name that is wanted for a device, unless another has it.
    pub(super) fn wanted_name(&self, identity: &Identity) -> Option<String> {
        let name = self.names.wanted.get(identity)?.as_ref().ok()?;
        (!self.names.is_taken(identity, name)).then(|| name.clone())
    }

    fn is_misnamed(&self, identity: &Identity) -> bool {
        let (Some(instance), Some(wanted)) = (self.machine.get(identity), self.names.wanted.get(identity)) else {
            return false;
        };
        let is_taken = wanted.as_ref().is_ok_and(|name| self.names.is_taken(identity, name));
        !is_taken && is_misnamed(&self.configuration, &instance.entry().key.name, wanted)
    }

    /// Returns whether a shared Instance was deleted that this node does not use. What others use is carried over (rule 103).
    fn is_deleted(&self, identity: &Identity) -> bool {
        let is_deleted = |instance: &ManagedInstance| {
            instance.entry().shared && *instance.slots().api() == ApiView::Absent && !instance.is_used()
        };
        self.machine.get(identity).is_some_and(is_deleted)
    }

    /// Returns whether an Instance is not made again under its name: it was deleted for another one. A node that leaves discovery to
    /// others does not know the names that are wanted, and takes what those make.
    pub(super) fn is_superseded(&mut self, identity: &Identity) -> bool {
        let is_others = !self.configuration.role.discovers();
        let is_free = self.machine.get(identity).is_some_and(is_unused);
        let is_superseded = is_free && self.is_deleted(identity) && (is_others || self.is_misnamed(identity));
        if is_superseded {
            self.supersede(identity);
        }
        is_superseded
    }

    /// Names a device anew whose Instance can't be made again, unless somebody uses it.
    pub(super) fn supersede(&mut self, identity: &Identity) {
        if self.is_deleted(identity) {
            self.names.superseded.insert(identity.clone());
            self.last.again = Some(Instant::now());
        }
    }

    fn clear_way(&mut self, identity: &Identity) {
        let Some(instance) = self.machine.get(identity).filter(|instance| is_unused(instance)) else { return };
        let (context, configuration) = (Arc::clone(&self.context), Arc::clone(&self.configuration));
        let (entry, name) =
            (instance.entry().clone(), self.names.wanted.get(identity).and_then(|name| name.clone().ok()));
        if name.as_ref() == Some(&entry.key.name) {
            self.names.taken.remove(identity); // another node has made it under that name
            return;
        }
        if !self.names.clearing.insert(identity.clone()) {
            return;
        }
        self.names.ways.spawn(async move {
            let result = make_way(&context, &configuration, &entry, name.as_deref()).await;
            (entry.identity, name, result)
        });
    }

    /// The way for the name of a device is clear, or not.
    pub(super) async fn way_cleared(&mut self, result: Option<WayResult>) {
        let Some((identity, name, result)) = result else { return };
        self.names.clearing.remove(&identity);
        if result.is_ok() {
            self.names.taken.remove(&identity);
        }
        let Some(instance) = self.machine.get(&identity) else { return };
        let key = &instance.entry().key;
        match result {
            Ok(true) if is_unused(instance) && self.is_misnamed(&identity) && self.wanted_name(&identity) == name => {
                info!(instance = %key, name, "nobody uses it; it gets another name");
                self.names.left.insert(identity.clone(), instance.entry().uid.clone());
                self.remove(vec![identity]).await;
                self.find_again().await;
            }
            Ok(_) => {} // the next look tries again
            Err(NamingError::Taken(name)) => {
                warn!(instance = %key, name, "keeps its name: another has the one that is wanted");
                self.names.taken.insert(identity, (name, Instant::now()));
                self.health.status.names = self.name_problems();
            }
            Err(error) => warn!(instance = %key, "can't be renamed yet: {error}"),
        }
    }

    /// A device has an Instance: notes whether another had the name that was wanted.
    pub(super) fn note_name(&mut self, identity: &Identity) {
        self.names.left.remove(identity);
        if let Some(name) = self.wanted_name(identity).filter(|_| self.is_misnamed(identity)) {
            self.names.taken.insert(identity.clone(), (name, Instant::now()));
        }
        self.health.status.names = self.name_problems();
    }

    /// Returns what is to be known of names: who has another one than is wanted, and why.
    fn name_problems(&self) -> Vec<String> {
        let problem = |(identity, wanted): (&Identity, &Result<String, NameProblem>)| {
            let entry = self.machine.get(identity)?.entry();
            let (id, now) = (&entry.device.id, &entry.key.name);
            match wanted {
                Err(NameProblem::NoTemplate) | Ok(_) if self.is_misnamed(identity) => {
                    let next = wanted.as_ref().map_or("one with a hash", String::as_str);
                    Some(format!("'{now}' keeps its name while containers use it; then it gets {next}"))
                }
                Ok(name) if name == now => None,
                Ok(name) => {
                    Some(format!("device '{id}' is {now}: another Instance or Configuration has the name '{name}'"))
                }
                Err(NameProblem::NoTemplate) => None,
                Err(problem) => Some(format!("device '{id}' is {now}: {problem}")),
            }
        };
        self.names.wanted.iter().filter_map(problem).take(SHOWN).collect()
    }
}

/// Returns whether neither this node nor another uses a slot.
fn is_unused(instance: &ManagedInstance) -> bool {
    instance.slots().taken().next().is_none()
}
