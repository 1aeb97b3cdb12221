//! A resource of an Instance or of the whole Configuration, as the device plugin server sees it: every question goes to
//! the owner.

use std::time::Duration;

use akri_kubelet::resource::{AdvertisedDevices, Resource};
use akri_model::claim_machine::{BUDGET, Preference, Refusal, Target};
use akri_model::edits::ContainerEdits;
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// Additional time for the answer to the kubelet.
const ANSWER: Duration = Duration::from_millis(300);

/// Answer to an Allocate.
pub(super) type AllocateResult = Result<Vec<ContainerEdits>, Refusal>;

/// A request of a device plugin to the owner.
pub(super) enum Command {
    /// Claim slots for containers. If the kubelet has given up, the claim is undone.
    Allocate { target: Target, containers: Vec<Vec<String>>, reply: oneshot::Sender<AllocateResult> },
    /// Asks which ids to take.
    Prefer { target: Target, containers: Vec<Preference>, reply: oneshot::Sender<Vec<Vec<String>>> },
    /// Asks whether all of these are claimed on this node.
    Holds { target: Target, ids: Vec<String>, reply: oneshot::Sender<bool> },
}

/// A resource of the owner.
pub(super) struct OwnedResource {
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) advertised: watch::Receiver<AdvertisedDevices>,
    pub(super) owner: mpsc::Sender<Box<Command>>,
}

impl OwnedResource {
    /// Asks the owner, unless it ends.
    async fn ask<T>(&self, command: impl FnOnce(Target, oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.owner.send(Box::new(command(self.target.clone(), reply))).await.ok()?;
        answer.await.ok()
    }
}

#[async_trait]
impl Resource for OwnedResource {
    fn name(&self) -> &str {
        &self.name
    }

    fn advertised(&self) -> watch::Receiver<AdvertisedDevices> {
        self.advertised.clone()
    }

    async fn allocate(&self, containers: Vec<Vec<String>>) -> AllocateResult {
        let allocated = self.ask(|target, reply| Command::Allocate { target, containers, reply });
        match timeout(BUDGET + ANSWER, allocated).await {
            Ok(Some(allocated)) => allocated,
            Ok(None) => Err(Refusal::Unavailable(format!("{} is being removed", self.name))),
            Err(_) => Err(Refusal::Unavailable(format!("the claim was not decided within {BUDGET:?}"))),
        }
    }

    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>> {
        self.ask(|target, reply| Command::Prefer { target, containers, reply }).await.unwrap_or_default()
    }

    async fn holds(&self, ids: Vec<String>) -> bool {
        self.ask(|target, reply| Command::Holds { target, ids, reply }).await.unwrap_or(false)
    }
}
