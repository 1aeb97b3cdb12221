//! The status of a Configuration on this node, as its owner reports it.

use std::collections::{BTreeMap, BTreeSet};

use akri_cluster::ConfigurationReport;
use akri_model::configuration::Configuration;
use akri_model::configuration_status::ConfigurationStatus;
use akri_model::device::DeviceSet;
use akri_model::summary::DeviceCounts;
use tracing::{info, warn};

/// The parts of the status, and the last report.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) status: ConfigurationStatus,
    /// Devices without an Instance, with the reason.
    pub(super) unpublished: BTreeMap<String, String>,
    reported: Option<ConfigurationReport>,
}

impl Health {
    /// Forgets unpublished devices that are not in the newest set. Returns whether there were any.
    pub(super) fn retain_unpublished(&mut self, set: &DeviceSet) -> bool {
        let before = self.unpublished.len();
        let listed: BTreeSet<&str> = set.devices.iter().map(|device| device.id.as_str()).collect();
        self.unpublished.retain(|device, _| listed.contains(device.as_str()));
        self.unpublished.len() < before
    }

    /// Returns the report if it differs from the last one, and logs changed warnings.
    pub(super) fn report(
        &mut self,
        configuration: &Configuration,
        devices: DeviceCounts,
    ) -> Option<ConfigurationReport> {
        self.status.devices = devices;
        let first = self.unpublished.first_key_value();
        self.status.unpublished = first.map(|(device, error)| (self.unpublished.len(), device.clone(), error.clone()));
        let Configuration { key, uid, generation, .. } = configuration;
        let is_same = |last: &ConfigurationReport| (last.generation, &last.status) == (*generation, &self.status);
        if self.reported.as_ref().is_some_and(is_same) {
            return None;
        }
        let (key, uid, generation, status) = (key.clone(), uid.clone(), *generation, self.status.clone());
        let report = ConfigurationReport { key, uid, generation, status };
        log_warnings(self.reported.as_ref(), &report);
        self.reported = Some(report.clone());
        Some(report)
    }
}

/// Logs warnings of rounds each time that they change, and their end.
fn log_warnings(before: Option<&ConfigurationReport>, now: &ConfigurationReport) {
    let before = before.and_then(|report| report.status.warnings());
    match (before, now.status.warnings()) {
        (before, Some(warnings)) if before.as_ref() != Some(&warnings) => {
            warn!(configuration = %now.key, "discovery is incomplete: {warnings}");
        }
        (Some(_), None) if now.status.is_complete() => info!(configuration = %now.key, "discovery is complete again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use akri_model::configuration_status::DiscoveryStatus;
    use akri_model::device::Device;

    use super::*;

    const ONLINE: DeviceCounts = DeviceCounts { instances: 2, online: 2 };

    fn configuration() -> Configuration {
        let object = serde_json::json!({"metadata": {"name": "c"}, "spec": {"discoveryHandler": {"name": "h"}}});
        akri_api::configuration_to_model(&serde_json::from_value(object).unwrap())
    }

    fn take(health: &mut Health, ids: &[&str]) {
        let device = |id: &&str| Device { id: (*id).to_owned(), ..Device::default() };
        let set = DeviceSet { devices: ids.iter().map(device).collect(), ..DeviceSet::default() };
        health.status.discovery = DiscoveryStatus::found(&set);
        health.retain_unpublished(&set);
    }

    #[test]
    fn device_stays_unpublished_until_it_is_published_or_gone() {
        let mut health = Health::default();
        let unpublished = |health: &Health| health.unpublished.len();
        take(&mut health, &["a", "b"]);
        for device in ["a", "b"] {
            health.unpublished.insert(device.to_owned(), "no name is free".to_owned());
        }
        take(&mut health, &["a", "b"]);
        assert_eq!(unpublished(&health), 2, "the next try has not ended");
        health.unpublished.remove("a");
        assert_eq!(unpublished(&health), 1);
        take(&mut health, &["a"]);
        assert_eq!(unpublished(&health), 0);
    }

    #[test] // rule 34
    fn unchanged_status_is_not_reported() {
        let mut health = Health::default();
        assert!(health.report(&configuration(), ONLINE).is_some());
        assert!(health.report(&configuration(), ONLINE).is_none());
        take(&mut health, &[]);
        assert!(health.report(&configuration(), ONLINE).is_some());
        let offline = DeviceCounts { online: 0, ..ONLINE };
        assert!(health.report(&configuration(), offline).is_some());
    }
}
