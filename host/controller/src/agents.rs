//! The running agents: each renews a Lease (rule 59).

use std::collections::BTreeMap;
use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

/// The agents' Leases.
#[derive(Default)]
pub(crate) struct Agents {
    /// The last renewal of each Lease, and the time of this process's clock until which it is valid.
    leases: BTreeMap<String, (Option<Timestamp>, Instant)>,
}

impl Agents {
    /// Takes a Lease. One that is renewed is good from now on, whatever the node's clock says; of one that was renewed before
    /// this process looked, only the difference to its own clock is known.
    pub(crate) fn put(&mut self, lease: &Lease, now: Instant) {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let name = lease.name_any();
        let left = match self.leases.get(&name) {
            Some((before, _)) if *before == renewed => return,
            Some(_) => GOOD_FOR,
            None => renewed.map_or(Duration::ZERO, |at| GOOD_FOR.saturating_sub(age(at))),
        };
        self.leases.insert(name, (renewed, now + left));
    }

    /// Removes a Lease.
    pub(crate) fn remove(&mut self, name: &str) {
        self.leases.remove(name);
    }

    /// Takes all Leases that there are.
    pub(crate) fn replace(&mut self, leases: &[Lease], now: Instant) {
        self.leases.retain(|name, _| leases.iter().any(|lease| lease.name_any() == *name));
        leases.iter().for_each(|lease| self.put(lease, now));
    }

    /// Returns the time that at least one agent will still count as running; `None` if none does.
    pub(crate) fn good_for(&self, now: Instant) -> Option<Duration> {
        let last = self.leases.values().map(|(_, until)| *until).max()?;
        left(last, now)
    }

    /// Returns the time that the agent of a node will still count as running; `None` if it does not.
    pub(crate) fn good_on(&self, node: &str, now: Instant) -> Option<Duration> {
        self.leases.get(&agent_lease::name(node)).and_then(|(_, until)| left(*until, now))
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

    fn lease(age: i64) -> Lease {
        let renewed = Timestamp::now().checked_sub(SignedDuration::from_secs(age)).unwrap();
        let spec = json!({"renewTime": format!("{renewed:.6}")});
        serde_json::from_value(json!({"metadata": {"name": agent_lease::name("node-a")}, "spec": spec})).unwrap()
    }

    #[test] // rule 59
    fn agent_counts_until_its_lease_is_old() {
        let (mut agents, now) = (Agents::default(), Instant::now());
        assert_eq!(agents.good_for(now), None);
        agents.put(&lease(200), now);
        assert_eq!(agents.good_for(now), None, "it was old when it was seen");
        agents.put(&lease(60), now);
        assert_eq!(agents.good_for(now), Some(GOOD_FOR), "a renewal counts from when it is seen");
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
}
