//! From rounds to Instances: devices come, change, go missing and end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Resources;
use akri_model::device::{Device, DeviceSet, Unlisted};
use akri_model::edits::ContainerEdits;
use akri_model::instance::Online;
use akri_model::names::Identity;
use akri_model::plan::{Known, Plan, plan};
use akri_model::retry::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::agreement;
use super::naming::{self, Named, Nameless, NamingError};
use super::published::Published;
use super::resource::{OwnedResource, Target};
use super::{NamingResult, State};
use crate::discovery::sources::Told;
use crate::discovery::{Outcome, dice};
use crate::plugin::Plugin;
use crate::plugin::resource::Advertised;

/// The devices of which a handler told last. Some may have no Instance yet, and handlers tell of nothing that stays the same.
#[derive(Default)]
pub(super) struct LastSet {
    found: Option<(DeviceSet, bool)>,
    /// It came while Instances were being created: one may be of a device that is gone by now.
    overtook: bool,
    backoff: Backoff,
    /// When to try again to create those that failed.
    pub(super) again: Option<Instant>,
}

impl State {
    pub(super) async fn take(&mut self, told: Told) {
        match told {
            Told::Outcome(outcome) => {
                self.health.outcome(&outcome);
                if let Outcome::Found { set, shared } = outcome {
                    self.found(set, shared).await;
                }
            }
            Told::Silent => self.health.silent(),
            Told::Lost => self.found(DeviceSet { unlisted: Unlisted::Unknown, ..DeviceSet::default() }, false).await,
        }
    }

    /// Once more what was told last.
    pub(super) async fn find_again(&mut self) {
        self.last.again = None;
        if let Some((set, shared)) = self.last.found.take() {
            self.found(set, shared).await;
        }
    }

    async fn found(&mut self, set: DeviceSet, shared: bool) {
        self.last.overtook = !self.naming.is_empty();
        let plan = self.plan(&set, shared);
        for (identity, device) in plan.publish {
            self.create(identity, device, shared);
        }
        let mut touched = Vec::new();
        for (identity, device) in plan.change {
            if let Some(published) = self.published.get_mut(&identity) {
                let moved = published.set_device(device);
                moved.into_iter().for_each(|occurrence| self.context.cluster.tell(occurrence));
                touched.push(identity);
            }
        }
        let changes = [(plan.online, Online::True), (plan.offline, Online::False), (plan.unknown, Online::Unknown)];
        let changes = changes.into_iter().flat_map(|(all, online)| all.into_iter().map(move |one| (one, online)));
        for (identity, online) in changes {
            if let Some(published) = self.published.get_mut(&identity) {
                published.set_online(online);
                touched.push(identity);
            }
        }
        let withheld =
            self.published.iter_mut().filter_map(|(id, published)| published.set_withheld(&set).then_some(id));
        touched.extend(withheld.cloned());
        self.last.found = Some((set, shared));
        self.changed(touched).await;
    }

    pub(super) fn plan(&self, set: &DeviceSet, shared: bool) -> Plan {
        let known: BTreeMap<Identity, Known<'_>> =
            self.published.iter().map(|(identity, published)| (identity.clone(), published.known())).collect();
        let mut plan = plan(set, &known, shared, &self.context.node);
        plan.publish.retain(|(identity, _)| !self.nameless.contains_key(identity));
        plan
    }

    pub(super) fn create(&mut self, identity: Identity, device: Device, shared: bool) {
        self.nameless.insert(identity.clone(), device.clone());
        let context = Arc::clone(&self.context);
        let nameless = Nameless { configuration: Arc::clone(&self.configuration), device, identity, shared };
        self.naming.spawn(async move {
            let _permit = context.naming.acquire().await;
            let named = naming::name(&context, &nameless).await;
            (nameless.identity, nameless.device, named)
        });
    }

    /// A device got its Instance, or not.
    pub(super) async fn named(&mut self, result: Option<NamingResult>) {
        if let Some((identity, device, named)) = result {
            self.nameless.remove(&identity);
            match named {
                Ok(named) => self.publish(&device, named).await,
                Err(error) => self.not_named(&device, &error),
            }
        }
        if self.naming.is_empty() && self.last.overtook {
            self.find_again().await;
        }
    }

    /// A later round, or after a pause the same devices once more, will try again.
    fn not_named(&mut self, device: &Device, error: &NamingError) {
        warn!(configuration = %self.configuration.key, device = device.id, "no Instance: {error}");
        self.health.unpublished(&device.id, &error.to_string());
        self.tell_unpublished(device, error);
        if self.last.again.is_none() {
            self.last.again = Some(Instant::now() + self.last.backoff.failed(dice()));
        }
    }

    async fn publish(&mut self, device: &Device, named: Named) {
        self.last.backoff.reset();
        info!(instance = %named.entry.key, device = device.id, "published");
        self.health.published(&device.id);
        let mut published = Published::new(named.entry, &self.context.claims);
        agreement::learn(&self.context, &self.configuration, &mut published, &named.instance);
        published.agreed = true;
        let differs = published.entry.capacity != self.configuration.capacity;
        published.resize(self.configuration.capacity);
        if differs || !published.entry.claims.is_empty() {
            self.remember(&published).await;
        }
        let identity = published.entry.identity.clone();
        self.insert(published);
        self.write_cdi(vec![identity]).await;
    }

