//! The device plugins of a Configuration and its Instances.

use std::sync::Arc;

use akri_kubelet::Plugin;
use akri_model::claim_machine::Target;
use akri_model::configuration::Resources;
use akri_model::names::{Identity, resource_name};

use super::OwnerState;
use super::resource::OwnedResource;

impl OwnerState {
    /// Opens and closes device plugins; claims through a resource that goes stay.
    pub(super) async fn rearrange_plugins(&mut self) {
        let mut targets = vec![Target::Configuration];
        targets.extend(self.served.keys().cloned().map(Target::Instance));
        let excluded = targets.iter().filter(|target| !self.is_selected(target)).filter_map(|target| self.name(target));
        let excluded = excluded.collect::<Vec<String>>();
        let unwanted: Vec<Plugin> = targets.into_iter().filter_map(|target| self.arrange_plugin(target)).collect();
        futures::future::join_all(unwanted.into_iter().map(Plugin::close)).await;
        for name in excluded {
            self.health.status.taken.remove(&name);
            self.context.resource_names.release(&name, &self.configuration); // another one may want it
        }
    }

    /// Returns the name of a resource; `None` if its Instance is not known.
    pub(super) fn name(&self, target: &Target) -> Option<String> {
        match target {
            Target::Configuration => Some(self.configuration.key.name.clone()),
            Target::Instance(identity) => Some(self.machine.get(identity)?.entry().key.name.clone()),
        }
    }

    /// Returns whether the Configuration wants resources of that kind.
    fn is_selected(&self, target: &Target) -> bool {
        match target {
            Target::Configuration => self.configuration.resources != Resources::Instance,
            Target::Instance(_) => self.configuration.resources != Resources::Configuration,
        }
    }

    /// Opens the device plugin of one Instance, if it is wanted.
    pub(super) fn serve_instance(&mut self, identity: &Identity) {
        if self.served.get(identity).is_some_and(|served| served.resource.plugin.is_none()) {
            drop(self.arrange_plugin(Target::Instance(identity.clone())));
        }
    }

    /// Opens a device plugin that is wanted and missing, or takes one that is not wanted any more (rule 5, rule 48).
    fn arrange_plugin(&mut self, target: Target) -> Option<Plugin> {
        let name = self.name(&target)?;
        let is_wanted = self.is_selected(&target) && self.has_name(&name);
        let resource = match &target {
            Target::Configuration => &mut self.configuration_resource,
            Target::Instance(identity) => &mut self.served.get_mut(identity)?.resource,
        };
        if !is_wanted {
            return resource.plugin.take();
        }
        if resource.plugin.is_none() {
            self.context.refresher.add(&resource.advertised);
            let (name, owner) = (resource_name(&name), self.command_sender.clone());
            let owned = OwnedResource { name, target, advertised: resource.advertised.subscribe(), owner };
            resource.plugin = Some(self.context.plugins.serve(Arc::new(owned)));
        }
        None
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
}
