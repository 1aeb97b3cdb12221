//! The metrics of the agent in the OpenMetrics format: names begin with `akri_`, units are base units.

use std::sync::Arc;
use std::time::Duration;

use akri_discovery::round_metrics::RoundMetrics;
use akri_kube::metrics::{exposition, registered};
use akri_model::names::Key;
use akri_model::summary::DeviceCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// A name and a value.
type Label = (&'static str, String);
/// A gauge for each Configuration.
type ByConfiguration = Family<[Label; 2], Gauge>;

/// All metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// The metrics of rounds.
    pub rounds: RoundMetrics,
    instances: ByConfiguration,
    online: ByConfiguration,
    ready: ByConfiguration,
    complete: ByConfiguration,
    handlers_loading: Gauge,
    unregistered: Gauge,
    unconfirmed: ByConfiguration,
    orphaned: ByConfiguration,
    unseen: ByConfiguration,
    node_missing: Gauge,
    /// Attempts to agree with the API server that failed.
    pub sync_failures: Counter,
    claims: Family<[Label; 2], Counter>,
    allocate_duration: Histogram,
    /// Slots that were released because no container uses them.
    pub reclaimed: Counter,
    /// Device IDs that were allocated to two pods at once.
    pub used_twice: Counter,
    /// Registrations with the kubelet.
    pub registrations: Counter,
}

/// Numbers of slots and claims of a Configuration on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCounts {
    /// Slots whose claim or release the API server has not confirmed.
    pub unconfirmed: usize,
    /// Claims without an Instance.
    pub orphaned: usize,
    /// Claims that no container was seen to use for 10 minutes.
    pub unseen: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let akri = registry.sub_registry_with_prefix("akri");
        let rounds = RoundMetrics::default();
        rounds.register(akri);
        let allocate_duration = Histogram::new(exponential_buckets(0.0005, 2.0, 13));
        let help = "Time an Allocate takes";
        akri.register_with_unit("allocate_duration", help, Unit::Seconds, allocate_duration.clone());
        Self {
            rounds,
            instances: registered(akri, "instances", "Instances of this node by Configuration"),
            online: registered(akri, "instances_online", "Those of them that are online"),
            ready: registered(akri, "configuration_ready", "1 if the condition Ready holds on this node"),
            complete: registered(
                akri,
                "configuration_complete",
                "1 if the condition DiscoveryComplete holds on this node",
            ),
            handlers_loading: registered(
                akri,
                "handlers_loading",
                "DiscoveryHandlers that are neither loaded nor refused",
            ),
            unregistered: registered(
                akri,
                "resources_unregistered",
                "Resources that are not registered with the kubelet",
            ),
            unconfirmed: registered(
                akri,
                "slots_unconfirmed",
                "Slots whose claim or release the API server has not confirmed",
            ),
            orphaned: registered(akri, "claims_orphaned", "Claims of containers whose device has no Instance"),
            unseen: registered(akri, "claims_unseen", "Claims that no container was seen to use for 10 minutes"),
            node_missing: registered(akri, "node_missing", "1 if the Node object of this node is missing"),
            sync_failures: registered(
                akri,
                "slot_sync_failures",
                "Attempts to agree with the API server about slots that failed and are repeated",
            ),
            claims: registered(akri, "claims", "Containers that asked for devices, by kind of resource and result"),
            allocate_duration,
            reclaimed: registered(akri, "slots_reclaimed", "Slots given back since no container uses them"),
            used_twice: registered(akri, "slots_used_twice", "Device plugin ids seen in two pods at once"),
            registrations: registered(akri, "plugin_registrations", "Resources registered with the kubelet"),
            registry: Arc::new(registry),
        }
    }
}

fn labels(configuration: &Key) -> [Label; 2] {
    let Key { namespace, name } = configuration.clone();
    [("namespace", namespace), ("configuration", name)]
}

