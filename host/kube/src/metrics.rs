//! Registration and encoding of metrics.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Metric, Registry};

/// Returns a metric that is registered.
pub fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Encodes all metrics as text (OpenMetrics 1.0).
pub fn exposition(registry: &Registry) -> String {
    let mut text = String::new();
    let _ = encode(&mut text, registry); // writing to a String can't fail
    text
}
