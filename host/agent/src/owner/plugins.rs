//! The device plugins of a Configuration and its Instances.

use std::sync::Arc;

use akri_kubelet::Plugin;
use akri_kubelet::resource::AdvertisedDevices;
use akri_model::claim_machine::Target;
use akri_model::configuration::Resources;
use akri_model::names::{Identity, resource_name};
use tokio::sync::watch;

use super::OwnerState;
use super::resource::OwnedResource;

impl OwnerState {
    /// Opens and closes device plugins; claims through a resource that goes stay.
    pub(super) async fn rearrange_plugins(&mut self) {
        let closing = self.arrange_plugins().into_iter().map(Plugin::close);
        futures::future::join_all(closing).await;
    }

    /// Opens the device plugins that are wanted and missing, and takes those that are not wanted any more (rule 5, rule 48).
    fn arrange_plugins(&mut self) -> Vec<Plugin> {
        let mut unwanted = Vec::new();
        let name = self.configuration.key.name.clone();
        let is_wanted = self.configuration.resources != Resources::Instance && self.has_name(&name);
        if is_wanted && self.configuration_resource.plugin.is_none() {
            self.configuration_resource.plugin =
                Some(self.plugin(&name, Target::Configuration, &self.configuration_resource.advertised));
        } else if !is_wanted {
            unwanted.extend(self.configuration_resource.plugin.take());
        }
        let wants_instances = self.configuration.resources != Resources::Configuration;
        for identity in self.served.keys().cloned().collect::<Vec<_>>() {
            let Some(name) = self.machine.get(&identity).map(|instance| instance.entry().key.name.clone()) else {
                continue;
            };
            if wants_instances && self.has_name(&name) {
                self.serve_instance(&identity);
            } else if let Some(served) = self.served.get_mut(&identity) {
                unwanted.extend(served.resource.plugin.take());
            }
        }
        unwanted
    }

    /// Opens the device plugin of one Instance, if it is wanted.
    pub(super) fn serve_instance(&mut self, identity: &Identity) {
        let Some(name) = self.machine.get(identity).map(|instance| instance.entry().key.name.clone()) else { return };
        let is_open = self.served.get(identity).is_none_or(|served| served.resource.plugin.is_some());
        if self.configuration.resources == Resources::Configuration || is_open || !self.has_name(&name) {
            return;
        }
        let Some(served) = self.served.get(identity) else { return };
        let plugin = self.plugin(&name, Target::Instance(identity.clone()), &served.resource.advertised);
        if let Some(served) = self.served.get_mut(identity) {
            served.resource.plugin = Some(plugin);
        }
    }

    /// Claims a resource name for this Configuration, and returns whether it has it; the status shows names that
    /// another one has.
    fn has_name(&mut self, name: &str) -> bool {
        let taken = &mut self.health.status.taken;
        match self.context.resource_names.claim(name, &self.configuration) {
            Ok(()) => drop(taken.remove(name)),
            Err(holder) => drop(taken.insert(name.to_owned(), holder)),
        }
        !taken.contains_key(name)
    }

    fn plugin(&self, name: &str, target: Target, advertised: &watch::Sender<AdvertisedDevices>) -> Plugin {
        self.context.refresher.add(advertised);
        let (name, owner) = (resource_name(name), self.command_sender.clone());
        let resource = OwnedResource { name, target, advertised: advertised.subscribe(), owner };
        self.context.plugins.serve(Arc::new(resource))
    }
}
