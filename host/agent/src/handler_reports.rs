//! Reports of component handlers, for the status of DiscoveryHandlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_api::{DiscoveryHandlerStatus, HandlerState};
use akri_cluster::{HandlerReport, Report};
use akri_discovery::handler_activity::{self, HandlerUses};
use akri_discovery::load_progress::LoadStep;
use akri_discovery::registry::{Handler, Handlers, Refused};
use akri_model::names::Key;
use akri_model::summary::{ConditionState, Truth};
use tokio::sync::watch;

use crate::publisher::Publisher;

/// Reports the state of the handlers of a registry. Only changes are published.
pub(crate) async fn run(
    mut handlers: watch::Receiver<Arc<Handlers>>,
    mut activity: watch::Receiver<BTreeMap<String, HandlerUses>>,
    publisher: Publisher,
) {
    let mut reported: BTreeMap<String, HandlerReport> = BTreeMap::new();
    loop {
        let now = reports(&handlers.borrow_and_update().clone(), &activity.borrow_and_update().clone());
        for report in now.values().filter(|report| reported.get(&report.name) != Some(*report)) {
            publisher.report(Report::Handler(report.clone()));
        }
        reported
            .keys()
            .filter(|name| !now.contains_key(*name))
            .for_each(|name| publisher.forget(Key::new("", &**name)));
        reported = now;
        let changed = tokio::select! {
            changed = handlers.changed() => changed,
            changed = activity.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Returns a report for each DiscoveryHandler object.
fn reports(handlers: &Handlers, activity: &BTreeMap<String, HandlerUses>) -> BTreeMap<String, HandlerReport> {
    let running: BTreeMap<&str, &Handler> =
        handlers.ready.values().map(|handler| (handler.object.as_str(), &**handler)).collect();
    let others = handlers.refused.keys().chain(handlers.loading.keys()).map(String::as_str);
    let objects: BTreeSet<&str> = running.keys().copied().chain(others).collect();
    let nobody = HandlerUses::new();
    let report = |object: &str| {
        let users = activity.get(object).unwrap_or(&nobody);
        let running = running.get(object).copied();
        let mut report = report(object, running, handlers.refused.get(object), users);
        report.looked_at = handlers.looked_at.get(object).cloned();
        if let Some(step) = handlers.loading.get(object).filter(|_| running.is_none()) {
            report.status.state = HandlerState::Loading;
            report.conditions = loading(*step);
        }
        (object.to_owned(), report)
    };
    objects.into_iter().map(report).collect()
}

fn report(object: &str, running: Option<&Handler>, refused: Option<&Refused>, users: &HandlerUses) -> HandlerReport {
    HandlerReport {
        name: object.to_owned(),
        looked_at: None,
        status: DiscoveryHandlerStatus {
            handler: running.map(|handler| handler.name().to_owned()),
            digest: running.map(|handler| handler.component.digest().to_owned()),
            state: match running {
                None => HandlerState::Refused,
                Some(_) if users.is_empty() => HandlerState::Waiting,
                Some(_) => HandlerState::Active,
            },
            last_result: handler_activity::overall_result(users),
            devices: i64::try_from(users.values().map(|result| result.devices).sum::<usize>()).unwrap_or(i64::MAX),
            ..DiscoveryHandlerStatus::default()
        },
        conditions: conditions(running.is_some(), refused),
    }
}

fn loading(step: LoadStep) -> Vec<ConditionState> {
    let (reason, remark) = match step {
        LoadStep::Pulling(_) => ("Pulling", ""),
        LoadStep::Compiling => ("Compiling", ", within limits.compile of the DiscoveryHandler"),
    };
    vec![ConditionState::new("Ready", Truth::False, reason, &format!("the component {step}{remark}"))]
}

fn conditions(runs: bool, refused: Option<&Refused>) -> Vec<ConditionState> {
    let condition = |kind, holds, reason: &str, message: &str| {
        ConditionState::new(kind, if holds { Truth::True } else { Truth::False }, reason, message)
    };
    let (reason, message) = refused.map_or(("Loaded", ""), |refused| (refused.reason, &refused.message));
    vec![
        condition("Ready", runs, if runs { "Loaded" } else { reason }, if runs { "" } else { message }),
        condition("Accepted", refused.is_none(), reason, message),
    ]
}
