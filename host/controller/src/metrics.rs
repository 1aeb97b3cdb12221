//! The metrics of the controller in the OpenMetrics format.

use std::time::Duration;

use akri_kube::metrics::{exposition, registered};
use akri_model::names::Key;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::object_index::{BrokerCounts, SlotCounts};
use crate::work::Work;

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Family<Reconcile, Counter>,
    duration: Histogram,
    waiting: Gauge,
    leads: Gauge,
    unreadable: Gauge,
    of_absent_nodes: Gauge,
    brokers: Family<Brokers, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Brokers {
    namespace: String,
    configuration: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    kind: &'static str,
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let akri = registry.sub_registry_with_prefix("akri_controller");
        let duration = Histogram::new(exponential_buckets(0.001, 4.0, 9));
        akri.register_with_unit("reconcile_duration", "Time a reconcile takes", Unit::Seconds, duration.clone());
        let absent = "Slots of nodes that do not exist, whose agents do not run, or that have not joined the Instance";
        Self {
            reconciles: registered(akri, "reconciles", "Reconciles by kind of object and result"),
            duration,
            waiting: registered(akri, "queue_length", "Objects that wait for a reconcile"),
            leads: registered(akri, "leads", "Whether this controller is the leader"),
            unreadable: registered(akri, "slots_unreadable", "Slots whose usage names no node"),
            of_absent_nodes: registered(akri, "slots_of_absent_nodes", absent),
            brokers: registered(akri, "brokers", "Brokers by Configuration: desired, running, failing"),
            registry,
        }
    }
}

impl Metrics {
    /// Counts a reconcile.
    pub(crate) fn reconciled(&self, work: &Work, succeeded: bool, took: Duration) {
        let kind = work.kind();
        let result = if succeeded { "Succeeded" } else { "Failed" };
        self.reconciles.get_or_create(&Reconcile { kind, result }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Encodes all metrics as text (OpenMetrics 1.0). The values are those of now.
    pub(crate) fn encode(&self, waiting: usize, leads: bool, slots: SlotCounts, brokers: BrokerCounts) -> String {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.waiting.set(number(waiting));
        self.leads.set(i64::from(leads));
        self.unreadable.set(number(slots.unreadable));
        self.of_absent_nodes.set(number(slots.of_absent_nodes));
        self.brokers.clear(); // Configurations may be gone
        for (Key { namespace, name: configuration }, counts) in brokers {
            for (state, count) in
                [("desired", counts.desired), ("running", counts.running), ("failing", counts.failing)]
            {
                let labels = Brokers { namespace: namespace.clone(), configuration: configuration.clone(), state };
                self.brokers.get_or_create(&labels).set(number(count));
            }
        }
        exposition(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use akri_brokers::Counts;

    use super::*;

    #[test]
    fn metrics_are_exported_by_name() {
        let metrics = Metrics::default();
        metrics.reconciled(&Work::Instance(Key::new("default", "cam-1")), false, Duration::from_millis(2));
        let slots = SlotCounts { unreadable: 2, of_absent_nodes: 5 };
        let counts = Counts { desired: 3, running: 1, ..Counts::default() };
        let text = metrics.encode(3, true, slots, BrokerCounts::from([(Key::new("default", "cam"), counts)]));
        for line in [
            r#"akri_controller_reconciles_total{kind="Instance",result="Failed"} 1"#,
            "akri_controller_reconcile_duration_seconds_count 1",
            "akri_controller_queue_length 3",
            "akri_controller_leads 1",
            "akri_controller_slots_unreadable 2",
            "akri_controller_slots_of_absent_nodes 5",
            r#"akri_controller_brokers{namespace="default",configuration="cam",state="desired"} 3"#,
            r#"akri_controller_brokers{namespace="default",configuration="cam",state="running"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let text = metrics.encode(0, true, slots, BrokerCounts::new());
        assert!(!text.contains("cam"), "{text}");
    }
}
