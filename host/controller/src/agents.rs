//! The running agents: each renews a Lease (rule 59).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR, NamespaceVersions, Progress};
use akri_model::names::{Key, node_hash};
use akri_model::sharing::SharedInstances;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::views::Generation;

/// Most agents that are asked to tell at once that they have looked at an object.
const AWAITED: usize = 3;

/// The agents' Leases by name.
#[derive(Default)]
pub(crate) struct Agents {
    leases: BTreeMap<String, AgentLease>,
    /// The highest version of a Configuration or DiscoveryHandler in each namespace that the watches have shown.
    seen: NamespaceVersions,
    /// The entries of nodes about Instances that they share.
    pub(crate) shared: SharedInstances,
}

struct AgentLease {
    /// The time of its last renewal by the node's clock.
    renewed: Option<Timestamp>,
    /// The node whose agent holds it; `None` if that has given it up.
    holder: Option<String>,
    progress: Progress,
    /// The time at which this process observed the last renewal.
    observed: Instant,
    /// The time until which it is good.
    good_until: Instant,
}

impl Agents {
    /// Takes a Lease, and returns the Instances of which it says something new. A renewed Lease is good from now on, whatever the node's
    /// clock says; of a Lease that was renewed before this process looked, only the difference to its own clock is known.
    pub(crate) fn put(&mut self, lease: &Lease, now: Instant) -> BTreeSet<Key> {
        let spec = lease.spec.clone().unwrap_or_default();
        let (renewed, holder) = (spec.renew_time.map(|time| time.0), spec.holder_identity.filter(|of| !of.is_empty()));
        let before = self.leases.get(&lease.name_any());
        let (observed, left) = match before {
            Some(before) if before.renewed == renewed && before.holder == holder => return BTreeSet::new(),
            _ if holder.is_none() => (before.map_or(now, |before| before.observed), Duration::ZERO),
            Some(_) => (now, GOOD_FOR),
            None => (now, renewed.map_or(Duration::ZERO, |at| GOOD_FOR.saturating_sub(age(at)))),
        };
        let mut progress = Progress::read(lease.annotations());
        let sharing = std::mem::take(&mut progress.sharing);
        let node = holder.as_deref().or_else(|| before.and_then(|before| before.holder.as_deref()));
        let node = node.filter(|node| agent_lease::name(node) == lease.name_any());
        let changed = node.map(|node| self.shared.put(node, sharing, Timestamp::now().as_second())).unwrap_or_default();
        self.leases
            .insert(lease.name_any(), AgentLease { renewed, holder, progress, observed, good_until: now + left });
        changed
    }

    /// Removes a Lease, and returns the Instances of which it said something.
    pub(crate) fn remove(&mut self, name: &str) -> BTreeSet<Key> {
        let holder = self.leases.remove(name).and_then(|lease| lease.holder);
        holder.map(|node| self.shared.remove(&node)).unwrap_or_default()
    }

    /// Takes all Leases that there are, and returns the Instances of which they say something new.
    pub(crate) fn replace(&mut self, leases: &[Lease], now: Instant) -> BTreeSet<Key> {
        let listed: BTreeSet<String> = leases.iter().map(Lease::name_any).collect();
        let gone: Vec<String> = self.leases.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        let mut changed: BTreeSet<Key> = gone.iter().flat_map(|name| self.remove(name)).collect();
        changed.extend(leases.iter().flat_map(|lease| self.put(lease, now)));
        changed
    }

    /// Takes the version of an object that its watch shows. Returns whether a report of an agent is seen only now.
    pub(crate) fn saw(&mut self, object: &Key, version: u64, now: Instant) -> bool {
        let before = self.seen(object);
        if version <= before {
            return false;
        }
        self.seen.insert(object.namespace.clone(), version);
        let is_seen_now =
            |progress: &Progress| progress.is_ahead(object, before) && !progress.is_ahead(object, version);
        self.running(now).any(|lease| is_seen_now(&lease.progress))
    }

    fn seen(&self, object: &Key) -> u64 {
        self.seen.get(&object.namespace).copied().unwrap_or_default()
    }

    /// Returns the time for which an agent runs that has looked at a generation of an object (rule 131), and whose reports are seen; `None`
    /// if there is none.
    pub(crate) fn looked_for(&self, object: &Key, generation: &Generation, now: Instant) -> Option<Duration> {
        self.that_looked(object, generation, now).filter_map(|lease| left(lease.good_until, now)).max()
    }

    /// Returns whether there is such an agent: of many the first is enough.
    pub(crate) fn has_looked(&self, object: &Key, generation: &Generation, now: Instant) -> bool {
        self.that_looked(object, generation, now).next().is_some()
    }

