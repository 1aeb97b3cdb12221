//! The device plugins of a Configuration and its Instances.

use std::sync::Arc;

use akri_kubelet::Plugin;
use akri_kubelet::resource::AdvertisedDevices;
use akri_model::configuration::Resources;
use akri_model::names::Identity;
use tokio::sync::watch;

use super::OwnerState;
use super::resource::{OwnedResource, Target};

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
        for identity in self.published.keys().cloned().collect::<Vec<_>>() {
            let Some(name) = self.published.get(&identity).map(|published| published.entry().key.name.clone()) else {
                continue;
            };
            let is_wanted = wants_instances && self.has_name(&name);
            let Some(published) = self.published.get(&identity) else { continue };
            if is_wanted == published.plugin.is_some() {
                continue;
            }
            let target = Target::Instance(identity.clone());
            let opened = is_wanted.then(|| self.plugin(&published.entry().key.name, target, &published.advertised));
            let Some(published) = self.published.get_mut(&identity) else { continue };
            unwanted.extend(std::mem::replace(&mut published.plugin, opened));
        }
        unwanted
    }

    /// Opens the device plugin of one Instance, if it is wanted.
    pub(super) fn serve_instance(&mut self, identity: &Identity) {
        let Some(published) = self.published.get(identity) else { return };
        let is_wanted = self.configuration.resources != Resources::Configuration;
        let name = published.entry().key.name.clone();
        if is_wanted && published.plugin.is_none() && self.has_name(&name) {
            let Some(published) = self.published.get(identity) else { return };
            let target = Target::Instance(identity.clone());
            let plugin = self.plugin(&published.entry().key.name, target, &published.advertised);
            if let Some(published) = self.published.get_mut(identity) {
                published.plugin = Some(plugin);
            }
        }
    }

    /// Claims a resource name for this Configuration, and returns whether it has it; the status shows names that
    /// another one has.
    fn has_name(&mut self, name: &str) -> bool {
        let claimed = self.context.resource_names.claim(name, &self.configuration);
        self.health.claimed(name, claimed.as_ref().err());
        claimed.is_ok()
    }

    fn plugin(&self, name: &str, target: Target, advertised: &watch::Sender<AdvertisedDevices>) -> Plugin {
        let resource = OwnedResource::new(name, target, advertised.subscribe(), self.command_sender.clone());
        self.context.plugins.serve(Arc::new(resource))
    }
}
