//! Instances that other nodes have made, for a node that finds many shared devices: after some creations that were refused, one list
//! takes the place of a refused creation and a read for each device. Of nodes that start at once one makes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use akri_kube::requests::RequestResult;
use akri_kube::watch::key_of;
use akri_model::creation_backoff::{CreationBackoff, NextStep};
use akri_model::instance::Instance;
use akri_model::instance_labels::shared_label;
use akri_model::names::Key;
use kube::api::{DynamicObject, ListParams};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::Kubernetes;

/// Most Instances of a list.
const LISTED: u32 = 1000;

/// The time for which a list is kept, since memory is dear and Instances go.
const KEPT: Duration = Duration::from_secs(60);

/// Lists, by the label of their Configuration. They are there while they are needed.
#[derive(Default)]
pub(super) struct Lists<T>(Mutex<Weak<ByLabel<T>>>);

type ByLabel<T> = tokio::sync::Mutex<BTreeMap<String, T>>;

/// The Instances of other nodes.
#[derive(Default)]
pub(super) struct Listing {
    backoff: CreationBackoff,
    instances: BTreeMap<Key, DynamicObject>,
}

impl<T: Send + 'static> Lists<T> {
    /// Returns what is kept, or nothing yet, for a while from now on.
    pub(super) fn kept(&self) -> Arc<ByLabel<T>> {
        let mut known = self.0.lock();
        known.upgrade().unwrap_or_else(|| {
            let lists = Arc::<ByLabel<T>>::default();
            *known = Arc::downgrade(&lists);
            let kept = Arc::clone(&lists);
            drop(tokio::spawn(async move {
                sleep(KEPT).await;
                drop(kept);
            }));
            lists
        })
    }
}

impl Kubernetes {
    /// Returns the Instance of a shared device that others have made, as far as lists show. It waits for a list that is under way, and for
    /// the next ones while another node makes Instances: both cost the API server less than creations that it refuses.
    pub(super) async fn find_made(&self, instance: &Instance) -> RequestResult<Option<DynamicObject>> {
        let (label, asked) = (shared_label(&instance.configuration_uid), Instant::now().into_std());
        loop {
            let Some(listings) = self.others.0.lock().upgrade().filter(|_| instance.shared) else { return Ok(None) };
            let mut listings = listings.lock_owned().await;
            let Some(listing) = listings.get_mut(&label) else { return Ok(None) };
            if let Some(made) = listing.instances.remove(&instance.key) {
                return Ok(Some(made));
            }
            match listing.backoff.next_step(asked, Instant::now().into_std()) {
                NextStep::Create => return Ok(None),
                NextStep::List => self.list_made(instance, &label, listing).await?,
                NextStep::Wait(until) => {
                    drop(listings); // who waits does not keep them
                    sleep_until(until.into()).await;
                }
            }
        }
    }

    /// Returns the Instance because of which the creation of this one was refused.
    pub(super) async fn read_taken(&self, instance: &Instance) -> RequestResult<Option<DynamicObject>> {
        if instance.shared
            && let Some(taken) = self.find_listed(instance).await?
        {
            return Ok(Some(taken));
        }
        self.requests.get::<akri_api::Instance>(&instance.key).await
    }

    async fn find_listed(&self, instance: &Instance) -> RequestResult<Option<DynamicObject>> {
        let (label, refused_at, listings) =
            (shared_label(&instance.configuration_uid), Instant::now().into_std(), self.others.kept());
        let mut listings = listings.lock().await;
        let listing = listings.entry(label.clone()).or_default();
        if !listing.instances.contains_key(&instance.key) && listing.backoff.is_list_due(refused_at) {
            self.list_made(instance, &label, listing).await?;
        }
        Ok(listing.instances.remove(&instance.key))
    }

    async fn list_made(&self, instance: &Instance, label: &str, listing: &mut Listing) -> RequestResult<()> {
        let api = self.requests.api::<akri_api::Instance>("");
        let (began, params) = (Instant::now(), ListParams::default().labels(label).limit(LISTED));
        let listed = self.requests.bounded(&instance.key, api.list(&params)).await?;
        if listed.metadata.continue_.is_none_or(|rest| rest.is_empty()) {
            let makers = listed.items.iter().filter_map(|object| object.data.pointer("/spec/nodes/0")?.as_str());
            listing.backoff.listed(&self.node, makers, began.into_std(), Instant::now().into_std());
        } else {
            listing.backoff.too_many((began + KEPT).into_std()); // they are not listed again
        }
        listing.instances = listed.items.into_iter().map(|object| (key_of(&object.metadata), object)).collect();
        Ok(())
    }
}
