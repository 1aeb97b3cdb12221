//! Leader election by a Lease: of several controllers one works, so that requests are not sent twice. Nothing relies on it to
//! be correct (rule 60).

use std::time::Duration;

use akri_model::names::Key;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// The time after which another replica may take the Lease from a leader that does not renew it.
const DURATION: Duration = Duration::from_secs(15);

/// The time that a leader continues without renewing the Lease.
const DEADLINE: Duration = Duration::from_secs(10);

/// Pause between tries.
const PERIOD: Duration = Duration::from_secs(2);

/// A candidate.
pub struct Election {
    api: Api<Lease>,
    lease: String,
    identity: String,
    /// The holder's last sign of life, and when this process saw it: clocks of other machines do not matter.
    seen: Option<(Option<String>, Option<Timestamp>, Instant)>,
}

impl Election {
    /// A candidate with that identity for a Lease.
    pub fn new(client: Client, lease: &Key, identity: String) -> Self {
        Self { api: Api::namespaced(client, &lease.namespace), lease: lease.name.clone(), identity, seen: None }
    }

    /// Takes part for ever, and publishes whether this process leads.
    pub async fn run(mut self, leads: watch::Sender<bool>) {
        let mut renewed = Instant::now();
        loop {
            let answer = timeout(DEADLINE, self.try_once()).await;
            match answer {
                Ok(Ok(is_leader)) => {
                    renewed = Instant::now();
                    self.announce(&leads, is_leader);
                }
                Ok(Err(error)) => warn!(%error, lease = self.lease, "leader election failed; retrying"),
                Err(_) => warn!(lease = self.lease, "leader election: the API server does not answer; retrying"),
            }
            if renewed.elapsed() > DEADLINE {
                self.announce(&leads, false);
            }
            sleep(PERIOD).await;
        }
    }

    fn announce(&self, leads: &watch::Sender<bool>, is_leader: bool) {
        let changed = leads.send_if_modified(|leads| std::mem::replace(leads, is_leader) != is_leader);
        match is_leader {
            true if changed => info!(identity = self.identity, "this controller leads"),
            false if changed => warn!(identity = self.identity, "this controller leads no more"),
            _ => {}
        }
    }

    /// Renews or takes the Lease, if this candidate holds it or none does.
    async fn try_once(&mut self) -> kube::Result<bool> {
        let params = PostParams::default();
        let answer = match self.api.get_opt(&self.lease).await? {
            None => {
                let metadata = ObjectMeta { name: Some(self.lease.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(self.claim(None)) };
                self.api.create(&params, &lease).await
            }
            Some(lease) if !self.may_take(lease.spec.as_ref(), Instant::now()) => return Ok(false),
            Some(mut lease) => {
                lease.spec = Some(self.claim(lease.spec.as_ref()));
                self.api.replace(&self.lease, &params, &lease).await
            }
        };
        match answer {
            Err(Error::Api(status)) if status.code == 409 => Ok(false), // another candidate was faster
            answer => answer.map(|_| true),
        }
    }

    fn may_take(&mut self, spec: Option<&LeaseSpec>, now: Instant) -> bool {
        let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        if holder.is_none() || holder.as_ref() == Some(&self.identity) {
            return true;
        }
        match &self.seen {
            Some((before, at, seen)) if (before, at) == (&holder, &renewed) => now.duration_since(*seen) > DURATION,
            _ => {
                self.seen = Some((holder, renewed, now));
                false
            }
        }
    }

    fn claim(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let before = before.cloned().unwrap_or_default();
        let is_mine = before.holder_identity.as_ref() == Some(&self.identity);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if is_mine { before.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(before.lease_transitions.unwrap_or(0).saturating_add(i32::from(!is_mine))),
            ..LeaseSpec::default()
        }
    }
}

/// Gives the Lease back, so that the next leader need not wait for its end.
pub async fn release(client: Client, lease: &Key, identity: &str) {
    let (api, name): (Api<Lease>, _) = (Api::namespaced(client, &lease.namespace), &lease.name);
    let given = timeout(Duration::from_secs(2), async {
        let Some(mut lease) = api.get_opt(name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity)) else {
            return Ok(());
        };
        spec.holder_identity = None;
        api.replace(name, &PostParams::default(), &lease).await.map(drop)
    });
    if let Ok(Err(error)) = given.await {
        warn!(%error, lease = name, "the Lease was not released; the next leader waits for its end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election() -> Election {
        let config = kube::Config::new(http_uri());
        Election::new(Client::try_from(config).unwrap(), &Key::new("default", "lease"), "me".to_owned())
    }

    fn http_uri() -> http::Uri {
        "http://127.0.0.1:1".parse().unwrap()
    }

    fn lease(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test] // rule 60
    async fn lease_is_taken_from_a_silent_holder_only() {
        let (mut election, now) = (election(), Instant::now());
        let mut may_take =
            |lease: LeaseSpec, seconds| election.may_take(Some(&lease), now + Duration::from_secs(seconds));
        assert!(may_take(lease("", 1), 0) && may_take(lease("me", 1), 0));
        assert!(!may_take(lease("other", 1), 0));
        assert!(!may_take(lease("other", 2), 14), "it was renewed");
        assert!(!may_take(lease("other", 2), 28));
        assert!(may_take(lease("other", 2), 30));
    }

    #[tokio::test]
    async fn claim_counts_changes_of_the_leader() {
        let election = election();
        let first = election.claim(None);
        assert_eq!((first.lease_transitions, first.holder_identity.as_deref()), (Some(1), Some("me")));
        let renewed = election.claim(Some(&first));
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(1), first.acquire_time));
        assert_eq!(election.claim(Some(&lease("other", 1))).lease_transitions, Some(1));
    }
}
