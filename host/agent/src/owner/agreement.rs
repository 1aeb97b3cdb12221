//! Agreeing with the API about the slots of shared devices: after a start, and after a claim nobody knows the fate of
//! (rules 6, 11, 28). Of a shared device the API server has the truth; of a local one the journal, and after damage to it
//! what either of them knows.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_model::claim::Entry;
use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::instance::Instance;
use akri_model::names::{Identity, Usage, parse_slot_name, slot_name};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::published::Published;
use super::{Context, State};
use crate::cluster::{ClusterError, Created, Swapped};

/// How long a start waits for the API before Instances are served without its word.
const START: Duration = Duration::from_secs(2);

/// Pause before the API is asked again.
const RETRY: Duration = Duration::from_secs(2);

impl State {
    /// Asks the API about all Instances that wait for its word, at the start.
    pub(super) async fn agree_at_start(&mut self) {
        let agreed = timeout(START, async {
            let remembered = self.remember_published().await;
            self.agree().await;
            remembered
        });
        if !matches!(agreed.await, Ok(Ok(()))) {
            warn!(configuration = %self.configuration.key, "the API does not answer: free slots of shared devices wait");
        }
    }

    /// Takes Instances of this node that the journal does not know into service, for the containers that use them. Their
    /// devices are not handed out before a round has said what they are, and go if it does not see them (rule 28).
    async fn remember_published(&mut self) -> Result<(), ClusterError> {
        let instances = self.context.cluster.list(&self.configuration.key).await?;
        self.notice_lost(&instances);
        for instance in instances {
            let Some(identity) = instance.identity.clone().filter(|identity| !self.published.contains_key(identity))
            else {
                continue;
            };
            if !instance.nodes.contains(&self.context.node) {
                continue;
            }
            warn!(instance = %instance.key, "not in the journal: its claims are those that are published");
            let entry = forgotten(&self.configuration, &instance, &identity);
            let mut published = Published::new(entry, &self.context.claims);
            learn(&self.context, &self.configuration, &mut published, &instance);
            published.agreed = true;
            self.published.insert(identity.clone(), published);
            self.changed(vec![identity]).await;
        }
        Ok(())
    }

    /// Notes which Instances somebody has deleted.
    fn notice_lost(&mut self, there: &[Instance]) {
        let there: BTreeSet<&str> = there.iter().map(|instance| instance.key.name.as_str()).collect();
        for published in self.published.values_mut() {
            published.lost = !there.contains(published.entry.key.name.as_str());
        }
    }

    /// Takes over what other nodes have claimed and given back of the shared devices, and tells the kubelet (rule 4). An
    /// Instance that somebody deleted is made again (rule 27).
    pub(super) async fn hear_of_others(&mut self) {
        let instances = match self.context.cluster.list(&self.configuration.key).await {
            Ok(instances) => instances,
            Err(error) => return warn!(configuration = %self.configuration.key, "slots of other nodes: {error}"),
        };
        self.notice_lost(&instances);
        for instance in instances {
            let published = instance.identity.as_ref().and_then(|identity| self.published.get_mut(identity));
            let Some(published) = published.filter(|published| published.entry.shared && published.agreed) else {
                continue;
            };
            if published.set_others(&instance.device_usage, &self.context.node) {
                published.advertise(&self.context.node, false);
            }
        }
        if self.published.values().any(|published| published.lost) {
            self.agree().await;
        }
    }

    /// When the API is to be asked again.
    pub(super) fn next_agreement(&self) -> Option<Instant> {
        self.published.values().any(Published::waits).then(|| self.last_agreement + RETRY)
    }

    /// Asks the API about every Instance that waits for its word.
    pub(super) async fn agree(&mut self) {
        self.last_agreement = Instant::now();
        let waiting = self.published.iter().filter(|(_, published)| published.waits());
        let waiting: Vec<Identity> = waiting.map(|(identity, _)| identity.clone()).collect();
        for identity in waiting {
            let Some(published) = self.published.get_mut(&identity) else { continue };
            match agree(&self.context, &self.configuration, published).await {
                Ok(()) => self.changed(vec![identity]).await,
                Err(error) => warn!(instance = %published.entry.key, "not agreed with the API yet: {error}"),
            }
        }
    }
}

