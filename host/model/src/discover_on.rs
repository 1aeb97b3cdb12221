//! `discoverOn`: discovery of devices of the network on a few nodes, for all (rule 126).
//!
//! The controller chooses the nodes by the Leases of their agents and writes them into the status of the Configuration, which every
//! agent watches anyway: so nobody else watches Leases, and a chosen node stays until its Lease is late. While there is no controller,
//! the chosen nodes go on. By the status and the labels of its node each agent knows its [`Role`]:
//!
//! - a node that *probes* runs discovery, makes Instances, and says whether their devices answer, as without `discoverOn`;
//! - a node that *follows* runs no round, opens no stream and reads no credentials. The controller joins it to the Instances that are
//!   online; its agent serves those that its watch then shows, says nothing of its own about their devices, and goes by their `Online`;
//! - any other node serves nothing.
//!
//! `Online` comes from the nodes that probe and have joined. If none of them has, it stays as it is and the controller joins them, so
//! that each has to say whether it finds the device. A device that is gone is left by those that follow first: until then a node that
//! probes keeps saying that it misses it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::agent_lease::GOOD_FOR;
use crate::device::DeviceSet;
use crate::names::node_hash;

/// Most nodes that run discovery for a Configuration.
pub const MAX_COUNT: usize = 100;

/// The time after its last renewal in which a Lease is renewed again, by an agent that is well: the interval and a little more.
const PROMPT: Duration = Duration::from_secs(75);

/// `discoverOn` of a Configuration, and the nodes that were chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoverOn {
    /// The number of nodes that run discovery.
    pub count: usize,
    /// Labels of the nodes that serve the devices; all nodes if it is empty.
    pub node_selector: BTreeMap<String, String>,
    /// The nodes that run discovery, as the status says.
    pub nodes: BTreeSet<String>,
}

/// The part of this node in the discovery of a Configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Discovery runs on every node.
    #[default]
    Every,
    /// This node runs discovery for others.
    Probes,
    /// This node serves what others find.
    Follows,
    /// This node serves nothing.
    Excluded,
}

impl Role {
    /// Returns whether discovery runs on this node.
    pub fn discovers(self) -> bool {
        matches!(self, Self::Every | Self::Probes)
    }
}

impl DiscoverOn {
    /// Returns whether a node with these labels serves the devices.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Returns the role of a node. As long as its labels are not known it goes on serving.
    pub fn role(&self, node: &str, labels: Option<&BTreeMap<String, String>>) -> Role {
        match labels {
            _ if self.nodes.contains(node) => Role::Probes,
            Some(labels) if !self.selects(labels) => Role::Excluded,
            _ => Role::Follows,
        }
    }
}

/// Returns the time for which the Lease of an agent counts as renewed in time, of the time for which it is good.
pub fn prompt_for(good_for: Duration) -> Option<Duration> {
    let left = good_for.checked_sub(GOOD_FOR.saturating_sub(PROMPT))?;
    (!left.is_zero()).then_some(left)
}

