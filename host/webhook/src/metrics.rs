//! The webhook's metrics, in the OpenMetrics format.

use std::sync::Arc;
use std::time::Duration;

use akri_kube::metrics::{MetricDoc, MetricSet};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The metrics. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    set: Arc<MetricSet>,
    reviews: Family<Review, Counter>,
    duration: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut akri = MetricSet::new("akri_webhook");
        let duration = Histogram::new(exponential_buckets(0.001, 2.0, 13));
        Self {
            reviews: akri.add("reviews", &["result"], "reviews: `allowed`, `denied` or `malformed`"),
            duration: akri.add_made("review_duration_seconds", &[], "time from request to answer", duration),
            set: Arc::new(akri),
        }
    }
}

/// Returns the documentation of the webhook's own metrics.
pub fn metric_docs() -> Vec<MetricDoc> {
    Metrics::default().set.docs().to_vec()
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn count(&self, result: &'static str, duration: Duration) {
        self.reviews.get_or_create(&Review { result }).inc();
        self.duration.observe(duration.as_secs_f64());
    }

    /// All of them as text.
    pub(crate) fn encode(&self) -> String {
        self.set.encode()
    }
}
