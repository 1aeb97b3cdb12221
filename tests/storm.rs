//! An agent that is killed again and again while pods come and go: no claim is lost and none is made twice.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::sleep;
use tonic::Code;

use crate::support::kubelet::{AdmissionError, Kubelet, View};
use crate::support::node::{Agent, Node, identities, resource_of, used};

const KILLS: usize = 15;
const SLOTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

#[tokio::test] // rule 10, rule 28
async fn local_claims_are_never_lost_or_duplicated() {
    let node = Node::new();
    node.make_echo_local();
    weather(&node).await;
}

#[tokio::test] // rule 10
async fn shared_claims_are_never_lost_or_duplicated() {
    weather(&Node::new()).await;
}

async fn weather(node: &Node) {
    node.write_echo("echo", SLOTS as u32, &["foo0", "foo1"]);
    let kubelet = Kubelet::start(&node.path("kubelet"));
    let agent = node.start();
    let found = node.wait_for_instances("two devices", |list| list.len() == 2).await;
    let resources = [resource_of(&found[0]), resource_of(&found[1])];
    let mut pods = Pods { kubelet: &kubelet, resources: &resources, next: 0, admitted: 0, agents: 0 };
    pods.all_registered().await;
    pods.storm_until_killed(agent).await;
    for _ in 1..KILLS {
        let agent = node.start();
        pods.all_registered().await;
        pods.storm_until_killed(agent).await;
    }
    assert!(pods.admitted >= KILLS, "{}", pods.admitted);

    let agent = node.start();
    pods.all_registered().await;
    let held = kubelet.view(ids_in_use);
    node.wait_for_instances("every claim of a pod", |list| held.is_subset(&claimed(list))).await;
    // A claim that no pod of the checkpoint holds is one that the kubelet had no answer for, or whose pod ended unseen. It
    // is kept for a while, and the kubelet may have it again at once: every free slot can be handed out.
    pods.fill().await;
    let all = kubelet.view(ids_in_use);
    assert_eq!(all.len(), 2 * SLOTS, "no slot is held by two pods, and none is lost");
    node.wait_for_instances("the claims of the checkpoint and no other", |list| claimed(list) == all).await;
    assert_eq!(identities(&node.instances()), identities(&found), "the same objects after it all");
    agent.sees_in_use(&all.iter().cloned().collect::<Vec<_>>()).await;
    kubelet.view(pods_of).into_iter().for_each(|pod| kubelet.remove_pod(&pod));
    node.wait_for_instances("no claim", |list| claimed(list).is_empty()).await;
}

/// Pods that are admitted one after the other and removed in no order.
struct Pods<'k> {
    kubelet: &'k Kubelet,
    resources: &'k [String; 2],
    next: usize,
    admitted: usize,
    /// The number of agents started.
    agents: usize,
}

impl Pods<'_> {
    /// Waits for the registrations of the next agent.
    async fn all_registered(&mut self) {
        self.agents += 1;
        let is_served = |view: &View, name: &String| {
            let resource = view.resource(name);
            resource.registrations == self.agents && resource.allocatable() == SLOTS
        };
        self.kubelet.wait_for("every slot", |view| self.resources.iter().all(|name| is_served(view, name))).await;
    }

    /// Admits and removes pods, some in peace, and goes on until the agent was killed in the middle of it.
    async fn storm_until_killed(&mut self, agent: Agent) {
        let (enough, first) = (self.admitted + 1 + random(5), self.next);
        while self.admitted < enough {
            assert!(self.next < first + 100, "a pod in a hundred is admitted");
            self.admit_and_remove().await;
        }
        let pause = Duration::from_micros(random(20_000) as u64);
        let killer = tokio::task::spawn_blocking(move || {
            std::thread::sleep(pause);
            agent.kill();
        });
        while !killer.is_finished() {
            self.admit_and_remove().await;
        }
        killer.await.unwrap();
    }

    async fn admit_and_remove(&mut self) {
        self.admit().await;
        if random(3) == 0 {
            self.remove_one();
        }
    }

    /// Admits a pod; a refusal is fine: the agent may be gone, or all slots in use.
    async fn admit(&mut self) {
        let pod = format!("pod-{}", self.next);
        let resource = &self.resources[self.next % 2];
        self.next += 1;
        let admitted = self.kubelet.admit(&pod, "container", resource, 1).await.is_ok();
        self.admitted += usize::from(admitted);
        if !admitted {
            self.remove_one();
        }
    }

    fn remove_one(&self) {
        let pods: Vec<String> = self.kubelet.view(pods_of).into_iter().collect();
        if !pods.is_empty() {
            self.kubelet.remove_pod(&pods[random(pods.len())]);
        }
    }

    /// Admits pods until every slot is in use.
    async fn fill(&mut self) {
        for resource in self.resources {
            let free = SLOTS - self.kubelet.view(|view| ids(view, Some(resource)).len());
            for _ in 0..free {
                // A slot whose last claim got no answer in time is confirmed first. A refused pod stays refused: another one is made.
                for again in (0..200).rev() {
                    let pod = format!("last-{}", self.next);
                    self.next += 1;
                    match self.kubelet.admit(&pod, "container", resource, 1).await {
                        Ok(_) => break,
                        Err(AdmissionError::Refused(Code::Unavailable, _)) if again > 0 => sleep(PAUSE).await,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
    }
}

fn random(below: usize) -> usize {
    RandomState::new().hash_one(0) as usize % below
}

fn pods_of(view: &View) -> BTreeSet<String> {
    view.pods.keys().map(|(pod, _, _)| pod.clone()).collect()
}

fn ids_in_use(view: &View) -> BTreeSet<String> {
    ids(view, None)
}

/// Ids that pods hold, of one resource or of all. An id that two pods hold is the end of the story.
fn ids(view: &View, resource: Option<&String>) -> BTreeSet<String> {
    let mut holders = BTreeMap::new();
    for ((pod, _, of), admitted) in view.pods.iter().filter(|((_, _, of), _)| resource.is_none_or(|name| name == of)) {
        for id in &admitted.ids {
            let other = holders.insert(id.clone(), pod);
            assert_eq!(other, None, "{id} of {of} is held by {pod}, too");
        }
    }
    holders.into_keys().collect()
}

/// Slots that are published as used.
fn claimed(instances: &[akri_api::Instance]) -> BTreeSet<String> {
    instances.iter().flat_map(used).map(str::to_owned).collect()
}
