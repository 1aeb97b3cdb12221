//! What users are told about component handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use akri_api::{HandlerKind, HandlerState};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::registry::{Handler, Handlers, Refused};
use super::standing::{self, Standings, Users};
use crate::cluster::{HandlerReport, ReportedCondition};
use crate::publisher::Publisher;

/// Reports how the handlers of a registry are doing, until it is dropped.
#[derive(Debug)]
pub struct Reporter {
    task: JoinHandle<()>,
}

impl Reporter {
    /// Starts. Only what is new is published.
    pub fn start(handlers: watch::Receiver<Arc<Handlers>>, standings: &Standings, publisher: Publisher) -> Self {
        Self { task: tokio::spawn(run(handlers, standings.told(), publisher)) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    mut handlers: watch::Receiver<Arc<Handlers>>,
    mut told: watch::Receiver<BTreeMap<String, Users>>,
    publisher: Publisher,
) {
    let mut reported: BTreeMap<String, HandlerReport> = BTreeMap::new();
    if handlers.wait_for(|handlers| handlers.settled).await.is_err() {
        return;
    }
    loop {
        let now = reports(&handlers.borrow_and_update().clone(), &told.borrow_and_update().clone());
        for report in now.values().filter(|report| reported.get(&report.name) != Some(*report)) {
            publisher.report_handler(report.clone());
        }
        reported.keys().filter(|name| !now.contains_key(*name)).for_each(|name| publisher.forget_handler(name));
        reported = now;
        let changed = tokio::select! {
            changed = handlers.changed() => changed,
            changed = told.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// A report of each DiscoveryHandler object.
fn reports(handlers: &Handlers, told: &BTreeMap<String, Users>) -> BTreeMap<String, HandlerReport> {
    let running: BTreeMap<&str, &Handler> =
        handlers.ready.values().map(|handler| (handler.object.as_str(), &**handler)).collect();
    let objects: BTreeSet<&str> = running.keys().copied().chain(handlers.refused.keys().map(String::as_str)).collect();
    let nobody = Users::new();
    let report = |object: &str| {
        let users = told.get(object).unwrap_or(&nobody);
        (object.to_owned(), report(object, running.get(object).copied(), handlers.refused.get(object), users))
    };
    objects.into_iter().map(report).collect()
}

fn report(object: &str, running: Option<&Handler>, refused: Option<&Refused>, users: &Users) -> HandlerReport {
    HandlerReport {
        name: object.to_owned(),
        handler: running.map(|handler| handler.name().to_owned()),
        kind: HandlerKind::Component,
        digest: running.map(|handler| handler.component.digest().to_owned()),
        endpoint: None,
        state: match running {
            None => HandlerState::Refused,
            Some(_) if users.is_empty() => HandlerState::Waiting,
            Some(_) => HandlerState::Active,
        },
        last_result: standing::result(users),
        devices: users.values().map(|standing| standing.devices).sum(),
        conditions: conditions(running.is_some(), refused),
    }
}

fn conditions(runs: bool, refused: Option<&Refused>) -> Vec<ReportedCondition> {
    let condition = |kind, holds, reason: &str, message: &str| ReportedCondition {
        kind,
        holds: Some(holds),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let (reason, message) = refused.map_or(("Loaded", ""), |refused| (refused.reason, &refused.message));
    vec![
        condition("Ready", runs, if runs { "Loaded" } else { reason }, if runs { "" } else { message }),
        condition("Accepted", refused.is_none(), reason, message),
    ]
}
