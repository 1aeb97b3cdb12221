//! Allocates: each is decided in memory, confirmed by the journal and, for shared devices, by the API server, and answered
//! when all of that is done. The owner does other things meanwhile (rule 7, rule 14, rule 42, rule 46).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use akri_kubelet::resource::AllocateError;
use akri_model::broker_info::ClaimDirectory;
use akri_model::claim::Entry;
use akri_model::edits::{ContainerEdits, merge};
use akri_model::names::{Identity, slot_name};
use akri_model::slots::{Claim, ClaimError, Claimed, SlotState};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::claims::{self, SlotRequest};
use super::resource::{AllocateResult, Target};
use super::{Context, OwnerState, configuration_resource};
use crate::pod_resources_poller::Answering;

/// Time for a whole Allocate (rule 7).
pub(super) const BUDGET: Duration = Duration::from_secs(2);

/// Maximum number of attempts to choose slots for an Allocate; another node may be faster each time.
const ATTEMPTS: u32 = 4;

/// An Allocate that has not been answered.
pub(super) struct Allocation {
    target: Target,
    containers: Vec<Vec<String>>,
    reply: oneshot::Sender<AllocateResult>,
    started: Instant,
    attempts: u32,
    /// Its claims: Instance, slot and generation.
    claimed: Vec<(Identity, u32, u64)>,
    /// Slots that virtual devices leave for those.
    left: Vec<(Identity, u32)>,
    answer: Vec<ContainerEdits>,
    /// Directories of its claims, which are created before the answer.
    directories: Vec<ClaimDirectory>,
    /// The number of its Instances that are not in the journal yet; `None` if writing failed.
    unwritten: Option<usize>,
    _answering: Answering,
}

/// The progress of an Allocate.
enum Progress {
    Pending,
    Granted,
    /// Another node has a slot that it claimed.
    Lost(String),
    Failed(AllocateError),
}

/// Identifies an Allocate among those of an owner.
pub(super) type AllocationId = u64;

/// A write to the journal for an Allocate, and the creation of its directories, has ended.
pub(super) type JournalResult = (AllocationId, Result<(), String>);

impl OwnerState {
    /// Begins an Allocate, unless its caller has gone (rule 42).
    pub(super) fn allocate(
        &mut self,
        target: Target,
        containers: Vec<Vec<String>>,
        reply: oneshot::Sender<AllocateResult>,
    ) {
        if reply.is_closed() {
            return;
        }
        let allocation = Allocation {
            target,
            containers,
            reply,
            started: Instant::now(),
            attempts: 0,
            claimed: Vec::new(),
            left: Vec::new(),
            answer: Vec::new(),
            directories: Vec::new(),
            unwritten: Some(0),
            _answering: self.context.claims.answering(),
        };
        self.attempt(allocation);
    }

    /// Chooses slots and claims them, all or none.
    fn attempt(&mut self, mut allocation: Allocation) {
        allocation.attempts += 1;
        match self.claim_all(&mut allocation) {
            Ok(()) => {
                self.last_allocation += 1;
                self.write_claims(self.last_allocation, &mut allocation);
                self.allocations.insert(self.last_allocation, allocation);
            }
            Err(refused) => self.refuse(allocation, refused),
        }
    }

    fn claim_all(&mut self, allocation: &mut Allocation) -> Result<(), AllocateError> {
        let requested = self.requested(&allocation.target, &allocation.containers)?;
        for container in &requested {
            let mut edits = BTreeMap::new();
            for request in container {
                let claim = self.claim_slot(request, allocation)?;
                edits.insert(claim.0, claim.1);
            }
            allocation
                .answer
                .push(merge(&edits).map_err(|conflict| AllocateError::FailedPrecondition(conflict.to_string()))?);
        }
        Ok(())
    }

    fn requested(&self, target: &Target, containers: &[Vec<String>]) -> Result<Vec<Vec<SlotRequest>>, AllocateError> {
        if containers.is_empty() || containers.iter().any(Vec::is_empty) {
            return Err(AllocateError::InvalidArgument("a container asks for no device".to_owned()));
        }
        let node = &self.context.node;
        match target {
            Target::Configuration => configuration_resource::requests(&self.published, containers, node),
            Target::Instance(identity) => {
                let published = self.published.get(identity);
                let published = published.ok_or_else(|| AllocateError::NotFound("the device is gone".to_owned()))?;
                claims::instance_requests(published, containers, node)
            }
        }
    }