    fn that_looked<'a>(
        &'a self,
        object: &'a Key,
        generation: &'a Generation,
        now: Instant,
    ) -> impl Iterator<Item = &'a AgentLease> {
        let seen = self.seen(object);
        self.running(now).filter(move |lease| {
            let since = lease.holder.as_deref().and_then(|node| generation.since_on(node));
            since.is_some_and(|since| lease.progress.covers(object, since)) && !lease.progress.is_ahead(object, seen)
        })
    }

    /// Returns the nodes whose agents are to tell at once that they have looked at an object: for each object others.
    pub(crate) fn to_await(&self, object: &Key, generation: &Generation, now: Instant) -> Vec<String> {
        let nodes = self.running(now).filter_map(|lease| lease.holder.as_deref());
        let mut nodes: Vec<&str> = nodes.filter(|node| generation.since_on(node).is_some()).collect();
        nodes.sort_by_key(|node| (node_hash(&format!("{node} {object}")), *node));
        nodes.into_iter().take(AWAITED).map(str::to_owned).collect()
    }

    /// Returns whether the holder of a Lease runs.
    pub(crate) fn is_good(&self, lease: &str, now: Instant) -> bool {
        self.leases.get(lease).is_some_and(|lease| left(lease.good_until, now).is_some())
    }

    fn running(&self, now: Instant) -> impl Iterator<Item = &AgentLease> {
        self.leases.values().filter(move |lease| left(lease.good_until, now).is_some())
    }

    /// Returns the time that at least one agent will still count as running; `None` if none does.
    pub(crate) fn good_for(&self, now: Instant) -> Option<Duration> {
        self.leases.values().filter_map(|lease| left(lease.good_until, now)).max()
    }

    /// Returns the time that the agent of a node will still count as running; `None` if it does not.
    pub(crate) fn good_on(&self, node: &str, now: Instant) -> Option<Duration> {
        self.of(node).find_map(|lease| left(lease.good_until, now))
    }

    /// Returns when, since `start`, the last renewal of the Lease of a node's agent was observed; `None` if there is no Lease, or the
    /// agent has given it up.
    pub(crate) fn renewed(&self, node: &str, start: Instant) -> Option<Duration> {
        let lease = self.of(node).max_by_key(|lease| lease.observed).filter(|lease| lease.holder.is_some())?;
        Some(lease.observed.duration_since(start))
    }

    /// Returns the names of all Leases.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &str> {
        self.leases.keys().map(String::as_str)
    }

    /// Returns the node of a Lease, and the time for which nobody was seen to renew it.
    pub(crate) fn unrenewed<'a>(&'a self, lease: &'a str, now: Instant) -> Option<(&'a str, Duration)> {
        let of = self.leases.get(lease)?;
        let node = of.holder.as_deref().or_else(|| agent_lease::node(lease))?;
        Some((node, now.duration_since(of.observed)))
    }

    /// The Lease of a node's agent, and that of an agent of version 0.1.
    fn of(&self, node: &str) -> impl Iterator<Item = &AgentLease> {
        let names: [fn(&str) -> String; 2] = [agent_lease::name, agent_lease::former_name];
        let is_its = move |lease: &&AgentLease| lease.holder.as_deref().is_none_or(|holder| holder == node);
        names.into_iter().filter_map(move |name| self.leases.get(&name(node))).filter(is_its)
    }
}

fn left(until: Instant, now: Instant) -> Option<Duration> {
    until.checked_duration_since(now).filter(|left| !left.is_zero())
}

fn age(at: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(at)).unwrap_or_default() // the node's clock is ahead
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;
    use serde_json::json;

    use super::*;

    fn lease_named(name: &str, holder: &str, age: i64) -> Lease {
        let renewed = Timestamp::now().checked_sub(SignedDuration::from_secs(age)).unwrap();
        let spec = json!({"renewTime": format!("{renewed:.6}"), "holderIdentity": holder});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn lease(age: i64) -> Lease {
        lease_named(&agent_lease::name("node-a"), "node-a", age)
    }

    #[test] // rule 59
    fn agent_counts_until_its_lease_is_old() {
        let (mut agents, now) = (Agents::default(), Instant::now());
        assert_eq!(agents.good_for(now), None);
        agents.put(&lease(170), now);
        let left = agents.good_for(now).unwrap();
        assert!((Duration::from_secs(9)..=Duration::from_secs(10)).contains(&left), "{left:?}");
        agents.put(&lease(-3_600), now);
        assert_eq!(agents.good_for(now), Some(GOOD_FOR), "a clock that is wrong does not count once it is renewed");
        assert_eq!((agents.good_on("node-a", now), agents.good_on("node-b", now)), (Some(GOOD_FOR), None));
        assert_eq!(agents.good_on("node-a", now + GOOD_FOR), None);
        assert!(agents.good_for(now + Duration::from_secs(179)).is_some());
        assert_eq!(agents.good_for(now + Duration::from_secs(181)), None);
    }

    #[test] // rule 59
    fn lease_that_did_not_change_prolongs_nothing() {
        let (mut agents, lease, now) = (Agents::default(), lease(0), Instant::now());
        agents.put(&lease, now);
        let later = now + Duration::from_secs(181);
        agents.replace(std::slice::from_ref(&lease), later);
        assert_eq!(agents.good_for(later), None);
        agents.replace(&[], later);
        assert!(agents.leases.is_empty());
    }

    #[test] // rule 100
    fn lease_is_observed_by_the_clock_of_this_process() {
        let (mut agents, start) = (Agents::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(agents.renewed("node-a", start), None);
        agents.put(&lease(10_000), at(5));
        let renewed = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(agents.renewed("node-a", start), renewed(5), "this process has not seen that it is old");
        agents.put(&lease(9_000), at(65));
        assert_eq!(agents.renewed("node-a", start), renewed(65));
        agents.put(&lease_named(&agent_lease::name("node-a"), "", 9_000), at(70));
        assert_eq!(agents.renewed("node-a", start), None);
        assert_eq!(agents.good_on("node-a", at(70)), None);
    }

    #[test] // rule 109
    fn former_lease_counts_if_the_node_holds_it() {
        let (mut agents, now) = (Agents::default(), Instant::now());
        agents.put(&lease_named(&agent_lease::former_name("node-a"), "node-b", 0), now);
        assert_eq!((agents.good_on("node-a", now), agents.renewed("node-a", now)), (None, None));
        agents.put(&lease_named(&agent_lease::former_name("node-a"), "node-a", 0), now);
        assert_eq!(agents.good_on("node-a", now), Some(GOOD_FOR));
    }
}
