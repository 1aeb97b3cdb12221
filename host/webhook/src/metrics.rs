//! The webhook's metrics, in the OpenMetrics format.

use std::sync::Arc;
use std::time::Duration;

use akri_kube::metrics::{exposition, registered};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The metrics. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    reviews: Family<Review, Counter>,
    duration: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let duration = Histogram::new(exponential_buckets(0.001, 2.0, 13));
        let help = "Reviews by result: allowed, denied or malformed";
        let reviews = registered(&mut registry, "akri_webhook_reviews", help);
        let name = "akri_webhook_review_duration";
        registry.register_with_unit(name, "Time from request to answer", Unit::Seconds, duration.clone());
        Self { registry: Arc::new(registry), reviews, duration }
    }
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn count(&self, result: &'static str, duration: Duration) {
        self.reviews.get_or_create(&Review { result }).inc();
        self.duration.observe(duration.as_secs_f64());
    }

    /// All of them as text.
    pub(crate) fn encode(&self) -> String {
        exposition(&self.registry)
    }
}
