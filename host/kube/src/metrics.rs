//! Registration, documentation and encoding of metrics.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::{api_metrics, process_metrics};

/// The units that names end in.
const UNITS: [(&str, Unit); 2] = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];

/// The names of labels.
pub type Labels = &'static [&'static str];

type Text = &'static str;

/// The documentation of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDoc {
    /// Its name, as that of a counter's samples.
    pub name: String,
    /// The names of its labels.
    pub labels: Labels,
    /// Its meaning, as `# HELP` has it.
    pub help: &'static str,
}

/// Metrics whose names begin with the same word, each with its documentation.
#[derive(Debug)]
pub struct MetricSet {
    prefix: &'static str,
    registry: Registry,
    docs: Vec<MetricDoc>,
}

impl MetricSet {
    /// Returns an empty set.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, registry: Registry::with_prefix(prefix), docs: Vec::new() }
    }

    /// Adds a metric, and returns it.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: Text, labels: Labels, help: Text) -> M {
        self.add_made(name, labels, help, M::default())
    }

    /// Adds a metric that can't be made by default, and returns it.
    pub fn add_made<M: Metric + Clone>(&mut self, name: Text, labels: Labels, help: Text, metric: M) -> M {
        let suffix = if matches!(metric.metric_type(), MetricType::Counter) { "_total" } else { "" };
        self.docs.push(MetricDoc { name: format!("{}_{name}{suffix}", self.prefix), labels, help });
        let unit = UNITS.into_iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, unit)));
        match unit {
            Some((name, unit)) => self.registry.register_with_unit(name, help, unit, metric.clone()),
            None => self.registry.register(name, help, metric.clone()),
        }
        metric
    }

    /// Returns the documentation of all.
    pub fn docs(&self) -> &[MetricDoc] {
        &self.docs
    }

    /// Encodes all metrics as text (OpenMetrics 1.0).
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry); // writing to a String can't fail
        text
    }
}

/// Returns the documentation of the metrics that every server of the product has.
pub fn common_docs() -> Vec<MetricDoc> {
    process_metrics::docs().chain(api_metrics::METRICS.set.docs().iter().cloned()).collect()
}
