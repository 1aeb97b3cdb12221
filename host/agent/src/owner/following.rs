//! Instances of devices that other nodes find (rule 126). This node serves those that name it, asks no device, and says nothing of its
//! own about them.

use std::sync::Arc;

use akri_cluster::Finding;
use akri_discovery::sources::Sources;
use akri_model::claim::Entry;
use akri_model::claim_machine::ManagedInstance;
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::device::{Device, DeviceSet};
use akri_model::discover_on::Role;
use akri_model::grant::Grants;
use akri_model::instance::{Instance, Online};
use akri_model::names::Identity;
use akri_model::policy;
use akri_model::sources::MergedResult;
use tracing::{debug, info};

use super::api_sync::entry_without_claims;
use super::{OwnerState, devices};

/// Waits until the result of the sources has changed, and returns it; for ever without any.
pub(super) async fn next_result(sources: &mut Option<Sources>) -> MergedResult {
    let Some(sources) = sources else { return std::future::pending().await };
    sources.changed().await;
    sources.merge()
}

impl OwnerState {
    /// Starts the sources, gives them the Configuration, or ends them if other nodes run discovery (rule 126).
    pub(super) fn arrange_sources(&self, sources: &mut Option<Sources>) {
        let configuration = Arc::clone(&self.configuration);
        match sources {
            _ if !configuration.role.discovers() => {
                *sources = None;
                self.context.metrics.rounds.forget(&configuration.key);
            }
            Some(sources) => sources.reconfigure(configuration),
            None => *sources = Some(Sources::start(configuration, self.providers.clone())),
        }
    }

    /// Takes that this node runs discovery now, or does not any more. What it serves stays, until a round or others say more.
    pub(super) async fn change_role(&mut self, before: Role) {
        let role = self.configuration.role;
        if role == before {
            return;
        }
        info!(configuration = %self.configuration.key, ?role, "discovery runs on other nodes than before");
        self.last = devices::LastSet::default();
        self.health.retain_unpublished(&DeviceSet::default());
        self.followed.clear();
        self.begin_role();
        for identity in self.known_identities() {
            self.machine.change(&identity); // another role says something else of its devices
        }
        self.apply_remote_usage().await;
    }

    /// Sets what is known before the first round: nothing, unless others run it.
    pub(super) fn begin_role(&mut self) {
        self.last.default_shared = self.knows_shared();
        let discovers = self.configuration.role.discovers();
        self.health.status.discovery =
            if discovers { DiscoveryStatus::Starting } else { DiscoveryStatus::LeftToOthers };
    }

    /// Takes new Instances of other nodes into service while their devices are online.
    pub(super) fn serve_findings(&mut self, shown: &[Arc<Instance>], history: u64) {
        if self.configuration.role != Role::Follows {
            return;
        }
        let uid = self.configuration.uid.clone();
        for instance in shown.iter().filter(|shown| shown.configuration_uid == uid && shown.shared) {
            let Some(identity) = &instance.identity else { continue };
            let is_known = self.machine.get(identity).is_some() || self.pending.contains_key(identity);
            let is_joined = instance.nodes.contains(&self.context.node);
            if !is_known && is_joined && self.context.cluster.finding(instance).online == Online::True {
                self.take_finding(instance, identity, history);
            }
        }
    }

    fn take_finding(&mut self, instance: &Instance, identity: &Identity, history: u64) {
        info!(instance = %instance.key, "found by other nodes");
        self.leaving.remove(&instance.uid);
        let (claims, others) = self.machine.orphans().of(identity);
        let known = entry_without_claims(&self.configuration, instance, identity);
        let entry = Entry { claims, others, online: Online::True, withheld: is_dangerous(instance), ..known };
        self.take_instance(ManagedInstance::new(entry, &self.context.node, false, self.moment()));
        self.observe(identity, Some(instance), history);
        self.restore_lost(identity);
        self.machine.change(identity);
    }

    /// Takes what others say of the devices of known Instances; a node that runs discovery takes which of them others serve.
    pub(super) fn follow_findings(&mut self, shown: &[Arc<Instance>]) {
        match self.configuration.role {
            Role::Every => {}
            Role::Probes => {
                let followed = self.findings(shown).into_iter().filter(|(.., finding)| finding.is_followed);
                self.followed = followed.map(|(identity, ..)| identity.clone()).collect();
            }
            Role::Follows => self.findings(shown).into_iter().for_each(|(identity, shown, finding)| {
                self.follow(identity, shown, finding.online);
            }),
            Role::Excluded => {
                self.known_identities().iter().for_each(|identity| self.change_online(identity, Online::False))
            }
        }
    }

    /// Returns what others say of the devices of known Instances.
    fn findings<'a>(&self, shown: &'a [Arc<Instance>]) -> Vec<(&'a Identity, &'a Instance, Finding)> {
        let known = shown.iter().filter_map(|shown| {
            let identity = shown.identity.as_ref()?;
            let is_it = self.machine.get(identity)?.entry().key == shown.key;
            is_it.then(|| (identity, &**shown, self.context.cluster.finding(shown)))
        });
        known.collect()
    }

    fn follow(&mut self, identity: &Identity, shown: &Instance, online: Online) {
        self.change_online(identity, online);
        let Some(entry) = self.machine.get(identity).map(ManagedInstance::entry) else { return };
        // Only this node could tell of a local device, and does not look.
        let is_withheld = !entry.shared || is_dangerous(shown);
        if entry.withheld == is_withheld && (is_withheld || entry.device.properties == shown.properties) {
            return;
        }
        let device = Device { properties: shown.properties.clone(), ..entry.device.clone() };
        if let Some(instance) = self.machine.change(identity) {
            instance.set_withheld(is_withheld);
            if !is_withheld {
                instance.set_device(device);
            }
        }
    }

    fn change_online(&mut self, identity: &Identity, online: Online) {
        if self.machine.get(identity).is_some_and(|instance| instance.entry().online != online) {
            self.set_online(identity, online);
        }
    }
}

/// Returns whether properties of a device may not become the environment of a container: whoever may write the Instance has written
/// them, and no handler of this node has been granted them.
fn is_dangerous(shown: &Instance) -> bool {
    let checked = policy::check_properties(&shown.properties, &Grants::default());
    checked.inspect_err(|error| debug!(instance = %shown.key, "withheld: {error}")).is_err()
}