/// Chooses the nodes that run discovery for a Configuration, of `running`: the selected nodes with an agent, and for how long its Lease
/// is good. Those whose Leases are late come last, those chosen `before` first, and others by a hash with the Configuration's UID, so
/// that each Configuration has others. If no agent runs, those of before stay that are `selected`.
pub fn choose(
    uid: &str,
    count: usize,
    before: &BTreeSet<String>,
    running: &BTreeMap<&str, Duration>,
    selected: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    if running.is_empty() {
        return before.iter().filter(|node| selected(node)).cloned().collect();
    }
    let ranked = running.iter().map(|(node, good_for)| {
        let is_new = !before.contains(*node);
        (prompt_for(*good_for).is_none(), is_new, node_hash(&format!("{node} {uid}")), *node)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_unstable();
    ranked.into_iter().take(count).map(|(.., node)| node.to_owned()).collect()
}

/// Withholds devices that only this node could hand out, with a note for each; all if they are not `shared`. Returns whether there are any.
pub fn withhold_local(set: &mut DeviceSet, shared: bool, max_notes: usize) -> bool {
    let is_local =
        |device: &mut crate::device::Device| !shared || !device.mounts.is_empty() || !device.device_specs.is_empty();
    let local: Vec<_> = set.devices.extract_if(.., is_local).collect();
    let is_any = !local.is_empty();
    for device in local {
        let what = if shared { "has device nodes or mounts" } else { "belongs to one node" };
        let message = format!("device '{}' {what}: discoverOn is for devices of the network; remove it", device.id);
        set.withhold(device, "LocalDevice", message, max_notes);
    }
    is_any
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::{Device, Mount};

    const LATE: Duration = Duration::from_secs(100);

    fn names(nodes: &[&str]) -> BTreeSet<String> {
        nodes.iter().map(|node| (*node).to_owned()).collect()
    }

    fn choose_of(count: usize, before: &[&str], running: &[(&str, Duration)]) -> BTreeSet<String> {
        choose("u", count, &names(before), &running.iter().copied().collect(), |node| node != "other")
    }

    #[test] // rule 126
    fn chosen_node_stays_until_its_lease_is_late() {
        let all = |of_b| [("a", GOOD_FOR), ("b", of_b), ("c", GOOD_FOR)];
        assert_eq!(choose_of(1, &["b"], &all(GOOD_FOR)), names(&["b"]));
        assert_eq!(choose_of(1, &["b"], &all(GOOD_FOR - PROMPT + Duration::from_secs(1))), names(&["b"]));
        let replaced = choose_of(1, &["b"], &all(LATE));
        assert!(replaced.len() == 1 && !replaced.contains("b"), "{replaced:?}");
        assert_eq!(choose_of(1, &["a"], &all(GOOD_FOR)), names(&["a"]), "nor does one that returns come back");
        assert_eq!(choose_of(1, &["b"], &[("b", LATE), ("c", LATE)]), names(&["b"]), "nobody is better");
        assert_eq!(choose_of(9, &[], &all(LATE)), names(&["a", "b", "c"]), "more than there are: all");
        assert_eq!(choose_of(2, &["b", "other"], &[]), names(&["b"]), "without agents nothing is chosen anew");
        assert_eq!(choose_of(2, &["gone"], &[("a", GOOD_FOR)]), names(&["a"]));
    }

    #[test] // rule 126
    fn configurations_are_spread_over_nodes() {
        let nodes: Vec<String> = (0..20).map(|number| format!("node-{number}")).collect();
        let running: BTreeMap<&str, Duration> = nodes.iter().map(|node| (&**node, GOOD_FOR)).collect();
        let of = |uid: usize| choose(&format!("u{uid}"), 2, &BTreeSet::new(), &running, |_| true);
        let used: BTreeSet<String> = (0..50).flat_map(of).collect();
        assert!(used.len() > 15, "{used:?}");
    }

    #[test] // rule 126
    fn role_follows_from_choice_and_labels() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let selector: BTreeMap<String, String> = [pair("zone", "a")].into();
        let on = DiscoverOn { count: 1, node_selector: selector.clone(), nodes: names(&["x"]) };
        let (matching, other) = ([pair("zone", "a"), pair("arch", "arm")].into(), [pair("zone", "b")].into());
        for (node, labels, role) in [
            ("x", Some(&matching), Role::Probes),
            ("y", Some(&matching), Role::Follows),
            ("y", Some(&other), Role::Excluded),
            ("y", None, Role::Follows),
        ] {
            assert_eq!(on.role(node, labels), role, "{node} {labels:?}");
        }
        assert!(DiscoverOn::default().selects(&BTreeMap::new()), "without a selector all nodes match");
    }

    #[test] // rule 126
    fn devices_of_one_node_are_withheld() {
        let device = |id: &str| Device { id: id.to_owned(), ..Device::default() };
        let mount = Mount { container_path: "/x".into(), host_path: "/x".into(), read_only: true };
        let local = Device { mounts: vec![mount], ..device("local") };
        let found = || DeviceSet { devices: vec![device("cam"), local.clone()], ..DeviceSet::default() };
        let mut set = found();
        assert!(withhold_local(&mut set, true, 10));
        assert_eq!((set.devices.len(), set.withheld.contains("local"), set.notes.len()), (1, true, 1));
        assert!(!withhold_local(&mut set, true, 10), "there are no others");
        let mut set = found();
        assert!(withhold_local(&mut set, false, 1));
        assert_eq!((set.devices.len(), set.withheld.len(), set.notes.len(), set.notes_dropped), (0, 2, 1, 1));
    }

    proptest! {
        /// As many as are wanted and there are, none that is not there, and no more change than is needed.
        #[test] // rule 126
        fn choice_is_full_and_stable(
            count in 1_usize..8, running in proptest::collection::btree_map("[a-j]", 1_u64..=180, 1..10), before in proptest::collection::btree_set("[a-j]", 0..8)
        ) {
            let running: BTreeMap<&str, Duration> = running.iter().map(|(node, left)| (&**node, Duration::from_secs(*left))).collect();
            let chosen = choose("u", count, &before, &running, |_| true);
            prop_assert_eq!(chosen.len(), count.min(running.len()));
            prop_assert!(chosen.iter().all(|node| running.contains_key(&**node)));
            prop_assert_eq!(&choose("u", count, &chosen, &running, |_| true), &chosen);
            let is_prompt = |node: &String| running.get(&**node).is_some_and(|left| prompt_for(*left).is_some());
            let kept = before.iter().filter(|node| is_prompt(node)).count();
            prop_assert!(chosen.intersection(&before).filter(|node| is_prompt(node)).count() == kept.min(count));
        }
    }
}
