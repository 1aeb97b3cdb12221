//! Conversion of reports to the status of objects.

use akri_api::{Configuration, DiscoveryHandler, condition};
use akri_model::summary;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::{ConfigurationReport, HandlerReport};

/// Updates a Configuration's status from a report.
pub(super) fn of_configuration(
    report: &ConfigurationReport,
    mut object: Configuration,
    now: Timestamp,
) -> Configuration {
    object.metadata.namespace = Some(report.key.namespace.clone());
    object.metadata.name = Some(report.key.name.clone());
    let status = object.status.get_or_insert_default();
    status.observed_generation = Some(report.generation);
    status.instances = i64::try_from(report.status.devices.instances).unwrap_or(i64::MAX);
    let problem = report.status.problem().map(|problem| (String::new(), problem));
    let conditions =
        summary::configuration(None, &problem.into_iter().collect(), report.status.devices, report.status.unknown());
    condition::replace(&mut status.conditions, &conditions, None, now);
    object
}

/// Updates a DiscoveryHandler's status from a report.
pub(super) fn of_handler(report: &HandlerReport, mut object: DiscoveryHandler, now: Timestamp) -> DiscoveryHandler {
    object.metadata.name = Some(report.name.clone());
    let status = object.status.get_or_insert_default();
    if status.state != report.state || status.since.is_none() {
        status.since = Some(Time(now));
    }
    status.handler.clone_from(&report.handler);
    status.kind = report.kind;
    status.digest.clone_from(&report.digest);
    status.endpoint.clone_from(&report.endpoint);
    status.state = report.state;
    status.last_result.clone_from(&report.last_result);
    status.devices = i64::try_from(report.devices).unwrap_or(i64::MAX);
    condition::replace(&mut status.conditions, &report.conditions, None, now);
    object
}

#[cfg(test)]
mod tests {
    use akri_api::{HandlerKind, HandlerState};

    use super::*;

    #[test]
    fn handler_condition_keeps_its_transition_time() {
        let report = |state, devices| HandlerReport {
            name: "udev".to_owned(),
            handler: Some("udev".to_owned()),
            kind: HandlerKind::Component,
            digest: Some("00".to_owned()),
            endpoint: None,
            state,
            last_result: None,
            devices,
            conditions: vec![],
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let waiting = of_handler(&report(HandlerState::Waiting, 0), DiscoveryHandler::default(), at(1));
        let active = of_handler(&report(HandlerState::Active, 0), waiting.clone(), at(2));
        let found = of_handler(&report(HandlerState::Active, 3), active.clone(), at(3));
        let since = |object: &DiscoveryHandler| object.status.as_ref().unwrap().since.clone().unwrap().0;
        assert_eq!([since(&waiting), since(&active), since(&found)], [at(1), at(2), at(2)]);
        assert_eq!(found.status.unwrap().devices, 3);
    }
}
