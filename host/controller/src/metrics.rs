//! The metrics of the controller in the OpenMetrics format.

use std::time::Duration;

use akri_kube::metrics::{MetricDoc, MetricSet};
use akri_model::names::Key;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::object_index::{BrokerCounts, SlotCounts};
use crate::work::Work;

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    set: MetricSet,
    reconciles: Family<[(&'static str, &'static str); 2], Counter>,
    duration: Histogram,
    waiting: Gauge,
    leads: Gauge,
    unreadable: Gauge,
    of_absent_nodes: Gauge,
    brokers: Family<[(&'static str, String); 3], Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut akri = MetricSet::new("akri_controller");
        let absent =
            "slots of nodes that do not exist, whose agents do not run, or that are not among the Instance's `nodes`";
        let unreadable = "slots whose usage names no node; nobody may claim them";
        let brokers = "brokers of a Configuration: `desired`, `running`, `failing`";
        Self {
            reconciles: akri.add("reconciles", &["kind", "result"], "reconciled objects: `Succeeded` or `Failed`"),
            duration: akri.add_made(
                "reconcile_duration_seconds",
                &[],
                "time a reconcile takes",
                Histogram::new(exponential_buckets(0.001, 4.0, 9)),
            ),
            waiting: akri.add("queue_length", &[], "objects that wait for a reconcile"),
            leads: akri.add("leads", &[], "1 if this replica works"),
            unreadable: akri.add("slots_unreadable", &[], unreadable),
            of_absent_nodes: akri.add("slots_of_absent_nodes", &[], absent),
            brokers: akri.add("brokers", &["namespace", "configuration", "state"], brokers),
            set: akri,
        }
    }
}

/// Returns the documentation of the controller's own metrics.
pub fn metric_docs() -> Vec<MetricDoc> {
    Metrics::default().set.docs().to_vec()
}

impl Metrics {
    /// Counts a reconcile.
    pub(crate) fn reconciled(&self, work: &Work, succeeded: bool, took: Duration) {
        let result = if succeeded { "Succeeded" } else { "Failed" };
        self.reconciles.get_or_create(&[("kind", work.kind()), ("result", result)]).inc();
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
                let state = ("state", state.to_owned());
                let labels = [("namespace", namespace.clone()), ("configuration", configuration.clone()), state];
                self.brokers.get_or_create(&labels).set(number(count));
            }
        }
        self.set.encode()
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
