//! The Lease by which an agent shows that it runs (rule 59). Without it, a node without devices and a node without an agent look
//! the same.

use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR};
use akri_model::retry::RetryPolicy;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The interval of renewals.
const RENEWAL: Duration = Duration::from_secs(60);

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Renews the Lease for ever, in the namespace of the client: that of the agent's pod.
pub async fn renew(client: Client, node: String) {
    let (api, name) = (Api::<Lease>::default_namespaced(client), agent_lease::name(&node));
    let mut is_failing = false;
    loop {
        let lease = lease(&name, &node, Timestamp::now());
        let params = PatchParams::apply("akri-agent").force();
        let renewed = match timeout(REQUEST, api.patch(&name, &params, &Patch::Apply(lease))).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err("the API server does not answer".to_owned()),
        };
        match renewed {
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                warn!(lease = name, error, "renewing the Lease failed; this node counts as one without an agent");
            }
            Ok(_) if std::mem::take(&mut is_failing) => info!(lease = name, "the Lease is renewed again"),
            _ => {}
        }
        sleep(if is_failing { RetryPolicy::LEASE.first } else { RENEWAL }).await;
    }
}

/// Returns whether an agent runs on that node, as far as its Lease tells.
///
/// # Errors
/// If the API server does not answer.
pub async fn is_held(client: &Client, node: &str) -> kube::Result<bool> {
    let api = Api::<Lease>::default_namespaced(client.clone());
    for name in [agent_lease::name(node), agent_lease::former_name(node)] {
        if api.get_opt(&name).await?.is_some_and(|lease| is_good(&lease, node)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_good(lease: &Lease, node: &str) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let age = spec.renew_time.as_ref().map(|renewed| Timestamp::now().duration_since(renewed.0));
    let is_young = age.is_some_and(|age| Duration::try_from(age).unwrap_or_default() < GOOD_FOR); // the node's clock may be ahead
    is_young && spec.holder_identity.as_deref() == Some(node)
}

fn lease(name: &str, node: &str, now: Timestamp) -> Lease {
    let labels = [("akri.sh/lease", "agent"), ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION"))];
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: i32::try_from(GOOD_FOR.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 59, rule 109
    fn lease_names_its_node_and_fits_the_type() {
        let now = Timestamp::now();
        let node = "n".repeat(253);
        let lease = lease(&agent_lease::name(&node), &node, now);
        assert!(is_good(&lease, &node) && !is_good(&lease, "node-b"));
        assert_eq!(lease.spec.unwrap().lease_duration_seconds, Some(180));
    }
}
