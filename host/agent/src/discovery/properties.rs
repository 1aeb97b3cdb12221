//! The properties of a Configuration with their values. Everything that asks a handler for devices, by rounds or by a
//! stream, takes them from here, and asks anew when they are others.

use std::sync::Arc;

use akri_model::configuration::Configuration;
use akri_model::property::Resolved;
use akri_model::resolve::{Unresolved, Values, resolve};
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;

/// What ConfigMaps and Secrets hold now. Each clone sees every change for itself.
#[derive(Debug, Clone)]
pub struct Properties {
    values: watch::Receiver<Arc<Values>>,
}

/// A Configuration's properties at one moment.
pub type Answer = Result<Arc<Resolved>, Unresolved>;

impl Properties {
    /// From [`crate::cluster::Cluster::values`].
    pub fn new(values: watch::Receiver<Arc<Values>>) -> Self {
        Self { values }
    }

    /// What the properties are now.
    pub fn of(&mut self, configuration: &Configuration) -> Answer {
        let values = self.values.borrow_and_update().clone();
        resolve(&configuration.properties, &values).map(Arc::new)
    }

    /// Waits until they are others than they were, and says what they are.
    ///
    /// # Errors
    /// If they can't change any more.
    pub async fn other_than(&mut self, was: &Answer, configuration: &Configuration) -> Result<Answer, RecvError> {
        loop {
            self.values.changed().await?;
            let now = self.of(configuration);
            if now != *was {
                return Ok(now);
            }
        }
    }
}