    /// A device that can't have an Instance is worth an Event (rule 30); one whose turn has only not come is not.
    fn tell_unpublished(&self, device: &Device, error: &NamingError) {
        if matches!(error, NamingError::TooLong { .. } | NamingError::AllTaken) {
            self.context.cluster.tell(self.occurrence("NotPublished", format!("device '{}': {error}", device.id)));
        }
    }

    /// Takes an Instance into service.
    pub(super) fn insert(&mut self, mut published: Published) {
        published.advertise(&self.context.node, false);
        if self.configuration.resources != Resources::Configuration {
            let target = Target::Instance(published.entry.identity.clone());
            published.plugin = Some(self.plugin(&published.entry.key.name, target, &published.advertised));
        }
        self.context.publisher.publish(published.instance(&self.configuration, &self.context.node));
        self.published.insert(published.entry.identity.clone(), published);
    }

    /// The Configuration's own resource is there from the start, with no devices (rule 5).
    pub(super) fn serve_whole(&mut self) {
        if self.configuration.resources != Resources::Instance {
            let name = &self.configuration.key.name;
            self.whole.plugin = Some(self.plugin(name, Target::Configuration, &self.whole.advertised));
        }
    }

    pub(super) fn plugin(&self, name: &str, target: Target, advertised: &watch::Sender<Advertised>) -> Plugin {
        let resource = OwnedResource::new(name, target, advertised.subscribe(), self.asks.clone());
        self.context.plugins.serve(Arc::new(resource))
    }

    /// Advertises, publishes and remembers Instances that are not what they were. The kubelet hears of all of them before
    /// the disk has written any.
    pub(super) async fn changed(&mut self, identities: Vec<Identity>) {
        for published in identities.iter().filter_map(|identity| self.published.get(identity)) {
            published.advertise(&self.context.node, false);
            self.context.publisher.publish(published.instance(&self.configuration, &self.context.node));
        }
        let changed = identities.iter().filter_map(|identity| self.published.get(identity));
        futures::future::join_all(changed.map(|published| self.remember(published))).await;
        self.write_cdi(identities).await;
    }

    /// Writes the CDI specifications of Instances, if that is wanted.
    pub(super) async fn write_cdi(&mut self, identities: Vec<Identity>) {
        let Some(cdi) = &self.context.cdi else { return };
        let write = async |published: &mut Published| {
            let properties = self.configuration.broker_view(&published.entry.device.properties);
            let edits = ContainerEdits::of_device(&published.entry.device, &properties, published.hash());
            let written = cdi.put(&published.entry.configuration, published.hash(), &edits).await;
            published.by_cdi = written && cdi.kubelet;
        };
        let wanted = self.published.iter_mut().filter(|(identity, _)| identities.contains(identity));
        futures::future::join_all(wanted.map(|(_, published)| write(published))).await;
    }

    pub(super) async fn remember(&self, published: &Published) {
        if let Err(error) = self.context.journal.put(published.entry.clone()).await {
            warn!(instance = %published.entry.key, "{error}");
        }
    }

    pub(super) fn grace(&self, published: &Published) -> Duration {
        self.configuration.grace(published.entry.shared)
    }

    /// When the next missing device has been missing for long enough. One whose slots are in use waits for its release.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let idle = self.published.values().filter(|published| published.entry.claims.is_empty());
        idle.filter_map(|published| Some(published.missing_since? + self.grace(published))).min()
    }

    pub(super) async fn expire(&mut self) {
        let now = Instant::now();
        let expired = self.published.iter().filter(|(_, published)| {
            let due = published.missing_since.is_some_and(|since| since + self.grace(published) <= now);
            due && published.entry.claims.is_empty()
        });
        let expired: Vec<Identity> = expired.map(|(identity, _)| identity.clone()).collect();
        self.remove(expired).await;
    }

    /// Takes Instances out of service: first the kubelet forgets them, then the cluster, then the journal.
    pub(super) async fn remove(&mut self, identities: Vec<Identity>) {
        let gone = identities.iter().filter_map(|identity| self.published.remove(identity));
        let mut gone: Vec<Published> = gone.collect();
        // What is advertised has to outlive the plugin, or the kubelet gets no empty list.
        let plugins: Vec<Plugin> = gone.iter_mut().filter_map(|published| published.plugin.take()).collect();
        futures::future::join_all(plugins.into_iter().map(Plugin::close)).await;
        for published in &gone {
            if let Some(cdi) = &self.context.cdi {
                cdi.remove(&published.entry.configuration, published.hash()).await;
            }
            self.context.publisher.delete(published.entry.key.clone(), published.entry.uid.clone());
            info!(instance = %published.entry.key, "removed");
        }
        let forgotten = gone.into_iter().map(|published| self.context.journal.remove(published.entry.key));
        for error in futures::future::join_all(forgotten).await.into_iter().filter_map(Result::err) {
            warn!(configuration = %self.configuration.key, "{error}");
        }
    }
}
