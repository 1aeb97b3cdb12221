//! Resolved properties of Configurations. Rounds and streams both take them from here, and restart when they change.

use std::sync::Arc;

use akri_model::configuration::Configuration;
use akri_model::resolve::{Resolution, Values, resolve};
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;

/// The values of ConfigMaps and Secrets. Each clone tracks changes independently.
#[derive(Debug, Clone)]
pub struct Properties {
    values: watch::Receiver<Arc<Values>>,
}

impl Properties {
    /// Wraps the values of [`akri_cluster::Cluster::values`].
    pub fn new(values: watch::Receiver<Arc<Values>>) -> Self {
        Self { values }
    }

    /// Resolves the properties of a Configuration.
    pub fn of(&mut self, configuration: &Configuration) -> Resolution {
        let values = self.values.borrow_and_update().clone();
        resolve(&configuration.properties, &values).map(Arc::new)
    }

    /// Waits until the resolved properties differ from `was`, and returns them.
    ///
    /// # Errors
    /// If the values can't change any more.
    pub async fn other_than(
        &mut self,
        was: &Resolution,
        configuration: &Configuration,
    ) -> Result<Resolution, RecvError> {
        loop {
            self.values.changed().await?;
            let now = self.of(configuration);
            if now != *was {
                return Ok(now);
            }
        }
    }
}
