//! The Lease by which an agent shows that it runs (rule 59). Without it, a node without devices and a node without an agent look
//! the same.

use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR};
use akri_model::retry::RetryPolicy;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The interval of renewals.
const RENEWAL: Duration = Duration::from_secs(60);

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Renews the Lease for ever, in the namespace of the client: that of the agent's pod.
pub async fn renew(client: Client, node: String) {
    let api: Api<Lease> = Api::default_namespaced(client);
    let (name, params) = (agent_lease::name(&node), PatchParams::apply("akri-agent").force());
    let mut is_failing = false;
    loop {
        let lease = lease(&name, &node, Timestamp::now());
        let error = match timeout(REQUEST, api.patch(&name, &params, &Patch::Apply(lease))).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the API server does not answer".to_owned()),
        };
        match error {
            Some(error) if !std::mem::replace(&mut is_failing, true) => {
                warn!(lease = name, error, "renewing the Lease failed; this node counts as one without an agent");
            }
            None if std::mem::take(&mut is_failing) => info!(lease = name, "the Lease is renewed again"),
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
    let lease = Api::<Lease>::default_namespaced(client.clone()).get_opt(&agent_lease::name(node)).await?;
    let renewed = lease.and_then(|lease| lease.spec?.renew_time);
    let age = renewed.map(|renewed| Timestamp::now().duration_since(renewed.0));
    Ok(age.is_some_and(|age| Duration::try_from(age).unwrap_or_default() < GOOD_FOR)) // the node's clock may be ahead
}

fn lease(name: &str, node: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "labels": {"akri.sh/lease": "agent", "app.kubernetes.io/version": env!("CARGO_PKG_VERSION")},
        },
        "spec": {"holderIdentity": node, "leaseDurationSeconds": GOOD_FOR.as_secs(), "renewTime": format!("{now:.6}")},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 59
    fn lease_names_its_node_and_fits_the_type() {
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        let node = "n".repeat(253);
        let lease: Lease = serde_json::from_value(lease(&agent_lease::name(&node), &node, now)).unwrap();
        assert!(lease.metadata.name.unwrap().len() < 63);
        let spec = lease.spec.unwrap();
        assert_eq!(spec.lease_duration_seconds, Some(180));
        assert_eq!((spec.holder_identity.unwrap(), spec.renew_time.unwrap().0), (node, now));
    }
}
