//! The device manager's state, shared by its servers and by the test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use akri_grpc::deviceplugin::device_plugin_client::DevicePluginClient;
use akri_grpc::deviceplugin::{DevicePluginOptions, ListAndWatchResponse};
use tokio::sync::Notify;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::checkpoint;
use super::view::{List, ResourceView, View};

/// A connected plugin.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) client: DevicePluginClient<Channel>,
    pub(super) offers_preferred: bool,
    /// Identifies the registration.
    socket: String,
    /// Set while it takes the plugin for stopped, and refuses its devices.
    pub(super) stopped: bool,
}

/// Devices of the pod under admission that later containers are offered again, by resource.
#[derive(Default)]
pub(super) struct Reuse {
    pub(super) pod: String,
    pub(super) devices: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) view: View,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    pub(super) reuse: Reuse,
    /// Pods whose admission failed.
    pub(super) failed: BTreeSet<String>,
    pub(super) refuse: bool,
}

/// The time in which lists change the checkpoint once.
const SOON: Duration = Duration::from_millis(50);

pub(super) struct State {
    inner: Mutex<Inner>,
    pub(super) changed: Notify,
    /// Locked during the admission of a pod.
    pub(super) admission: tokio::sync::Mutex<()>,
    checkpoint: PathBuf,
    /// Notified when the checkpoint is older than the state.
    outdated: Notify,
    /// Set once the checkpoint belongs to another kubelet. Locked while it is written.
    stopped: Mutex<bool>,
}

impl State {
    /// Loads the checkpoint of this root directory.
    pub(super) fn new(dir: &Path, refuse: bool) -> Arc<Self> {
        let checkpoint = dir.join("device-plugins").join(checkpoint::FILE);
        let inner = Inner { view: checkpoint::read(&checkpoint), refuse, ..Inner::default() };
        let (changed, outdated) = (Notify::new(), Notify::new());
        let (admission, stopped) = (tokio::sync::Mutex::default(), Mutex::default());
        Arc::new(Self { inner: Mutex::new(inner), changed, admission, checkpoint, outdated, stopped })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_waiters();
        changed
    }

    /// Writes the checkpoint, as a real kubelet does after each admission.
    pub(super) fn save(&self) {
        let stopped = self.stopped.lock().unwrap();
        if !*stopped {
            checkpoint::write(&self.checkpoint, &self.lock().view);
        }
    }

    /// Has the checkpoint written in a moment: a real kubelet writes it for each list, but thousands in a row are one here.
    pub(super) fn save_soon(&self) {
        self.outdated.notify_one();
    }

    /// Writes the checkpoint whenever it is outdated.
    pub(super) async fn keep_saved(self: Arc<Self>) {
        loop {
            self.outdated.notified().await;
            sleep(SOON).await;
            self.save();
        }
    }

    /// Leaves the checkpoint to the next kubelet.
    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl Inner {
    /// Returns whether to refuse a registration, and counts refusals.
    pub(super) fn refuses(&mut self) -> bool {
        self.view.refused += usize::from(self.refuse);
        self.refuse
    }

    pub(super) fn connected(
        &mut self,
        resource: &str,
        socket: &str,
        client: DevicePluginClient<Channel>,
        options: DevicePluginOptions,
    ) {
        let offers_preferred = options.get_preferred_allocation_available;
        let endpoint = Endpoint { client, offers_preferred, socket: socket.to_owned(), stopped: false };
        self.endpoints.insert(resource.to_owned(), endpoint);
        let view = self.view.resources.entry(resource.to_owned()).or_default();
        view.connected = true;
        view.registrations += 1;
        view.endpoint = socket.to_owned();
        view.options = (offers_preferred, options.pre_start_required);
    }

    /// Applies a list, by resource name: like the real one it ignores from which registration it came.
    pub(super) fn listed(&mut self, resource: &str, list: ListAndWatchResponse) {
        let view = self.view.resources.entry(resource.to_owned()).or_default();
        let list: List = list.devices.into_iter().map(|device| (device.id, device.health == "Healthy")).collect();
        let of =
            |wanted: bool| list.iter().filter(|(_, healthy)| *healthy == wanted).map(|(id, _)| id.clone()).collect();
        (view.healthy, view.unhealthy) = (of(true), of(false));
        view.lists.push(list);
    }

    /// Handles the end of a connection. With `late` the resource becomes unhealthy even if it has registered again.
    pub(super) fn disconnected(&mut self, resource: &str, socket: &str, late: bool) {
        let current = self.endpoints.get(resource).is_some_and(|endpoint| endpoint.socket == socket);
        let view = self.view.resources.entry(resource.to_owned()).or_default();
        if current {
            view.connected = false;
        }
        view.late_disconnects += usize::from(late && !current);
        self.endpoints.get_mut(resource).into_iter().for_each(|endpoint| endpoint.stopped |= late && !current);
        if current || late {
            view.unhealthy.append(&mut view.healthy);
        }
    }

    /// Adds a resource as after a start: known, without a plugin.
    pub(super) fn is_known(&self, resource: &str) -> bool {
        self.view.resources.contains_key(resource)
    }

    pub(super) fn resource(&self, name: &str) -> ResourceView {
        self.view.resource(name)
    }

    /// Fails a pod for good and frees its devices.
    pub(super) fn pod_failed(&mut self, pod: &str) {
        self.failed.insert(pod.to_owned());
        self.remove_pod(pod);
    }

    pub(super) fn remove_pod(&mut self, pod: &str) {
        self.view.bare.retain(|(of, _)| of != pod);
        self.free(pod);
    }

    pub(super) fn free(&mut self, pod: &str) {
        self.view.pods.retain(|(of, _, _), _| of != pod);
        if self.reuse.pod == pod {
            self.reuse = Reuse::default();
        }
    }

    /// Returns the allocated IDs of a resource.
    pub(super) fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let uses = self.view.pods.iter().filter(|((_, _, of), _)| of == resource);
        uses.flat_map(|(_, admitted)| admitted.ids.clone()).collect()
    }
}
