//! An Instance's own resource, as the device plugin server sees it: every question goes to the owner of the Instance.

use std::time::Duration;

use akri_model::edits::ContainerEdits;
use akri_model::names::{Identity, resource_name};
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::plugin::resource::{Advertised, Preference, Refused, Resource};

/// Time for a whole Allocate (RULES 7).
const ALLOCATE: Duration = Duration::from_secs(2);

/// Answer to an Allocate.
pub(super) type Allocated = Result<Vec<ContainerEdits>, Refused>;

/// What a device plugin asks the owner of its Instance.
pub(super) enum Command {
    /// Claim slots for containers. If nobody waits for the answer any more, the claim is undone.
    Allocate { identity: Identity, containers: Vec<Vec<String>>, reply: oneshot::Sender<Allocated> },
    /// Which ids to take.
    Prefer { identity: Identity, containers: Vec<Preference>, reply: oneshot::Sender<Vec<Vec<String>>> },
    /// Whether all of these are claimed here.
    Holds { identity: Identity, ids: Vec<String>, reply: oneshot::Sender<bool> },
}

/// The resource of one Instance.
pub(super) struct InstanceResource {
    name: String,
    identity: Identity,
    advertised: watch::Receiver<Advertised>,
    owner: mpsc::Sender<Command>,
}

impl InstanceResource {
    pub(super) fn new(
        instance: &str,
        identity: Identity,
        advertised: watch::Receiver<Advertised>,
        owner: mpsc::Sender<Command>,
    ) -> Self {
        Self { name: resource_name(instance), identity, advertised, owner }
    }

    async fn ask<T>(&self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        self.owner.send(command).await.ok()?;
        answer.await.ok()
    }
}

#[async_trait]
impl Resource for InstanceResource {
    fn name(&self) -> &str {
        &self.name
    }

    fn advertised(&self) -> watch::Receiver<Advertised> {
        self.advertised.clone()
    }

    async fn allocate(&self, containers: Vec<Vec<String>>) -> Allocated {
        let (reply, answer) = oneshot::channel();
        let command = Command::Allocate { identity: self.identity.clone(), containers, reply };
        match timeout(ALLOCATE, self.ask(command, answer)).await {
            Ok(Some(allocated)) => allocated,
            Ok(None) => Err(Refused::Unavailable(format!("{} is being removed", self.name))),
            Err(_) => Err(Refused::Unavailable(format!("the claim was not decided within {ALLOCATE:?}"))),
        }
    }

    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Prefer { identity: self.identity.clone(), containers, reply };
        self.ask(command, answer).await.unwrap_or_default()
    }

    async fn holds(&self, ids: Vec<String>) -> bool {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Holds { identity: self.identity.clone(), ids, reply }, answer).await.unwrap_or(false)
    }
}
