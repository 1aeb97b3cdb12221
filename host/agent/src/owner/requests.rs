//! From the kubelet: requests for devices, and looks at which of them containers still use.

use std::sync::Arc;

use akri_model::edits::ContainerEdits;
use akri_model::names::{Identity, Usage, resource_name};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{info, warn};

use super::claims::Undo;
use super::published::Published;
use super::resource::{Allocated, Command, Target};
use super::{State, claims, whole};
use crate::plugin::resource::{Preference, Refused};
use crate::reclaim::{Sighting, Twice};

impl State {
    pub(super) async fn serve(&mut self, command: Command) {
        match command {
            Command::Allocate { target, containers, reply } => self.allocate(&target, &containers, reply).await,
            Command::Prefer { target, containers, reply } => {
                let _ = reply.send(self.prefer(&target, &containers)); // the kubelet may have given up
            }
            Command::Holds { target, ids, reply } => {
                let _ = reply.send(self.holds(&target, &ids));
            }
        }
    }

    pub(super) fn prefer(&self, target: &Target, containers: &[Preference]) -> Vec<Vec<String>> {
        match target {
            Target::Configuration => whole::prefer(&self.published, containers, &self.context.node),
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let prefer =
                    |p: &Published| containers.iter().map(|wish| claims::prefer(p, wish, &self.context.node)).collect();
                published.map(prefer).unwrap_or_default()
            }
        }
    }

    pub(super) fn holds(&self, target: &Target, ids: &[String]) -> bool {
        match target {
            Target::Configuration => whole::holds(&self.published, ids, &self.context.node),
            Target::Instance(identity) => {
                self.published.get(identity).is_some_and(|p| claims::holds(p, ids, &self.context.node))
            }
        }
    }

    pub(super) async fn allocate(
        &mut self,
        target: &Target,
        containers: &[Vec<String>],
        reply: oneshot::Sender<Allocated>,
    ) {
        let context = Arc::clone(&self.context);
        let _answering = context.claims.answering();
        let asked = Instant::now();
        let claimed = self.claim(target, containers).await;
        context.metrics.claim(*target != Target::Configuration, claimed.is_ok(), asked.elapsed());
        match claimed {
            Ok((edits, undo)) => {
                let touched: Vec<Identity> = undo.touched().cloned().collect();
                let heard = reply.send(Ok(edits)).is_ok();
                if !heard {
                    claims::go_back(&context, &mut self.published, undo).await;
                }
                self.after_claim(target, &touched, !heard);
            }
            Err(refused) => {
                warn!(configuration = %self.configuration.key, ?target, "Allocate refused: {refused}");
                let _ = reply.send(Err(refused)); // the kubelet may have given up
                self.after_claim(target, &[], true);
            }
        }
    }

    pub(super) async fn claim(
        &mut self,
        target: &Target,
        containers: &[Vec<String>],
    ) -> Result<(Vec<ContainerEdits>, Undo), Refused> {
        if containers.is_empty() || containers.iter().any(Vec::is_empty) {
            return Err(Refused::InvalidArgument("a container asks for no device".to_owned()));
        }
        let node = &self.context.node;
        let wishes = match target {
            Target::Configuration => whole::wishes(&self.published, containers, node)?,
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let published = published.ok_or_else(|| Refused::NotFound("the device is gone".to_owned()))?;
                claims::instance_wishes(published, containers, node)?
            }
        };
        claims::claim(&self.context, &self.configuration, &mut self.published, &wishes).await
    }

    /// The kubelet hears of every change, and of how things are after a refusal, which may come from an older list.
    pub(super) fn after_claim(&self, target: &Target, touched: &[Identity], refused: bool) {
        let node = &self.context.node;
        for identity in touched {
            let Some(published) = self.published.get(identity) else { continue };
            published.advertise(node, false);
            self.context.publisher.publish(published.instance(&self.configuration, node));
        }
        match target {
            Target::Instance(identity) if refused => {
                self.published.get(identity).into_iter().for_each(|published| published.advertise(node, true));
            }
            Target::Configuration if refused => self.whole.advertise(&self.published, node, true),
            _ => {}
        }
    }

    pub(super) async fn look(&mut self, sighting: &Sighting) {
        let Some(look) = sighting.look else { return };
        self.notice_twice(&sighting.twice);
        let whole = sighting.in_use.get(&resource_name(&self.configuration.key.name));
        let judged = self.published.iter_mut().map(|(identity, published)| {
            let own = sighting.in_use.get(&resource_name(&published.entry.key.name));
            (identity.clone(), published.judge(own, whole, &look))
        });
        let ended: Vec<(Identity, Vec<u32>)> = judged.filter(|(_, slots)| !slots.is_empty()).collect();
        for (identity, slots) in ended {
            self.release(&identity, &slots).await;
        }
    }

    /// That two pods have one id is the kubelet's doing: it is told once, and taken from neither (rule 21).
    fn notice_twice(&mut self, twice: &Twice) {
        self.twice.retain(|slot| twice.contains_key(slot));
        for (slot, pods) in twice.iter().filter(|(slot, _)| !self.twice.contains(*slot)).collect::<Vec<_>>() {
            let (resource, id) = slot;
            let message = format!("pods {pods} have '{id}' of {resource} at once");
            let of_this = |published: &&Published| resource_name(&published.entry.key.name) == *resource;
            let occurrence = if *resource == resource_name(&self.configuration.key.name) {
                self.occurrence("SlotUsedTwice", message)
            } else if let Some(published) = self.published.values().find(of_this) {
                published.occurrence("SlotUsedTwice", message)
            } else {
                continue; // another Configuration's
            };
            self.twice.insert(slot.clone());
            self.context.metrics.used_twice();
            self.context.cluster.tell(occurrence);
        }
    }

    pub(super) async fn release(&mut self, identity: &Identity, slots: &[u32]) {
        let Some(published) = self.published.get_mut(identity) else { return };
        let before = published.entry.claims.clone();
        for slot in slots {
            let Some(claim) = published.entry.claims.remove(slot) else { continue };
            let usage: Usage = claim.usage.parse().unwrap_or_default();
            published.slots.release(*slot, &usage);
            published.sightings.remove(slot);
            self.context.metrics.reclaimed();
            info!(instance = %published.entry.key, slot, "released: no container uses it");
        }
        if published.entry.shared
            && let Err(refused) = claims::swap_all(&self.context, published, &before).await
        {
            warn!(instance = %published.entry.key, "not released yet: {refused}");
            published.entry.claims = before; // it stays ours until the API server says otherwise
            return;
        }
        self.changed(vec![identity.clone()]).await;
    }
}
