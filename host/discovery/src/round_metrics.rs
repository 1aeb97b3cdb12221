//! Metrics of rounds.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use akri_model::discovery::RoundError;
use akri_model::names::Key;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The name and value of a label.
type Label = (&'static str, String);

/// A family of histograms by handler.
type Durations = Family<[Label; 1], Histogram, fn() -> Histogram>;

/// Returns the labels of a Configuration.
pub fn labels_of(configuration: &Key) -> [Label; 2] {
    let Key { namespace, name } = configuration.clone();
    [("namespace", namespace), ("configuration", name)]
}

/// The rounds of components. Clones share the metrics.
#[derive(Debug, Clone)]
pub struct RoundMetrics {
    /// Their number, by handler and result.
    pub rounds: Family<[Label; 2], Counter>,
    /// The time they take.
    pub durations: Durations,
    /// The time at which the last good one ended, in Unix seconds, by Configuration.
    pub last_success: Family<[Label; 2], Gauge<f64, AtomicU64>>,
}

impl Default for RoundMetrics {
    fn default() -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(exponential_buckets(0.0001, 4.0, 10))) as _);
        Self { rounds: Family::default(), durations, last_success: Family::default() }
    }
}

impl RoundMetrics {
    /// Counts a round; `None` is success.
    pub fn round(&self, configuration: &Key, handler: &str, error: Option<&RoundError>, took: Duration) {
        let result = error.map_or("Discovered", RoundError::reason);
        let handler = ("handler", handler.to_owned());
        self.rounds.get_or_create(&[handler.clone(), ("result", result.to_owned())]).inc();
        self.durations.get_or_create(&[handler]).observe(took.as_secs_f64());
        if error.is_none() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_success.get_or_create(&labels_of(configuration)).set(now.as_secs_f64());
        }
    }

    /// Forgets a Configuration for which no rounds run any more.
    pub fn forget(&self, configuration: &Key) {
        self.last_success.remove(&labels_of(configuration));
    }
}
