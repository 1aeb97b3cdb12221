//! Totals over the Instances of a Configuration, and its status.

use std::time::Duration;

use akri_cluster::Report;
use akri_model::claim_machine::{ManagedInstance, Target};
use akri_model::configuration_status::DiscoveryStatus;
use akri_model::instance::Online;
use akri_model::names::slot_name;
use akri_model::slots::{Claim, SlotTable};
use akri_model::summary::DeviceCounts;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::OwnerState;
use crate::metrics::SlotCounts;

/// The pause after a look at all Instances, as a multiple of its time.
const PAUSE: u32 = 50;

/// Its longest duration: time that the processor was taken away is no work.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Time after which a claim that no container is seen to use is counted.
const UNSEEN_FOR: Duration = Duration::from_secs(600);

/// Cost of a status write. The budget refills by one a second: twenty writes at once, then one every five seconds.
pub(super) const REPORT: u64 = 5;

/// Totals over all Instances. Computing them for thousands of Instances after each change would take most of the time,
/// so the pause until the next time is a multiple of the last duration.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) devices: DeviceCounts,
    /// The time when the next missing device loses its Instance.
    pub(super) expiry: Option<Instant>,
    /// The time of the next computation, if anything has changed since the last one.
    pub(super) due: Option<Instant>,
    /// The earliest time for that, after the first one.
    earliest: Option<Instant>,
}

/// Returns the earliest time of another look at all Instances, after one that has just ended.
pub(super) fn next_look(began: Instant) -> Instant {
    let now = Instant::now();
    now + ((now - began) * PAUSE).min(LONGEST_PAUSE)
}

impl OwnerState {
    /// Runs after every event: performs what was decided, and starts steps towards the API server. Computes
    /// totals and reports, at most as often as [`Totals`] allows.
    pub(super) async fn after_event(&mut self) {
        self.perform_effects().await;
        self.start_steps();
        if self.totals.earliest > Some(Instant::now()) {
            self.totals.due = self.totals.earliest;
        } else if !self.callers.is_empty() {
            self.totals.due = None; // the answer to the kubelet comes first, and leads here again
        } else {
            yield_now().await; // whoever has just got an answer sends it meanwhile
            let began = Instant::now();
            self.update_totals();
            self.totals.earliest = Some(next_look(began));
            self.totals.due = None;
        }
        self.report();
    }

    /// Counts claims and devices, and advertises the Configuration's resource.
    fn update_totals(&mut self) {
        self.advertise(&Target::Configuration, false);
        self.totals.expiry = self.next_expiry();
        let instances = self.machine.instances();
        let online = instances.values().filter(|instance| instance.entry().online == Online::True).count();
        self.totals.devices = DeviceCounts { instances: instances.len(), online };
        let claims: usize = self.machine.instances().values().map(|instance| instance.slots().claims().count()).sum();
        let orphaned = self.machine.orphans().claims();
        self.context.claims.count(Some(&self.configuration.key), claims + orphaned);
        let now = self.context.claims.now();
        let is_unseen = |(_, claim): &(u32, &Claim)| claim.observation.unseen_for(now) >= UNSEEN_FOR;
        let slots = || self.machine.instances().values().map(|instance| instance.slots());
        let counts = SlotCounts {
            unconfirmed: slots().map(SlotTable::unconfirmed).sum(),
            orphaned,
            unseen: slots().map(|slots| slots.claims().filter(is_unseen).count()).sum(),
        };
        self.context.metrics.totals(&self.configuration.key, self.totals.devices, counts);
        let uncertain = |instance: &ManagedInstance| {
            let (slot, claim) =
                instance.slots().claims().find(|of| is_unseen(of) && of.1.observation.uncertain_user().is_some())?;
            let slot = slot_name(&instance.entry().key.name, slot);
            Some((slot, claim.observation.uncertain_user()?.clone()))
        };
        self.health.status.uncertain = self.machine.instances().values().find_map(|instance| uncertain(instance));
    }

    /// Writes the status if it says something new, at once or when there was not much to say for a while: a handler may
    /// note something else in each round.
    fn report(&mut self) {
        let now = Instant::now();
        let wait = self.reports.wait(now.into_std());
        self.next_report = (!wait.is_zero()).then(|| now + wait);
        if wait.is_zero()
            && let Some(report) = self.health.report(&self.configuration, self.totals.devices)
        {
            self.reports.take(REPORT, now.into_std());
            self.context.metrics.conditions(&report.key, report.status.is_ready(), report.status.is_complete());
            self.context.publisher.report(Report::Configuration(report));
        }
        // A round has ended, or a remote handler is connected.
        if self.health.status.discovery != DiscoveryStatus::Starting {
            self.context.startup.has_started(&self.configuration.key);
        }
    }
}
