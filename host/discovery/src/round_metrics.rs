//! Metrics of rounds.

use std::time::Duration;

use akri_model::discovery::RoundError;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The name and value of a label.
type Label = (&'static str, String);

/// The number of rounds and the time they take, by handler. Clones share them.
#[derive(Debug, Clone)]
pub struct RoundMetrics {
    rounds: Family<[Label; 2], Counter>,
    durations: Family<[Label; 1], Histogram, fn() -> Histogram>,
}

impl Default for RoundMetrics {
    fn default() -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(exponential_buckets(0.0001, 4.0, 10))) as _);
        Self { rounds: Family::default(), durations }
    }
}

impl RoundMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("discovery_rounds", "Rounds of discovery by handler and result", self.rounds.clone());
        let durations = self.durations.clone();
        registry.register_with_unit("discovery_round_duration", "Time a round takes", Unit::Seconds, durations);
    }

    /// Counts a round; `None` is success.
    pub fn round(&self, handler: &str, error: Option<&RoundError>, took: Duration) {
        let result = error.map_or("Discovered", RoundError::reason);
        let handler = ("handler", handler.to_owned());
        self.rounds.get_or_create(&[handler.clone(), ("result", result.to_owned())]).inc();
        self.durations.get_or_create(&[handler]).observe(took.as_secs_f64());
    }
}
