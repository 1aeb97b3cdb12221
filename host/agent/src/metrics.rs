//! The metrics of the agent in the OpenMetrics format: names begin with `akri_`, units are base units.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use akri_discovery::round_metrics::RoundMetrics;
use akri_model::summary::DeviceCounts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// All metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    /// The metrics of rounds.
    pub rounds: RoundMetrics,
    instances: Family<Configuration, Gauge>,
    online: Family<Configuration, Gauge>,
    ready: Family<Configuration, Gauge>,
    complete: Family<Configuration, Gauge>,
    handlers_loading: Gauge,
    unregistered: Gauge,
    unconfirmed: Family<Configuration, Gauge>,
    orphaned: Family<Configuration, Gauge>,
    unseen: Family<Configuration, Gauge>,
    node_missing: Gauge,
    sync_failures: Counter,
    claims: Family<Claim, Counter>,
    allocate_duration: Histogram,
    reclaimed: Counter,
    used_twice: Counter,
    registrations: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Configuration {
    namespace: String,
    configuration: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Claim {
    resource: &'static str,
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            rounds: RoundMetrics::default(),
            instances: Family::default(),
            online: Family::default(),
            ready: Family::default(),
            complete: Family::default(),
            handlers_loading: Gauge::default(),
            unregistered: Gauge::default(),
            unconfirmed: Family::default(),
            orphaned: Family::default(),
            unseen: Family::default(),
            node_missing: Gauge::default(),
            sync_failures: Counter::default(),
            claims: Family::default(),
            allocate_duration: Histogram::new(exponential_buckets(0.0005, 2.0, 13)),
            reclaimed: Counter::default(),
            used_twice: Counter::default(),
            registrations: Counter::default(),
        };
        metrics.register();
        metrics
    }
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

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let akri = registry.sub_registry_with_prefix("akri");
        self.rounds.register(akri);
        akri.register("instances", "Instances of this node by Configuration", self.instances.clone());
        akri.register("instances_online", "Those of them that are online", self.online.clone());
        akri.register("configuration_ready", "1 if the condition Ready holds on this node", self.ready.clone());
        let help = "1 if the condition DiscoveryComplete holds on this node";
        akri.register("configuration_complete", help, self.complete.clone());
        let help = "DiscoveryHandlers that are neither loaded nor refused";
        akri.register("handlers_loading", help, self.handlers_loading.clone());
        let help = "Resources that are not registered with the kubelet";
        akri.register("resources_unregistered", help, self.unregistered.clone());
        let help = "Slots whose claim or release the API server has not confirmed";
        akri.register("slots_unconfirmed", help, self.unconfirmed.clone());
        akri.register("claims_orphaned", "Claims of containers whose device has no Instance", self.orphaned.clone());
        let help = "Claims that no container was seen to use for 10 minutes";
        akri.register("claims_unseen", help, self.unseen.clone());
        akri.register("node_missing", "1 if the Node object of this node is missing", self.node_missing.clone());
        let help = "Attempts to agree with the API server about slots that failed and are repeated";
        akri.register("slot_sync_failures", help, self.sync_failures.clone());
        akri.register(
            "claims",
            "Containers that asked for devices, by kind of resource and result",
            self.claims.clone(),
        );
        let duration = self.allocate_duration.clone();
        akri.register_with_unit("allocate_duration", "Time an Allocate takes", Unit::Seconds, duration);
        akri.register("slots_reclaimed", "Slots given back since no container uses them", self.reclaimed.clone());
        akri.register("slots_used_twice", "Device plugin ids seen in two pods at once", self.used_twice.clone());
        akri.register("plugin_registrations", "Resources registered with the kubelet", self.registrations.clone());
    }

    /// Sets the number of Instances of a Configuration on this node.
    pub fn devices(&self, namespace: &str, configuration: &str, devices: DeviceCounts) {
        let labels = Configuration { namespace: namespace.to_owned(), configuration: configuration.to_owned() };
        self.instances.get_or_create(&labels).set(number(devices.instances));
        self.online.get_or_create(&labels).set(number(devices.online));
    }

    /// Sets which conditions of a Configuration hold on this node.
    pub fn conditions(&self, namespace: &str, configuration: &str, ready: bool, complete: bool) {
        let labels = Configuration { namespace: namespace.to_owned(), configuration: configuration.to_owned() };
        self.ready.get_or_create(&labels).set(i64::from(ready));
        self.complete.get_or_create(&labels).set(i64::from(complete));
    }

    /// Sets how many handlers are being loaded, and how many resources are not registered.
    pub fn progress(&self, loading: usize, unregistered: usize) {
        self.handlers_loading.set(number(loading));
        self.unregistered.set(number(unregistered));
    }

    /// Sets the numbers of a Configuration's slots and claims on this node.
    pub fn slots(&self, namespace: &str, configuration: &str, counts: SlotCounts) {
        let labels = Configuration { namespace: namespace.to_owned(), configuration: configuration.to_owned() };
        self.unconfirmed.get_or_create(&labels).set(number(counts.unconfirmed));
        self.orphaned.get_or_create(&labels).set(number(counts.orphaned));
        self.unseen.get_or_create(&labels).set(number(counts.unseen));
    }

    /// Sets whether the Node object of this node is missing.
    pub fn node_missing(&self, is_missing: bool) {
        self.node_missing.set(i64::from(is_missing));
    }

    /// An attempt to agree with the API server failed.
    pub fn sync_failed(&self) {
        self.sync_failures.inc();
    }

    /// A Configuration is gone.
    pub fn forget(&self, namespace: &str, configuration: &str) {
        let labels = Configuration { namespace: namespace.to_owned(), configuration: configuration.to_owned() };
        let devices = [&self.instances, &self.online, &self.ready, &self.complete];
        for family in devices.into_iter().chain([&self.unconfirmed, &self.orphaned, &self.unseen]) {
            family.remove(&labels);
        }
    }

    /// Counts a container's request for devices of an Instance or of a Configuration.
    pub fn claim(&self, of_instance: bool, granted: bool, took: Duration) {
        let resource = if of_instance { "instance" } else { "configuration" };
        let result = if granted { "Granted" } else { "Refused" };
        self.claims.get_or_create(&Claim { resource, result }).inc();
        self.allocate_duration.observe(took.as_secs_f64());
    }

    /// Counts a slot released because no container uses it.
    pub fn reclaimed(&self) {
        self.reclaimed.inc();
    }

    /// Counts a device ID allocated to two pods at once.
    pub fn used_twice(&self) {
        self.used_twice.inc();
    }

    /// Returns the counter of registrations with the kubelet.
    pub fn registrations(&self) -> Counter {
        self.registrations.clone()
    }

    /// Encodes all metrics as text (OpenMetrics 1.0).
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = encode(&mut text, &registry); // writing to a String can't fail
        text
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
        metrics.devices("default", "cam", DeviceCounts { instances: 3, online: 2 });
        metrics.conditions("default", "cam", true, false);
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
        metrics.forget("default", "cam");
        assert!(!metrics.encode().contains("configuration=\"cam\""));
    }
}