    fn claim_slot(
        &mut self,
        request: &SlotRequest,
        allocation: &mut Allocation,
    ) -> Result<(String, ContainerEdits), AllocateError> {
        let published = self.published.get_mut(&request.identity);
        let published = published.ok_or_else(|| AllocateError::NotFound("the device is gone".to_owned()))?;
        let name = published.entry().key.name.clone();
        if let Some(why) = published.refusal() {
            return Err(AllocateError::Unavailable(format!("the device of '{name}' {why}")));
        }
        let (generation, observation) = (self.context.claims.next_generation(), self.context.claims.observation());
        let claim = Claim { usage: request.usage.clone(), generation, observation };
        let claimed = published.slots.claim(request.slot, claim).map_err(|error| match error {
            ClaimError::NoSuchSlot { .. } => AllocateError::NotFound(error.to_string()),
            _ => AllocateError::Unavailable(error.to_string()),
        })?;
        if claimed == Claimed::Pending {
            published.sync.try_at_once();
            allocation.claimed.push((request.identity.clone(), request.slot, generation));
        }
        allocation.left.extend(request.moved_from.clone());
        let mut edits = published.edits_for(&self.configuration, request.slot, &request.usage);
        if self.configuration.broker_info {
            let instance = published.entry().key.clone();
            let directory = ClaimDirectory { instance, slot: request.slot, generation };
            self.context.broker_info.add_to(&mut edits, &directory, published.hash());
            allocation.directories.push(directory);
        }
        published.edits.insert(request.slot, edits.clone());
        published.used(request.slot);
        self.unsynced.insert(request.identity.clone());
        self.touched_by_allocation.insert(request.identity.clone());
        Ok((slot_name(&name, request.slot), edits))
    }

    /// Starts writing what was claimed to the journal, beside the API server. Directories follow the journal, so that one
    /// without a claim there is one that nobody uses.
    fn write_claims(&mut self, id: AllocationId, allocation: &mut Allocation) {
        let touched = std::mem::take(&mut self.touched_by_allocation);
        allocation.unwritten = Some(touched.len());
        for published in touched.iter().filter_map(|identity| self.published.get(identity)) {
            let (context, entry) = (Arc::clone(&self.context), published.journal_entry());
            let is_its = |directory: &mut ClaimDirectory| directory.instance == entry.key;
            let directories: Vec<ClaimDirectory> = allocation.directories.extract_if(.., is_its).collect();
            self.writes.spawn(async move { (id, record(&context, entry, directories).await) });
        }
    }

    /// A write to the journal has ended.
    pub(super) fn written(&mut self, result: Option<JournalResult>) {
        let Some((id, result)) = result else { return };
        let Some(allocation) = self.allocations.get_mut(&id) else { return };
        match result {
            Ok(()) => allocation.unwritten = allocation.unwritten.map(|left| left.saturating_sub(1)),
            Err(error) => {
                warn!(configuration = %self.configuration.key, error, "the claim is not recorded");
                allocation.unwritten = None;
            }
        }
        if allocation.unwritten == Some(0) {
            for (identity, slot, _) in &allocation.claimed {
                self.published.get_mut(identity).into_iter().for_each(|published| published.slots.confirm_local(*slot));
            }
        }
    }

    /// Answers the Allocates that are decided.
    pub(super) async fn answer_allocations(&mut self) {
        let ids: Vec<AllocationId> = self.allocations.keys().copied().collect();
        for id in ids {
            let Some(progress) = self.allocations.get(&id).map(|allocation| self.progress(allocation)) else {
                continue;
            };
            if matches!(progress, Progress::Pending) {
                continue;
            }
            let Some(allocation) = self.allocations.remove(&id) else { continue };
            match progress {
                Progress::Pending => {}
                Progress::Granted => self.grant(allocation).await,
                Progress::Lost(_) if self.can_choose_anew(&allocation) => self.choose_anew(allocation).await,
                Progress::Lost(reason) => self.fail(allocation, AllocateError::Unavailable(reason)).await,
                Progress::Failed(refused) => self.fail(allocation, refused).await,
            }
        }
    }

    fn progress(&self, allocation: &Allocation) -> Progress {
        let late = |who: &str| AllocateError::Unavailable(format!("{who} did not confirm the claim within {BUDGET:?}"));
        let Some(unwritten) = allocation.unwritten else {
            return Progress::Failed(AllocateError::Internal(
                "the claim can't be recorded; see the agent's log".to_owned(),
            ));
        };
        let mut confirmed = unwritten == 0;
        for (identity, slot, generation) in &allocation.claimed {
            let Some(published) = self.published.get(identity) else {
                return Progress::Failed(AllocateError::NotFound("the device is gone".to_owned()));
            };
            match published.slots.state(*slot) {
                SlotState::Held(claim) if claim.generation == *generation => {}
                SlotState::Claiming(claim) if claim.generation == *generation => confirmed = false,
                SlotState::Elsewhere(usage) => return Progress::Lost(format!("slot {slot} is in use by '{usage}'")),
                _ => return Progress::Lost(format!("slot {slot} was taken away")),
            }
        }
        match () {
            () if allocation.reply.is_closed() || allocation.started.elapsed() >= BUDGET => {
                Progress::Failed(late(if unwritten == 0 { "the API server" } else { "the journal" }))
            }
            () if confirmed => Progress::Granted,
            () => Progress::Pending,
        }
    }