impl Metrics {
    /// Sets the number of Instances of a Configuration on this node.
    pub fn devices(&self, configuration: &Key, devices: DeviceCounts) {
        let labels = labels(configuration);
        self.instances.get_or_create(&labels).set(number(devices.instances));
        self.online.get_or_create(&labels).set(number(devices.online));
    }

    /// Sets which conditions of a Configuration hold on this node.
    pub fn conditions(&self, configuration: &Key, ready: bool, complete: bool) {
        let labels = labels(configuration);
        self.ready.get_or_create(&labels).set(i64::from(ready));
        self.complete.get_or_create(&labels).set(i64::from(complete));
    }

    /// Sets how many handlers are being loaded, and how many resources are not registered.
    pub fn progress(&self, loading: usize, unregistered: usize) {
        self.handlers_loading.set(number(loading));
        self.unregistered.set(number(unregistered));
    }

    /// Sets the numbers of a Configuration's slots and claims on this node.
    pub fn slots(&self, configuration: &Key, counts: SlotCounts) {
        let labels = labels(configuration);
        self.unconfirmed.get_or_create(&labels).set(number(counts.unconfirmed));
        self.orphaned.get_or_create(&labels).set(number(counts.orphaned));
        self.unseen.get_or_create(&labels).set(number(counts.unseen));
    }

    /// Sets whether the Node object of this node is missing.
    pub fn node_missing(&self, is_missing: bool) {
        self.node_missing.set(i64::from(is_missing));
    }

    /// A Configuration is gone.
    pub fn forget(&self, configuration: &Key) {
        let labels = labels(configuration);
        let devices = [&self.instances, &self.online, &self.ready, &self.complete];
        for family in devices.into_iter().chain([&self.unconfirmed, &self.orphaned, &self.unseen]) {
            family.remove(&labels);
        }
    }

    /// Counts a container's request for devices of an Instance or of a Configuration.
    pub fn claim(&self, of_instance: bool, granted: bool, took: Duration) {
        let resource = if of_instance { "instance" } else { "configuration" };
        let result = if granted { "Granted" } else { "Refused" };
        self.claims.get_or_create(&[("resource", resource.to_owned()), ("result", result.to_owned())]).inc();
        self.allocate_duration.observe(took.as_secs_f64());
    }

    /// Encodes all metrics as text (OpenMetrics 1.0).
    pub fn encode(&self) -> String {
        exposition(&self.registry)
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use akri_model::discovery::RoundError;

    use super::*;

    #[test]
    fn metrics_are_exported_by_name() {
        let metrics = Metrics::default();
        metrics.rounds.round("udev", None, Duration::from_millis(2));
        metrics.rounds.round("udev", Some(&RoundError::Trapped("x".into())), Duration::from_millis(2));
        let cam = Key::new("default", "cam");
        metrics.devices(&cam, DeviceCounts { instances: 3, online: 2 });
        metrics.conditions(&cam, true, false);
        metrics.progress(1, 2);
        metrics.claim(true, false, Duration::from_millis(1));
        let text = metrics.encode();
        for line in [
            r#"akri_discovery_rounds_total{handler="udev",result="Discovered"} 1"#,
            r#"akri_discovery_rounds_total{handler="udev",result="Trapped"} 1"#,
            r#"akri_discovery_round_duration_seconds_count{handler="udev"} 2"#,
            r#"akri_instances{namespace="default",configuration="cam"} 3"#,
            r#"akri_instances_online{namespace="default",configuration="cam"} 2"#,
            r#"akri_configuration_ready{namespace="default",configuration="cam"} 1"#,
            r#"akri_configuration_complete{namespace="default",configuration="cam"} 0"#,
            "akri_handlers_loading 1",
            "akri_resources_unregistered 2",
            r#"akri_claims_total{resource="instance",result="Refused"} 1"#,
            "akri_allocate_duration_seconds_count 1",
            "akri_slots_reclaimed_total 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        metrics.forget(&cam);
        assert!(!metrics.encode().contains("configuration=\"cam\""));
    }
}
