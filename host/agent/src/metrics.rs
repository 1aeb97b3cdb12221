//! The metrics of the agent in the OpenMetrics format: names begin with `akri_`, units are base units.

use std::sync::Arc;
use std::time::Duration;

use akri_discovery::round_metrics::{RoundMetrics, labels_of};
use akri_kube::metrics::MetricSet;
use akri_model::names::Key;
use akri_model::summary::DeviceCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// A name and a value.
type Label = (&'static str, String);
/// A gauge for each Configuration.
type ByConfiguration = Family<[Label; 2], Gauge>;

/// All metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Their documentation and encoding.
    pub set: Arc<MetricSet>,
    /// The metrics of rounds.
    pub rounds: RoundMetrics,
    instances: ByConfiguration,
    online: ByConfiguration,
    ready: ByConfiguration,
    complete: ByConfiguration,
    pub(crate) handlers_loading: Gauge,
    pub(crate) handlers_refused: Gauge,
    pub(crate) handlers_quarantined: Gauge,
    pub(crate) unregistered: Gauge,
    unconfirmed: ByConfiguration,
    orphaned: ByConfiguration,
    unseen: ByConfiguration,
    pub(crate) node_missing: Gauge,
    /// Attempts to agree with the API server that failed.
    pub sync_failures: Counter,
    claims: Family<[Label; 2], Counter>,
    allocate_duration: Histogram,
    pub(crate) plug_to_offer: Histogram,
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
        let mut akri = MetricSet::new("akri");
        let (rounds, labels) = (RoundMetrics::default(), &["namespace", "configuration"]);
        let help = "rounds of components; `result` is `Discovered` or the reason of the failure";
        akri.add_made("discovery_rounds", &["handler", "result"], help, rounds.rounds.clone());
        akri.add_made("discovery_round_duration_seconds", &["handler"], "duration of rounds", rounds.durations.clone());
        let (last, help) = ("discovery_last_success_timestamp_seconds", "end of the last good round of a component");
        akri.add_made(last, labels, help, rounds.last_success.clone());
        let (allocate, plug) = (exponential_buckets(0.0005, 2.0, 13), exponential_buckets(0.001, 3.0, 11));
        let (allocate, plug) = (Histogram::new(allocate), Histogram::new(plug));
        let claims = "containers that asked for devices: `instance` or `configuration`, `Granted` or `Refused`";
        let plugged = "time from a kernel event until a device that it brought is offered to the kubelet";
        let unconfirmed = "slots whose claim or release the API server has not confirmed";
        let quarantined = "Configurations whose handler rests after rounds that failed by its own fault";
        let unregistered = "resources that the kubelet has not registered; in local mode 0 without a kubelet";
        let failures = "attempts to agree with the API server about slots that failed and are repeated";
        Self {
            rounds,
            instances: akri.add("instances", labels, "Instances of this node"),
            online: akri.add("instances_online", labels, "those of them that are online"),
            ready: akri.add("configuration_ready", labels, "1 if `Ready` holds on this node"),
            complete: akri.add("configuration_complete", labels, "1 if `DiscoveryComplete` holds on this node"),
            unconfirmed: akri.add("slots_unconfirmed", labels, unconfirmed),
            orphaned: akri.add("claims_orphaned", labels, "claims of containers whose device has no Instance"),
            unseen: akri.add("claims_unseen", labels, "claims that no container was seen to use for 10 minutes"),
            handlers_loading: akri.add("handlers_loading", &[], "DiscoveryHandlers neither loaded nor refused"),
            handlers_refused: akri.add("handlers_refused", &[], "DiscoveryHandlers that are refused as they are now"),
            handlers_quarantined: akri.add("handlers_quarantined", &[], quarantined),
            unregistered: akri.add("resources_unregistered", &[], unregistered),
            node_missing: akri.add("node_missing", &[], "1 if the Node object of this node is missing"),
            sync_failures: akri.add("slot_sync_failures", &[], failures),
            claims: akri.add("claims", &["resource", "result"], claims),
            allocate_duration: akri.add_made("allocate_duration_seconds", &[], "duration of Allocate calls", allocate),
            plug_to_offer: akri.add_made("plug_to_offer_seconds", &[], plugged, plug),
            reclaimed: akri.add("slots_reclaimed", &[], "slots released because no container uses them"),
            used_twice: akri.add("slots_used_twice", &[], "device IDs seen in two pods at once"),
            registrations: akri.add("plugin_registrations", &[], "resources registered with the kubelet"),
            set: Arc::new(akri),
        }
    }
}

