//! The readiness of an agent, with the reasons why it is not ready.

use std::collections::BTreeSet;

use crate::names::Key;

/// Objects named in one sentence.
const NAMED: usize = 5;

/// The effect of a problem of the kubelet, at the end of its message.
pub const NOT_OFFERED: &str = "no pod is offered the devices";

/// The file in the state directory of a local agent that has its problems, a sentence each, for `akri get`.
pub const PROBLEMS: &str = "problems.json";

/// The progress of an agent since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentProgress {
    /// Set once all Configurations and DiscoveryHandlers have been read.
    pub listed: bool,
    /// The problems of manifests.
    pub manifests: Vec<String>,
    /// DiscoveryHandlers that are neither loaded nor refused; none before they were looked at.
    pub loading: Option<BTreeSet<String>>,
    /// Configurations whose first round has neither succeeded nor failed.
    pub starting: BTreeSet<Key>,
    /// Resources to be registered with the kubelet.
    pub wanted: usize,
    /// Resources that are.
    pub registered: usize,
    /// The reason why the kubelet offers no devices to pods, if it is the kubelet's own.
    pub kubelet: Option<String>,
    /// The reason why the journal can't be written, if it can't.
    pub journal: Option<String>,
}

impl AgentProgress {
    /// Returns what is missing, a sentence each: nothing if the agent is ready.
    pub fn missing(&self) -> Vec<String> {
        let listed = (!self.listed).then(|| {
            let what = "Configurations and DiscoveryHandlers have not all been read";
            if self.manifests.is_empty() { what.to_owned() } else { format!("{what}: {}", self.manifests.join("; ")) }
        });
        let handlers = match &self.loading {
            None => Some("discovery handlers have not been looked for".to_owned()),
            Some(loading) => named("discovery handlers that are being loaded", loading),
        };
        let starting = named("Configurations whose first round has not ended", &self.starting);
        let Self { wanted, registered, .. } = *self;
        let why = self.kubelet.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let resources = (registered < wanted)
            .then(|| format!("{registered} of {wanted} resources are registered with the kubelet{why}"));
        let journal = self.journal.as_ref().map(|error| format!("devices can't be claimed: {error}"));
        [listed, handlers, starting, resources, journal].into_iter().flatten().collect()
    }
}

/// Returns a sentence with the first of these names; nothing if there are none.
fn named<T: ToString>(what: &str, names: &BTreeSet<T>) -> Option<String> {
    let shown: Vec<String> = names.iter().take(NAMED).map(ToString::to_string).collect();
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{what}: {}{more}", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> AgentProgress {
        AgentProgress { listed: true, loading: Some(BTreeSet::new()), wanted: 2, registered: 2, ..Default::default() }
    }

    #[test] // rule 93
    fn agent_is_ready_when_nothing_is_missing() {
        assert_eq!(ready().missing(), [""; 0]);
        let new = [
            "Configurations and DiscoveryHandlers have not all been read",
            "discovery handlers have not been looked for",
        ];
        assert_eq!(AgentProgress::default().missing(), new);
    }

    #[test] // rule 93
    fn everything_that_is_missing_is_named() {
        let keys = (0..7).map(|number| Key::new("default", format!("cam{number}"))).collect();
        let broken = AgentProgress {
            listed: false,
            manifests: vec!["/m/a.yaml:3: bad".to_owned()],
            loading: Some(["udev".to_owned()].into()),
            starting: keys,
            wanted: 205,
            registered: 102,
            kubelet: Some("it does not answer".to_owned()),
            journal: Some("no space left".to_owned()),
        };
        let expected = [
            "Configurations and DiscoveryHandlers have not all been read: /m/a.yaml:3: bad",
            "discovery handlers that are being loaded: udev",
            "Configurations whose first round has not ended: default/cam0, default/cam1, default/cam2, default/cam3, \
             default/cam4 and 2 more",
            "102 of 205 resources are registered with the kubelet: it does not answer",
            "devices can't be claimed: no space left",
        ];
        assert_eq!(broken.missing(), expected);
    }
}