fn forgotten(configuration: &Configuration, instance: &Instance, identity: &Identity) -> Entry {
    Entry {
        key: instance.key.clone(),
        uid: instance.uid.clone(),
        identity: identity.clone(),
        configuration: configuration.key.name.clone(),
        configuration_uid: configuration.uid.clone(),
        shared: instance.shared,
        capacity: configuration.capacity,
        device: Device { properties: instance.properties.clone(), ..Device::default() },
        online: instance.online,
        withheld: true,
        claims: Default::default(),
    }
}

async fn agree(
    context: &Context,
    configuration: &Configuration,
    published: &mut Published,
) -> Result<(), ClusterError> {
    give_up_doubtful(context, published).await?;
    let names = [published.entry.key.name.clone()];
    let found = context.cluster.find(&configuration.key, &published.entry.identity, &names).await?;
    let instance = match found {
        Some(instance) => instance,
        None => make_again(context, configuration, published).await?,
    };
    published.entry.uid.clone_from(&instance.uid);
    if published.entry.shared {
        claim_again(context, published, &instance).await?;
    }
    learn(context, configuration, published, &instance);
    (published.agreed, published.lost) = (true, false);
    Ok(())
}

/// Somebody deleted the Instance of a device that is there: it is made again, with its claims (rule 27).
async fn make_again(
    context: &Context,
    configuration: &Configuration,
    published: &Published,
) -> Result<Instance, ClusterError> {
    let wanted = published.instance(configuration, &context.node);
    match context.cluster.create(&wanted).await? {
        Created::New(instance) => {
            info!(instance = %instance.key, "created again");
            Ok(instance)
        }
        Created::Taken(other) if other.identity == wanted.identity => Ok(other),
        Created::Taken(other) => Err(ClusterError::Refused(format!("another device has the name {}", other.key))),
    }
}

/// The kubelet was told that these claims failed: wherever the API has them, they end.
async fn give_up_doubtful(context: &Context, published: &mut Published) -> Result<(), ClusterError> {
    let doubtful = published.entry.claims.iter().filter(|(_, claim)| claim.doubtful);
    let doubtful: Vec<(u32, String)> = doubtful.map(|(slot, claim)| (*slot, claim.usage.clone())).collect();
    for (slot, usage) in doubtful {
        let name = slot_name(&published.entry.key.name, slot);
        context.cluster.swap_usage(&published.entry.key, &name, &usage, "").await?;
        published.forget_claim(slot);
    }
    Ok(())
}

/// Claims of the journal that the API does not know are made again; one that another node has is an accident that kills
/// nobody: both containers keep what they got.
async fn claim_again(context: &Context, published: &Published, instance: &Instance) -> Result<(), ClusterError> {
    for (slot, claim) in &published.entry.claims {
        let name = slot_name(&published.entry.key.name, *slot);
        let there = instance.device_usage.get(&name).map(String::as_str).unwrap_or_default();
        if there == claim.usage {
            continue;
        }
        let swapped = context.cluster.swap_usage(&published.entry.key, &name, "", &claim.usage).await?;
        if let Swapped::Differs(other) = swapped {
            let message = format!("slot {slot} is in use on {} and claimed by {other}", context.node);
            context.cluster.tell(published.occurrence("SlotOvercommitted", message));
        } else {
            info!(instance = %published.entry.key, slot, "claimed again: it is in use here");
        }
    }
    Ok(())
}

/// Takes over what the API says of slots that are not ours, or that the journal lost.
pub(super) fn learn(context: &Context, configuration: &Configuration, published: &mut Published, instance: &Instance) {
    for (name, text) in &instance.device_usage {
        let Some(slot) = parse_slot_name(&published.entry.key.name, name) else { continue };
        let Ok(usage) = text.parse::<Usage>() else { continue };
        if usage.is_free() || published.entry.claims.contains_key(&slot) {
            continue;
        }
        published.take_slot(slot, usage.clone());
        if usage.node() == Some(&context.node) {
            adopt(context, configuration, published, slot, &usage);
        }
    }
}

/// A claim of this node that the journal does not know: it may be in use, and nobody has seen it yet.
fn adopt(context: &Context, configuration: &Configuration, published: &mut Published, slot: u32, usage: &Usage) {
    let claim = published.new_claim(configuration, slot, usage, context.claims.next_generation());
    published.hold(slot, claim, &context.claims);
}
