//! The Lease by which an agent shows that it runs (rule 59), and what it has looked at (rule 131). Without it, a node without devices
//! and a node without an agent look the same.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR, Progress};
use akri_model::names::Key;
use akri_model::retry::{RetryPolicy, jitter, jittered};
use akri_model::sharing::Sharing;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The longest interval of renewals. A thousand agents that a power cut started together renew at different times.
const RENEWAL: Duration = Duration::from_secs(60);

/// The time that Instances to join are gathered before the Lease names them.
const GATHER: Duration = Duration::from_secs(1);

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// The content of the Lease besides that the agent runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookedAt {
    /// The Configurations and DiscoveryHandlers that the agent has looked at.
    pub progress: Progress,
    /// The objects among them that the controller waits for, with the versions since which it does.
    pub awaited: BTreeSet<(Key, u64)>,
}

/// Renews the Lease until it is told to stop, in the namespace of the client: that of the agent's pod; at once if the controller waits for it,
/// and shortly after this node wants to join an Instance or has joined it. Then it gives the Lease up, after the renewal that is under
/// way, so that the controller knows at once that this agent ended.
pub async fn renew(
    client: Client,
    node: String,
    mut looked_at: watch::Receiver<LookedAt>,
    mut sharing: watch::Receiver<Sharing>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut written = BTreeSet::new();
    let (mut is_failing, mut is_first) = (false, true);
    loop {
        let LookedAt { mut progress, awaited } = looked_at.borrow_and_update().clone();
        progress.sharing = sharing.borrow_and_update().clone();
        if is_first {
            progress.sharing.missing = None; // no round has ended yet
        }
        match write(&client, &node, Some(&progress)).await {
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                warn!(error, "renewing the Lease of this agent failed; the node counts as one without an agent");
            }
            Err(_) => {}
            Ok(()) => {
                (written, is_first) = (awaited, false);
                if std::mem::take(&mut is_failing) {
                    info!("the Lease of this agent is renewed again");
                }
            }
        }
        let is_awaited = |looked_at: &LookedAt| !looked_at.awaited.is_subset(&written);
        tokio::select! {
            () = sleep(jittered(if is_failing { RetryPolicy::LEASE.first } else { RENEWAL }, jitter())) => {}
            Ok(_) = looked_at.wait_for(is_awaited), if !is_failing => {}
            () = joins_change(&mut sharing, &progress.sharing), if !is_failing => {}
            Ok(_) = stopping.wait_for(|is_stopping| *is_stopping) => break,
        }
    }
    if let Err(error) = write(&client, &node, None).await {
        warn!(error, "the Lease of this agent was not given up; it counts as running for {} s", GOOD_FOR.as_secs());
    }
}

/// Waits until this node wants to join other Instances than it has written, and gathers what follows at once.
async fn joins_change(sharing: &mut watch::Receiver<Sharing>, written: &Sharing) {
    if sharing.wait_for(|now| now.joining != written.joining).await.is_err() {
        std::future::pending::<()>().await;
    }
    sleep(GATHER).await;
}

async fn write(client: &Client, node: &str, progress: Option<&Progress>) -> Result<(), String> {
    let api = Api::<Lease>::default_namespaced(client.clone());
    let lease = lease(node, progress, Timestamp::now());
    let (name, params) = (agent_lease::name(node), PatchParams::apply("akri-agent").force());
    match timeout(REQUEST, api.patch(&name, &params, &Patch::Apply(lease))).await {
        Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

/// Returns whether an agent runs on that node, as far as its Lease tells.
///
/// # Errors
/// If the API server does not answer.
pub async fn is_held(client: &Client, node: &str) -> kube::Result<bool> {
    let api = Api::<Lease>::default_namespaced(client.clone());
    for name in [agent_lease::name(node), agent_lease::former_name(node)] {
        if api.get_opt(&name).await?.is_some_and(|lease| running_on(&lease) == Some(node)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the node whose agent runs, as far as its Lease tells.
pub fn running_on(lease: &Lease) -> Option<&str> {
    let spec = lease.spec.as_ref()?;
    let age = Timestamp::now().duration_since(spec.renew_time.as_ref()?.0);
    let is_good = Duration::try_from(age).unwrap_or_default() < GOOD_FOR; // the node's clock may be ahead
    spec.holder_identity.as_deref().filter(|_| is_good)
}

/// Returns the Lease of an agent; without progress, one that is given up.
fn lease(node: &str, progress: Option<&Progress>, now: Timestamp) -> Lease {
    let labels = [("akri.sh/lease", "agent"), ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION"))];
    Lease {
        metadata: ObjectMeta {
            name: Some(agent_lease::name(node)),
            annotations: progress.map(Progress::to_annotations),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: progress.map(|_| node.to_owned()),
            lease_duration_seconds: i32::try_from(GOOD_FOR.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two clocks one may be a day ahead, or step back.
    #[test] // rule 59
    fn lease_of_a_clock_that_is_ahead_is_held() {
        let day = Duration::from_hours(24);
        let renewed = |at| running_on(&lease("node-a", Some(&Progress::default()), at)).is_some();
        assert!(renewed(Timestamp::now() + day));
        assert!(!renewed(Timestamp::now() - day));
    }

    #[test] // rule 59, rule 109
    fn lease_names_its_node_and_fits_the_type() {
        let now = Timestamp::now();
        let node = "n".repeat(253);
        let held = lease(&node, Some(&Progress::default()), now);
        assert_eq!(running_on(&held), Some(&*node));
        assert_eq!(held.spec.unwrap().lease_duration_seconds, Some(180));
        assert_eq!(running_on(&lease(&node, None, now)), None, "it is given up");
    }
}
