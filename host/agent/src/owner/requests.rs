//! Passes the kubelet's requests and snapshots of pods to the claim machine.

use std::collections::BTreeMap;

use akri_model::claim_machine::Target;
use akri_model::names::resource_name;
use akri_model::reclaim::UsageSnapshot;
use tokio::time::Instant;

use super::OwnerState;
use super::effects::Caller;
use super::resource::Command;

impl OwnerState {
    pub(super) fn serve(&mut self, command: Command) {
        match command {
            Command::Allocate { reply, .. } if reply.is_closed() => {} // the kubelet has given up (rule 42)
            Command::Allocate { target, containers, reply } => {
                let (started, _answering) = (Instant::now(), self.context.claims.answering());
                let id = self.machine.allocate(target.clone(), containers, self.moment());
                for identity in self.machine.claimed_by(id) {
                    self.served.get_mut(&identity).into_iter().for_each(|served| served.pacing.try_at_once());
                }
                self.callers.insert(id, Caller { target, reply, started, _answering });
            }
            Command::Prefer { target, containers, reply } => {
                let _ = reply.send(self.machine.prefer(&target, &containers)); // the kubelet may have given up
            }
            Command::Holds { target, ids, reply } => {
                let _ = reply.send(self.machine.holds(&target, &ids));
            }
        }
    }

    /// Judges all claims by a snapshot of what containers use, and releases those that have ended.
    pub(super) fn apply_snapshot(&mut self, snapshot: Option<&UsageSnapshot>) {
        let Some(snapshot) = snapshot else { return };
        self.record_duplicates(snapshot);
        self.machine.apply_snapshot(snapshot);
    }

    /// Two pods that have one ID are the kubelet's doing: an Event says so once, and neither loses it (rule 21).
    fn record_duplicates(&mut self, snapshot: &UsageSnapshot) {
        let instances = self.machine.instances().iter();
        let resources = instances.map(|(identity, one)| (Target::Instance(identity.clone()), &one.entry().key.name));
        let all = resources.chain([(Target::Configuration, &self.configuration.key.name)]);
        let mut found = BTreeMap::new();
        for (target, name) in all {
            let resource = resource_name(name);
            for (id, one, other) in snapshot.duplicates(&resource) {
                let pods = format!("{}/{} and {}/{}", one.namespace, one.pod, other.namespace, other.pod);
                let message = format!("pods {pods} have '{id}' of {resource} at once");
                found.insert((target.clone(), id.to_owned()), message);
            }
        }
        self.duplicates.retain(|duplicate| found.contains_key(duplicate));
        for (duplicate, message) in found {
            if !self.duplicates.insert(duplicate.clone()) {
                continue;
            }
            self.context.metrics.used_twice.inc();
            match duplicate.0 {
                Target::Instance(identity) => self.record_instance_event(&identity, "SlotUsedTwice", message),
                Target::Configuration => self.record_event("SlotUsedTwice", message),
            }
        }
    }
}
