//! Loads that failed for reasons that may pass: an image could not be pulled, or the sandbox process failed.

use std::collections::BTreeMap;

use akri_api::ComponentSource;
use akri_model::retry::{Backoff, RetryPolicy, jitter};
use tokio::time::Instant;

use crate::images::PullSecrets;

/// The loads to try again, by object.
#[derive(Default)]
pub(crate) struct LoadRetries(pub(crate) BTreeMap<String, LoadRetry>);

pub(crate) struct LoadRetry {
    source: ComponentSource,
    /// The pull secrets with which it failed.
    secrets: PullSecrets,
    backoff: Backoff,
    /// The time of the next attempt.
    at: Instant,
}

impl LoadRetries {
    /// Records that the load of an object failed with these pull secrets.
    pub(crate) fn failed(&mut self, object: &str, source: &ComponentSource, secrets: PullSecrets) {
        let before = self.0.remove(object).filter(|before| before.source == *source);
        let mut backoff = before.map_or(Backoff::new(RetryPolicy::LOAD), |before| before.backoff);
        let at = Instant::now() + backoff.failed(jitter());
        self.0.insert(object.to_owned(), LoadRetry { source: source.clone(), secrets, backoff, at });
    }

    /// Returns whether an image is not to be tried yet. A file may be another one now, and costs no registry anything.
    pub(crate) fn is_early(&self, object: &str, source: &ComponentSource) -> bool {
        let is_early =
            |retry: &LoadRetry| retry.source.image().is_some() && retry.source == *source && retry.at > Instant::now();
        self.0.get(object).is_some_and(is_early)
    }

    /// Ends the pauses of loads whose own pull secrets are others than when they failed.
    pub(crate) fn secrets_changed(&mut self, current: impl Fn(&ComponentSource) -> PullSecrets) {
        for retry in self.0.values_mut() {
            let secrets = current(&retry.source);
            if secrets != retry.secrets {
                (retry.secrets, retry.at) = (secrets, Instant::now());
            }
        }
    }

    /// Returns the time of the next attempt among the objects that are idle.
    pub(crate) fn next(&self, is_idle: impl Fn(&String) -> bool) -> Option<Instant> {
        self.0.iter().filter(|(object, _)| is_idle(object)).map(|(_, retry)| retry.at).min()
    }

    /// Returns the objects whose time has come.
    pub(crate) fn due(&self) -> Vec<String> {
        let now = Instant::now();
        self.0.iter().filter(|(_, retry)| retry.at <= now).map(|(object, _)| object.clone()).collect()
    }

    /// Sets the time of all attempts.
    #[cfg(test)]
    pub(crate) fn postpone(&mut self, at: Instant) {
        self.0.values_mut().for_each(|retry| retry.at = at);
    }
}
