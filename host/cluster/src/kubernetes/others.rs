//! Instances that other nodes have made, for a node that finds many shared devices: after some creations that were refused, one list
//! takes the place of a refused creation and a read for each device. Of nodes that start at once one makes them.

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
use tokio::time::{Instant, sleep, sleep_until};

use super::{Kubernetes, all};

/// Refused creations after which Instances are listed. A node with fewer devices reads each: others may have many more.
const REFUSED: usize = 16;

/// Most Instances of a list.
const LISTED: u32 = 1000;

/// The time for which a list is kept, since memory is dear and Instances go.
const KEPT: Duration = Duration::from_secs(60);

/// The pause between lists while another node makes the Instances.
const NEXT_LIST: Duration = Duration::from_millis(500);

/// The longest wait for a device that the other node may not find.
const PATIENCE: Duration = Duration::from_secs(5);

/// The Instances of other nodes, by the label of their Configuration. They are there while they are needed.
#[derive(Default)]
pub(super) struct OtherInstances(Mutex<Weak<Listings>>);

type Listings = tokio::sync::Mutex<BTreeMap<String, Listing>>;

#[derive(Default)]
struct Listing {
    refused: usize,
    /// The time at which the list began.
    at: Option<Instant>,
    /// The number of those that other nodes have made.
    made: usize,
    /// The time of the next list, if that is left to one of them.
    next: Option<Instant>,
    instances: BTreeMap<Key, DynamicObject>,
}

impl OtherInstances {
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
    /// Returns the Instance of a shared device that others have made, as far as lists show. It waits for a list that is under way, and for
    /// the next ones while another node makes Instances: both cost the API server less than creations that it refuses.
    pub(super) async fn find_made(&self, instance: &Instance) -> RequestResult<Option<DynamicObject>> {
        let Some(listings) = self.others.0.lock().upgrade().filter(|_| instance.shared) else { return Ok(None) };
        let (label, asked) = (shared_label(&instance.configuration_uid), Instant::now());
        loop {
            let mut listings = listings.lock().await;
            let Some(listing) = listings.get_mut(&label) else { return Ok(None) };
            if let Some(made) = listing.instances.remove(&instance.key) {
                return Ok(Some(made));
            }
            let Some(next) = listing.next.filter(|_| asked.elapsed() < PATIENCE) else { return Ok(None) };
            if next <= Instant::now() {
                self.list_made(instance, &label, listing).await?;
                continue;
            }
            drop(listings);
            sleep_until(next).await;
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
            (shared_label(&instance.configuration_uid), Instant::now(), self.others.listings());
        let mut listings = listings.lock().await;
        let listing = listings.entry(label.clone()).or_default();
        if !listing.instances.contains_key(&instance.key) && listing.at < Some(refused_at) {
            listing.refused += 1;
            if listing.refused < REFUSED {
                return Ok(None);
            }
            self.list_made(instance, &label, listing).await?;
        }
        Ok(listing.instances.remove(&instance.key))
    }

    async fn list_made(&self, instance: &Instance, label: &str, listing: &mut Listing) -> RequestResult<()> {
        let api: Api<DynamicObject> = all::<akri_api::Instance>(self.requests.client());
        let (at, params) = (Instant::now(), ListParams::default().labels(label).limit(LISTED));
        let listed = self.requests.bounded(&instance.key, api.list(&params)).await?;
        // A Configuration with more Instances is not listed again.
        let is_complete = listed.metadata.continue_.is_none_or(|rest| rest.is_empty());
        let makers = listed.items.iter().filter_map(|object| object.data.pointer("/spec/nodes/0")?.as_str());
        let others: Vec<&str> = makers.filter(|maker| *maker != self.node).collect();
        // Of two that meet the first by name goes on. If it meets the other again, that one is ahead of it.
        let gives_way = listing.at.is_some() || others.iter().any(|maker| *maker < &*self.node);
        let is_left = is_complete && gives_way && others.len() > listing.made;
        *listing = Listing {
            refused: 0,
            at: Some(if is_complete { at } else { at + KEPT }),
            made: others.len(),
            next: is_left.then(|| Instant::now() + NEXT_LIST),
            instances: listed.items.into_iter().map(|object| (key_of(&object.metadata), object)).collect(),
        };
        Ok(())
    }
}
