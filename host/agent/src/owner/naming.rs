//! Finds the Instance of a new device, or makes it (rule 22, rule 125).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_cluster::{Cluster, ClusterError, ClusterResult, CreateOutcome};
use akri_model::claim::{Claims, Entry};
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::{Instance, Online, Version};
use akri_model::names::{
    HashInput, HashLength, Identity, Key, cdi_name, has_usual_name, instance_name, short_name, slot_name,
};
use akri_model::slots::{OtherUsage, free_usage};

use super::Context;
use super::api_sync::entry_without_claims;

/// The age of a look at others before a creation: what it lacks is seen by the one after it.
const RECENT: Duration = Duration::from_secs(1);

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
    /// The name that the Configuration wants is another's.
    #[error("another Instance or Configuration has the name '{0}'")]
    Taken(String),
    /// Other nodes have just named it, too.
    #[error("'{0}' stands for it, too; one of the two goes")]
    TwoNames(Key),
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
    /// The name that the Configuration wants, if it is not a hash.
    pub(super) name: Option<String>,
    /// The UID of the Instance that is given up for that name.
    pub(super) left: Option<String>,
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
    /// Set if this node has made it.
    pub(super) is_new: bool,
}

/// Takes the Instance that already stands for the device, else the wanted name or the shortest hash that is free. What comes of it is
/// in the journal before anybody uses it.
pub(super) async fn name(context: &Context, pending: &PendingInstance) -> Result<BoundInstance, NamingError> {
    let configuration = &pending.configuration.key;
    let known = context.cluster.find(configuration, &pending.identity).await?;
    let (instance, is_new) = match known.filter(|known| pending.left.as_ref() != Some(&known.uid)) {
        Some(known) if outgoing(&known, pending) => return Err(NamingError::Outgoing(known.key)),
        Some(known) => (known, false),
        None => create(context, pending).await?,
    };
    let entry = entry(pending, &instance);
    context.journal.put(entry.clone()).await.map_err(NamingError::Journal)?;
    Ok(BoundInstance { entry, instance, is_new })
}

/// Returns the Instance, and whether this node has made it.
async fn create(context: &Context, pending: &PendingInstance) -> Result<(Instance, bool), NamingError> {
    if let Some(other) = other(context, pending, None).await? {
        return Ok((other, false));
    }
    for name in candidates(context, pending) {
        let wanted = wanted(context, pending, name?);
        match context.cluster.create(&wanted).await? {
            CreateOutcome::New(instance) => {
                // Another node may have named it otherwise at the same time; at least one of the two sees the other.
                let Some(other) = other(context, pending, Some(&instance.key)).await? else {
                    return Ok((instance, true));
                };
                context.cluster.delete(&instance.key, &instance.uid, false).await?;
                return Err(NamingError::TwoNames(other.key));
            }
            CreateOutcome::Taken(other) if outgoing(&other, pending) => return Err(NamingError::Outgoing(other.key)),
            // One without an identity was made by upstream Akri, for this very name.
            CreateOutcome::Taken(other) if other.identity.as_ref().is_none_or(|of| *of == pending.identity) => {
                return Ok((other, false));
            }
            CreateOutcome::Taken(_) => {}
        }
    }
    Err(NamingError::AllTaken)
}

/// Returns the names to try, or the reason why there are no more.
fn candidates(context: &Context, pending: &PendingInstance) -> impl Iterator<Item = Result<String, NamingError>> {
    let input = HashInput::new(&pending.device.id, pending.shared, &context.node);
    let configuration = pending.configuration.key.name.clone();
    let is_free = |name: &String| context.resource_names.holder(name, &pending.configuration).is_none();
    let hashed = HashLength::ALL.into_iter().map(move |length| {
        let hash = input.hash(length);
        instance_name(&configuration, &hash)
            .ok_or_else(|| NamingError::TooLong { configuration: configuration.clone(), hash })
    });
    pending.name.clone().filter(is_free).map(Ok).into_iter().chain(hashed)
}

/// Returns the Instance that other nodes have for a shared device under another name than one is about to be made with, or was made
/// with: they may know another template, or another device had the shorter hash. Of a local device this node would know.
async fn other(
    context: &Context,
    pending: &PendingInstance,
    made: Option<&Key>,
) -> Result<Option<Instance>, NamingError> {
    if !pending.shared {
        return Ok(None);
    }
    let configuration = &pending.configuration.key;
    let usual = (pending.name.is_some() && made.is_none_or(|made| !has_usual_name(&configuration.name, &made.name)))
        .then(|| HashInput::new(&pending.device.id, true, "").hash(HashLength::Short));
    let usual = usual.and_then(|hash| instance_name(&configuration.name, &hash));
    let max_age = if made.is_some() { Duration::ZERO } else { RECENT };
    let found = standing(&*context.cluster, configuration, &pending.identity, usual, max_age).await?;
    let is_other = |other: &Instance| {
        made != Some(&other.key) && !outgoing(other, pending) && pending.left.as_ref() != Some(&other.uid)
    };
    Ok(found.into_iter().find(is_other))
}

/// Returns the Instances of a shared device that have other names than usual, as they were at most that long ago, and the one that has
/// this usual name.
pub(super) async fn standing(
    cluster: &dyn Cluster,
    configuration: &Key,
    identity: &Identity,
    usual: Option<String>,
    max_age: Duration,
) -> ClusterResult<Vec<Instance>> {
    let mut found = cluster.find_named_otherwise(configuration, identity, max_age).await?;
    if let Some(usual) = usual {
        let usual = cluster.get(&Key::new(&*configuration.namespace, usual)).await?;
        found.extend(usual.filter(|other| other.identity.as_ref() == Some(identity)));
    }
    Ok(found)
}

/// Clears the way for another name of an Instance that nobody uses: a shared one is deleted, which its other nodes see. Returns whether
/// it can be made anew.
pub(super) async fn make_way(
    context: &Context,
    configuration: &Configuration,
    entry: &Entry,
    name: Option<&str>,
) -> Result<bool, NamingError> {
    if let Some(name) = name {
        let wanted = Key::new(&*entry.key.namespace, name);
        let other = context.cluster.get(&wanted).await?;
        let is_taken = other.is_some_and(|other| other.identity.as_ref() != Some(&entry.identity));
        if is_taken || context.resource_names.holder(name, configuration).is_some() {
            return Err(NamingError::Taken(name.to_owned()));
        }
    }
    if !entry.shared {
        return Ok(true);
    }
    Ok(context.cluster.delete_unused(&entry.key, &entry.uid).await?)
}

/// Returns whether an Instance belongs to an earlier Configuration of the name, and is deleted with it (rule 26).
fn outgoing(other: &Instance, pending: &PendingInstance) -> bool {
    let of_the_name = other.configuration == pending.configuration.key.name;
    of_the_name && !other.configuration_uid.is_empty() && other.configuration_uid != pending.configuration.uid
}

fn wanted(context: &Context, pending: &PendingInstance, name: String) -> Instance {
    let configuration = &pending.configuration;
    Instance {
        cdi_name: cdi_name(&configuration.key.name, short_name(&configuration.key.name, &name)),
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
    }
}

/// Returns the journal entry of a new Instance; claims of this node are adopted when the Instance is taken into
/// service.
fn entry(pending: &PendingInstance, instance: &Instance) -> Entry {
    Entry {
        shared: pending.shared,
        device: pending.device.clone(),
        online: Online::True,
        withheld: false,
        claims: pending.claims.clone(),
        others: pending.others.clone(),
        ..entry_without_claims(&pending.configuration, instance, &pending.identity)
    }
}
