//! Conversion of reports to the status of objects.

use akri_api::{Configuration, DiscoveryHandler, DiscoveryHandlerStatus, condition};
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
    let problem = report.status.problem_and_left_out().map(|problem| (String::new(), problem));
    let conditions =
        summary::configuration(None, &problem.into_iter().collect(), report.status.devices, report.status.unknown());
    let before = std::mem::take(&mut status.conditions);
    status.conditions = condition::replaced(before, &conditions, None, Some(report.generation), now);
    object
}

/// Updates a DiscoveryHandler's status from a report.
pub(super) fn of_handler(report: &HandlerReport, mut object: DiscoveryHandler, now: Timestamp) -> DiscoveryHandler {
    object.metadata.name = Some(report.name.clone());
    let before = object.status.take().unwrap_or_default();
    let since = before.since.filter(|_| before.state == report.status.state);
    let conditions = condition::replaced(before.conditions, &report.conditions, None, object.metadata.generation, now);
    let since = since.or(Some(Time(now)));
    object.status = Some(DiscoveryHandlerStatus { since, conditions, ..report.status.clone() });
    object
}

#[cfg(test)]
mod tests {
    use akri_api::HandlerState;

    use super::*;

    #[test]
    fn handler_condition_keeps_its_transition_time() {
        let report = |state, devices| HandlerReport {
            name: "udev".to_owned(),
            looked_at: None,
            status: DiscoveryHandlerStatus { state, devices, ..DiscoveryHandlerStatus::default() },
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