impl Metrics {
    /// Sets the numbers of a Configuration's Instances, slots and claims on this node.
    pub fn totals(&self, configuration: &Key, devices: DeviceCounts, slots: SlotCounts) {
        let labels = labels_of(configuration);
        self.instances.get_or_create(&labels).set(number(devices.instances));
        self.online.get_or_create(&labels).set(number(devices.online));
        self.unconfirmed.get_or_create(&labels).set(number(slots.unconfirmed));
        self.orphaned.get_or_create(&labels).set(number(slots.orphaned));
        self.unseen.get_or_create(&labels).set(number(slots.unseen));
    }

    /// Sets which conditions of a Configuration hold on this node.
    pub fn conditions(&self, configuration: &Key, ready: bool, complete: bool) {
        let labels = labels_of(configuration);
        self.ready.get_or_create(&labels).set(i64::from(ready));
        self.complete.get_or_create(&labels).set(i64::from(complete));
    }

    /// A Configuration is gone.
    pub fn forget(&self, configuration: &Key) {
        let labels = labels_of(configuration);
        let devices = [&self.instances, &self.online, &self.ready, &self.complete];
        for family in devices.into_iter().chain([&self.unconfirmed, &self.orphaned, &self.unseen]) {
            family.remove(&labels);
        }
        self.rounds.forget(configuration);
    }

    /// Counts a container's request for devices of an Instance or of a Configuration.
    pub fn claim(&self, of_instance: bool, granted: bool, took: Duration) {
        let resource = if of_instance { "instance" } else { "configuration" };
        let result = if granted { "Granted" } else { "Refused" };
        self.claims.get_or_create(&[("resource", resource.to_owned()), ("result", result.to_owned())]).inc();
        self.allocate_duration.observe(took.as_secs_f64());
    }
}

/// Returns the value of a gauge.
pub(crate) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use akri_model::discovery::RoundError;

    use super::*;

    #[test]
    fn metrics_are_exported_by_name() {
        let metrics = Metrics::default();
        let cam = Key::new("default", "cam");
        metrics.rounds.round(&cam, "udev", None, Duration::from_millis(2));
        metrics.rounds.round(&cam, "udev", Some(&RoundError::Trapped("x".into())), Duration::from_millis(2));
        let (devices, slots) =
            (DeviceCounts { instances: 3, online: 2 }, SlotCounts { unconfirmed: 5, orphaned: 6, unseen: 7 });
        metrics.totals(&cam, devices, slots);
        metrics.conditions(&cam, true, false);
        metrics.handlers_loading.set(1);
        metrics.handlers_refused.set(3);
        metrics.handlers_quarantined.set(4);
        metrics.unregistered.set(2);
        metrics.claim(true, false, Duration::from_millis(1));
        let text = metrics.set.encode();
        for line in [
            r#"akri_discovery_rounds_total{handler="udev",result="Discovered"} 1"#,
            r#"akri_discovery_rounds_total{handler="udev",result="Trapped"} 1"#,
            r#"akri_discovery_round_duration_seconds_count{handler="udev"} 2"#,
            r#"akri_instances{namespace="default",configuration="cam"} 3"#,
            r#"akri_instances_online{namespace="default",configuration="cam"} 2"#,
            r#"akri_configuration_ready{namespace="default",configuration="cam"} 1"#,
            r#"akri_configuration_complete{namespace="default",configuration="cam"} 0"#,
            r#"akri_discovery_last_success_timestamp_seconds{namespace="default",configuration="cam"} "#,
            r#"akri_slots_unconfirmed{namespace="default",configuration="cam"} 5"#,
            r#"akri_claims_orphaned{namespace="default",configuration="cam"} 6"#,
            r#"akri_claims_unseen{namespace="default",configuration="cam"} 7"#,
            "akri_handlers_loading 1",
            "akri_handlers_refused 3",
            "akri_handlers_quarantined 4",
            "akri_resources_unregistered 2",
            r#"akri_claims_total{resource="instance",result="Refused"} 1"#,
            "akri_allocate_duration_seconds_count 1",
            "akri_slots_reclaimed_total 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        metrics.forget(&cam);
        assert!(!metrics.set.encode().contains("configuration=\"cam\""));
    }
}