    /// A virtual device stands for any device, so that another one will do.
    fn can_choose_anew(&self, allocation: &Allocation) -> bool {
        allocation.target == Target::Configuration && allocation.attempts < ATTEMPTS
    }

    async fn choose_anew(&mut self, mut allocation: Allocation) {
        self.give_up(std::mem::take(&mut allocation.claimed)).await;
        (allocation.left, allocation.answer, allocation.unwritten) = (Vec::new(), Vec::new(), Some(0));
        allocation.directories.clear();
        self.attempt(allocation);
    }

    async fn grant(&mut self, allocation: Allocation) {
        let Allocation { target, reply, started, claimed, left, answer, .. } = allocation;
        let answered = reply.send(Ok(answer)).is_ok();
        self.count_claim(&target, started, answered);
        if !answered {
            self.give_up(claimed).await; // the kubelet has given up
            return self.advertise_again(&target);
        }
        for (identity, slot) in &left {
            self.published.get_mut(identity).into_iter().for_each(|published| published.slots.release(*slot));
        }
        let left = left.into_iter().map(|(identity, _)| identity);
        let touched: BTreeSet<Identity> = claimed.into_iter().map(|(identity, ..)| identity).chain(left).collect();
        self.changed(touched.into_iter().collect()).await;
    }

    /// Gives up slots that were claimed. Slots that were held before stay.
    async fn give_up(&mut self, claimed: Vec<(Identity, u32, u64)>) {
        let mut touched = BTreeSet::new();
        for (identity, slot, generation) in claimed {
            let Some(published) = self.published.get_mut(&identity) else { continue };
            match published.slots.state(slot) {
                SlotState::Claiming(claim) if claim.generation == generation => published.slots.abandon(slot),
                SlotState::Held(claim) if claim.generation == generation => published.slots.release(slot),
                _ => {}
            }
            touched.insert(identity);
        }
        self.changed(touched.into_iter().collect()).await;
    }

    async fn fail(&mut self, mut allocation: Allocation, refused: AllocateError) {
        self.give_up(std::mem::take(&mut allocation.claimed)).await;
        self.refuse(allocation, refused);
    }

    /// Refuses an Allocate whose claims were not sent.
    fn refuse(&mut self, allocation: Allocation, refused: AllocateError) {
        for (identity, slot, _) in &allocation.claimed {
            self.published.get_mut(identity).into_iter().for_each(|published| published.slots.withdraw(*slot));
        }
        self.touched_by_allocation.clear();
        warn!(configuration = %self.configuration.key, target = ?allocation.target, "Allocate refused: {refused}");
        self.count_claim(&allocation.target, allocation.started, false);
        self.advertise_again(&allocation.target);
        let _ = allocation.reply.send(Err(refused)); // the kubelet may have given up
    }

    /// The kubelet may know an older list (rule 4).
    fn advertise_again(&self, target: &Target) {
        match target {
            Target::Instance(identity) => {
                self.published.get(identity).into_iter().for_each(|published| published.advertise(true));
            }
            Target::Configuration => self.configuration_resource.advertise(&self.published, true),
        }
    }

    fn count_claim(&self, target: &Target, started: Instant, granted: bool) {
        self.context.metrics.claim(*target != Target::Configuration, granted, started.elapsed());
    }

    /// Returns the time at which the first Allocate has to be answered.
    pub(super) fn next_answer(&self) -> Option<Instant> {
        self.allocations.values().map(|allocation| allocation.started + BUDGET).min()
    }

    /// Gives up all that are pending: the owner ends.
    pub(super) async fn fail_allocations(&mut self) {
        for (_, allocation) in std::mem::take(&mut self.allocations) {
            self.fail(allocation, AllocateError::Unavailable("the agent or the Configuration ends".to_owned())).await;
        }
    }
}

/// Puts a claim on disk, then the directories of its containers.
async fn record(context: &Context, entry: Entry, directories: Vec<ClaimDirectory>) -> Result<(), String> {
    context.journal.put(entry).await.map_err(|error| error.to_string())?;
    context.broker_info.create(directories).await
}
