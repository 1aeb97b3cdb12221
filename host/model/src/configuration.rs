//! What the agent needs to know of a Configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::names::Key;
use crate::property::Source;

/// A user's wish: which devices to look for, and how they are handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// Namespace and name.
    pub key: Key,
    /// The object's UID: a Configuration deleted and made again is another one.
    pub uid: String,
    /// When it was created, in Unix seconds; 0 for a manifest of local mode.
    pub created: i64,
    /// `metadata.generation`, for `status.observedGeneration`.
    pub generation: i64,
    /// Name of the discovery handler.
    pub handler: String,
    /// `discoveryDetails`, for the handler alone to understand.
    pub details: String,
    /// `discoveryProperties`: where the value of each is.
    pub properties: BTreeMap<String, Source>,
    /// Slots of each Instance.
    pub capacity: u32,
    /// Overlaid on each device's properties; these win.
    pub broker_properties: BTreeMap<String, String>,
    /// Which resources are advertised.
    pub resources: Resources,
    /// How long a missing device keeps its Instance; `None` is the default for its kind, [`Configuration::grace`].
    pub offline_grace: Option<Duration>,
}

impl Configuration {
    /// How long a device may be missing before its Instance leaves this node: nothing for a local device, which its node
    /// really lost, five minutes for a shared one, which may only have missed a probe.
    pub fn grace(&self, shared: bool) -> Duration {
        let default = if shared { Duration::from_secs(300) } else { Duration::ZERO };
        self.offline_grace.unwrap_or(default)
    }

    /// Names of resources know no namespaces: of Configurations with one name that of the lowest rank has it. It is the
    /// oldest, then the one that is served already, then that of the lowest UID (rule 29).
    pub fn rank(&self, is_served: bool) -> (i64, bool, &str) {
        (self.created, !is_served, &self.uid)
    }

    /// A device's properties as brokers see them: the device's own, overlaid by the Configuration's.
    pub fn broker_view(&self, properties: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut view = properties.clone();
        view.extend(self.broker_properties.clone());
        view
    }
}

/// Which resources of a Configuration the kubelet is offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Resources {
    /// Only `akri.sh/<instance>`.
    Instance,
    /// Only `akri.sh/<configuration>`.
    Configuration,
    /// Both.
    #[default]
    Both,
}

/// Most slots an Instance may have: each is a device plugin id in every list the kubelet gets.
pub const MAX_CAPACITY: u32 = 1000;
