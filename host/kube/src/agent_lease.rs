//! The Lease by which an agent shows that it runs (rule 59). Without it, a node without devices and a node without an agent look
//! the same.

use std::time::Duration;

use akri_model::agent_lease::{self, GOOD_FOR};
use akri_model::instance::Version;
use akri_model::retry::RetryPolicy;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Error, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The interval of renewals.
const RENEWAL: Duration = Duration::from_secs(60);

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Renews the Lease for ever, in the namespace of the client: that of the agent's pod. `restores` counts restores of etcd that are
/// noticed by it (rule 106).
pub async fn renew(client: Client, node: String, restores: watch::Sender<u64>) {
    let mut own =
        OwnLease { api: Api::default_namespaced(client), name: agent_lease::name(&node), node, written: None };
    let mut is_failing = false;
    loop {
        match own.renew(&restores).await {
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                warn!(lease = own.name, error, "renewing the Lease failed; this node counts as one without an agent");
            }
            Ok(()) if std::mem::take(&mut is_failing) => info!(lease = own.name, "the Lease is renewed again"),
            _ => {}
        }
        sleep(if is_failing { RetryPolicy::LEASE.first } else { RENEWAL }).await;
    }
}

struct OwnLease {
    api: Api<Lease>,
    name: String,
    node: String,
    /// The Lease as it was written last.
    written: Option<Lease>,
}

impl OwnLease {
    /// Renews the Lease. It expects the version that was written last. Another one is there if an answer was lost, or if etcd was
    /// restored from a backup.
    async fn renew(&mut self, restores: &watch::Sender<u64>) -> Result<(), String> {
        loop {
            let lease = lease(&self.name, &self.node, self.written.as_ref(), Timestamp::now());
            let params = PatchParams::apply("akri-agent").force();
            match bounded(self.api.patch(&self.name, &params, &Patch::Apply(lease))).await? {
                Ok(lease) => {
                    self.written = Some(lease);
                    return Ok(());
                }
                Err(Error::Api(status)) if status.code == 409 && self.written.is_some() => {}
                Err(error) => return Err(error.to_string()),
            }
            let found = bounded(self.api.get_opt(&self.name)).await?.map_err(|error| error.to_string())?;
            if self.written.take().is_some_and(|written| is_restored(found.as_ref(), &written)) {
                warn!(lease = self.name, "etcd was restored from a backup; listing everything anew");
                restores.send_modify(|count| *count += 1);
            }
        }
    }
}

async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>, String> {
    timeout(REQUEST, request).await.map_err(|_| "the API server does not answer".to_owned())
}

/// Returns whether a Lease is older than the one that was written last.
fn is_restored(found: Option<&Lease>, written: &Lease) -> bool {
    let version = |lease: &Lease| Version(lease.resource_version().unwrap_or_default());
    found.is_none_or(|found| found.uid() != written.uid() || version(found).is_older_than(&version(written)))
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

fn lease(name: &str, node: &str, written: Option<&Lease>, now: Timestamp) -> Lease {
    let labels = [("akri.sh/lease", "agent"), ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION"))];
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: written.and_then(ResourceExt::uid),
            resource_version: written.and_then(ResourceExt::resource_version),
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
        let lease = lease(&agent_lease::name(&node), &node, None, now);
        assert!(is_good(&lease, &node) && !is_good(&lease, "node-b"));
        assert_eq!((lease.uid(), lease.resource_version()), (None, None), "it may have to be created");
        assert_eq!(lease.spec.unwrap().lease_duration_seconds, Some(180));
    }

    #[test] // rule 106
    fn renewal_expects_what_was_written_last() {
        let of = |uid: &str, version: &str| {
            let mut lease = lease("akri-agent-a", "a", None, Timestamp::UNIX_EPOCH);
            (lease.metadata.uid, lease.metadata.resource_version) = (Some(uid.to_owned()), Some(version.to_owned()));
            lease
        };
        let written = of("u", "70");
        let next = lease("akri-agent-a", "a", Some(&written), Timestamp::now());
        assert_eq!((next.uid(), next.resource_version()), (written.uid(), written.resource_version()));
        for (found, expected) in [(of("u", "9"), true), (of("v", "90"), true), (of("u", "90"), false)] {
            assert_eq!(
                is_restored(Some(&found), &written),
                expected,
                "the last one was renewed, and the answer was lost"
            );
        }
        assert!(is_restored(None, &written), "it did not exist then");
    }
}
