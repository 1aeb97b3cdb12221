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
    pub(super) owner: mpsc::Sender<Command>,
}

impl OwnedResource {
    async fn ask<T>(&self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        self.owner.send(command).await.ok()?;
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
        let (reply, answer) = oneshot::channel();
        let command = Command::Allocate { target: self.target.clone(), containers, reply };
        match timeout(BUDGET + ANSWER, self.ask(command, answer)).await {
            Ok(Some(allocated)) => allocated,
            Ok(None) => Err(Refusal::Unavailable(format!("{} is being removed", self.name))),
            Err(_) => Err(Refusal::Unavailable(format!("the claim was not decided within {BUDGET:?}"))),
        }
    }

    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Prefer { target: self.target.clone(), containers, reply };
        self.ask(command, answer).await.unwrap_or_default()
    }

    async fn holds(&self, ids: Vec<String>) -> bool {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Holds { target: self.target.clone(), ids, reply }, answer).await.unwrap_or(false)
    }
}
