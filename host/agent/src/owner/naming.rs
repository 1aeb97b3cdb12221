//! Finds the Instance of a new device, or makes it (rule 22).

use std::collections::BTreeMap;
use std::sync::Arc;

use akri_cluster::{ClusterError, CreateOutcome};
use akri_model::claim::{Claims, Entry};
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::{Instance, Online, Version};
use akri_model::names::{HashInput, HashLength, Identity, Key, cdi_name, instance_name, slot_name};
use akri_model::slots::{OtherUsage, free_usage};

use super::Context;

/// The reason why a device has no Instance.
#[derive(Debug, thiserror::Error)]
pub(super) enum NamingError {
    /// The API's word is final only when it has one.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It can't be remembered.
    #[error("{0}")]
    Journal(String),
    /// Configuration name and hash are too long for a resource.
    #[error("'{configuration}-{hash}' is too long for a resource name; give the Configuration a shorter name")]
    TooLong { configuration: String, hash: String },
    /// The next round tries again.
    #[error("its Instance {0} of an earlier Configuration of the name has not gone yet")]
    Outgoing(Key),
    /// All three lengths belong to other devices.
    #[error("every name for it belongs to another device")]
    AllTaken,
}

/// A device that needs an Instance.
pub(super) struct PendingInstance {
    pub(super) configuration: Arc<Configuration>,
    pub(super) device: Device,
    pub(super) identity: Identity,
    pub(super) shared: bool,
    /// Claims of containers that still use the device (rule 43).
    pub(super) claims: Claims,
    /// The usage by other nodes when it last had an Instance (rule 103).
    pub(super) others: OtherUsage,
}

impl PendingInstance {
    /// Returns `deviceUsage` of its new Instance: what is in use stays so.
    fn usage(&self, name: &str) -> BTreeMap<String, String> {
        let own = self.claims.iter().map(|(slot, claim)| (slot, &claim.usage));
        let used = own.chain(&self.others.slots).filter(|_| self.shared);
        let mut usage = free_usage(name, self.configuration.capacity);
        usage.extend(used.map(|(slot, usage)| (slot_name(name, *slot), usage.to_string())));
        usage
    }
}

/// A device with its Instance: what the journal now says, and the Instance as it was found.
pub(super) struct BoundInstance {
    pub(super) entry: Entry,
    pub(super) instance: Instance,
}

/// Takes the Instance that already stands for the device, else the shortest name that is free. What comes of it is in the
/// journal before anybody uses it.
pub(super) async fn name(context: &Context, pending: &PendingInstance) -> Result<BoundInstance, NamingError> {
    let configuration = &pending.configuration.key;
    let instance = match context.cluster.find(configuration, &pending.identity).await? {
        Some(known) if outgoing(&known, pending) => return Err(NamingError::Outgoing(known.key)),
        Some(known) => prefer_longer_name(context, pending, known).await?,
        None => create(context, pending).await?,
    };
    let entry = entry(pending, &instance);
    context.journal.put(entry.clone()).await.map_err(NamingError::Journal)?;
    Ok(BoundInstance { entry, instance })
}

/// Returns the Instance that other nodes have for a shared device under a longer name, if there is one: the shorter name was another
/// device's then, and this node has taken it since. Of a local device this node would know.
async fn prefer_longer_name(
    context: &Context,
    pending: &PendingInstance,
    instance: Instance,
) -> Result<Instance, NamingError> {
    let input = HashInput::new(&pending.device.id, pending.shared, &context.node);
    let name = |length| instance_name(&pending.configuration.key.name, &input.hash(length));
    let names = HashLength::ALL.into_iter().filter_map(name).filter(|name| name.len() > instance.key.name.len());
    let keys: Vec<Key> =
        names.filter(|_| pending.shared).map(|name| Key::new(&*instance.key.namespace, name)).collect();
    let found = context.cluster.find_longer(&keys).await?;
    let stands_for = |other: &Instance| other.identity.as_ref() == Some(&pending.identity) && !outgoing(other, pending);
    let Some(other) = found.into_iter().find(stands_for) else { return Ok(instance) };
    context.cluster.delete(&instance.key, &instance.uid, false).await?;
    Ok(other)
}

async fn create(context: &Context, pending: &PendingInstance) -> Result<Instance, NamingError> {
    let input = HashInput::new(&pending.device.id, pending.shared, &context.node);
    for length in HashLength::ALL {
        let hash = input.hash(length);
        let wanted = wanted(context, pending, hash)?;
        match context.cluster.create(&wanted).await? {
            CreateOutcome::New(instance) => return prefer_longer_name(context, pending, instance).await,
            CreateOutcome::Taken(other) if outgoing(&other, pending) => return Err(NamingError::Outgoing(other.key)),
            // Its nodes may be about to give it up for a longer name.
            CreateOutcome::Taken(other) if other.identity.as_ref() == Some(&pending.identity) => {
                return prefer_longer_name(context, pending, other).await;
            }
            // One without an identity was made by upstream Akri, for this very name.
            CreateOutcome::Taken(other) if other.identity.is_none() => return Ok(other),
            CreateOutcome::Taken(_) => {}
        }
    }
    Err(NamingError::AllTaken)
}

/// Returns whether an Instance belongs to an earlier Configuration of the name, and is deleted with it (rule 26).
fn outgoing(other: &Instance, pending: &PendingInstance) -> bool {
    let of_the_name = other.configuration == pending.configuration.key.name;
    of_the_name && !other.configuration_uid.is_empty() && other.configuration_uid != pending.configuration.uid
}

fn wanted(context: &Context, pending: &PendingInstance, hash: String) -> Result<Instance, NamingError> {
    let configuration = &pending.configuration;
    let Some(name) = instance_name(&configuration.key.name, &hash) else {
        return Err(NamingError::TooLong { configuration: configuration.key.name.clone(), hash });
    };
    Ok(Instance {
        cdi_name: cdi_name(&configuration.key.name, &hash),
        device_usage: pending.usage(&name),
        key: Key::new(configuration.key.namespace.clone(), name),
        uid: String::new(),
        version: Version::default(),
        identity: Some(pending.identity.clone()),
        configuration: configuration.key.name.clone(),
        configuration_uid: configuration.uid.clone(),
        capacity: configuration.capacity,
        properties: configuration.broker_view(&pending.device.properties),
        shared: pending.shared,
        nodes: vec![context.node.clone()],
        online: Online::True,
    })
}

/// Returns the journal entry of a new Instance; claims of this node are adopted when the Instance is taken into
/// service.
fn entry(pending: &PendingInstance, instance: &Instance) -> Entry {
    let configuration = &pending.configuration;
    Entry {
        key: instance.key.clone(),
        uid: instance.uid.clone(),
        identity: pending.identity.clone(),
        configuration: configuration.key.name.clone(),
        configuration_uid: configuration.uid.clone(),
        shared: pending.shared,
        capacity: configuration.capacity,
        device: pending.device.clone(),
        online: Online::True,
        withheld: false,
        claims: pending.claims.clone(),
        others: pending.others.clone(),
    }
}
