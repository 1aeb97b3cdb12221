//! Instances that other nodes have made, for a node that finds many shared devices: after some creations that were refused, one list
//! takes the place of a refused creation and a read for each device.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use akri_kube::requests::RequestResult;
use akri_kube::watch::key_of;
use akri_model::instance::Instance;
use akri_model::instance_labels::shared_label;
use akri_model::names::Key;
use kube::api::{Api, DynamicObject, ListParams};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Kubernetes, all};

/// Refused creations after which Instances are listed. A node with fewer devices reads each: others may have many more.
const REFUSED: usize = 16;

/// Most Instances of a list.
const LISTED: u32 = 1000;

/// The time for which a list is kept, since memory is dear and Instances go.
const KEPT: Duration = Duration::from_secs(60);

/// The Instances of other nodes, by the label of their Configuration. They are there while they are needed.
#[derive(Default)]
pub(super) struct OtherInstances(Mutex<Weak<Listings>>);

type Listings = tokio::sync::Mutex<BTreeMap<String, Listing>>;

#[derive(Default)]
struct Listing {
    refused: usize,
    /// The time at which the list began.
    at: Option<Instant>,
    instances: BTreeMap<Key, DynamicObject>,
}

impl OtherInstances {
    /// Returns the Instance of that name if a list has shown it. It waits for a list that is under way, which costs the API server less
    /// than one more creation that it refuses.
    pub(super) async fn take(&self, instance: &Instance) -> Option<DynamicObject> {
        let listings = self.0.lock().upgrade()?;
        let mut listings = listings.lock().await;
        listings.get_mut(&shared_label(&instance.configuration_uid))?.instances.remove(&instance.key)
    }

    fn listings(&self) -> Arc<Listings> {
        let mut known = self.0.lock();
        known.upgrade().unwrap_or_else(|| {
            let listings = Arc::<Listings>::default();
            *known = Arc::downgrade(&listings);
            let kept = Arc::clone(&listings);
            drop(tokio::spawn(async move {
                sleep(KEPT).await;
                drop(kept);
            }));
            listings
        })
    }
}

impl Kubernetes {
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
            (shared_label(&instance.configuration_uid), Instant::now(), self.others.listings());
        let mut listings = listings.lock().await;
        let listing = listings.entry(label.clone()).or_default();
        if !listing.instances.contains_key(&instance.key) && listing.at < Some(refused_at) {
            listing.refused += 1;
            if listing.refused < REFUSED {
                return Ok(None);
            }
            let api: Api<DynamicObject> = all::<akri_api::Instance>(self.requests.client());
            let (at, params) = (Instant::now(), ListParams::default().labels(&label).limit(LISTED));
            let listed = self.requests.bounded(&instance.key, api.list(&params)).await?;
            // A Configuration with more Instances is not listed again.
            let is_complete = listed.metadata.continue_.is_none_or(|rest| rest.is_empty());
            let at = if is_complete { at } else { at + KEPT };
            let instances = listed.items.into_iter().map(|object| (key_of(&object.metadata), object)).collect();
            *listing = Listing { refused: 0, at: Some(at), instances };
        }
        Ok(listing.instances.remove(&instance.key))
    }
}
