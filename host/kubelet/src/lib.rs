//! Device plugins for the kubelet, and the kubelet's PodResources API. It knows nothing of Instances and slots.
//!
//! Each [`Resource`] is served on a socket of its own in the kubelet's `device-plugins` directory and registered there,
//! again whenever the kubelet restarts or the socket is lost. A resource costs tasks, not threads.

use std::path::Path;
use std::sync::Arc;

use akri_model::readiness::NOT_OFFERED;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

pub use akri_grpc::unix::FileId;
use registration::{PluginContext, Registration};
use resource::Resource;

mod allocatable;
pub mod checkpoint;
mod convert;
mod kubelet;
mod lists;
pub mod pod_resources;
mod registration;
pub mod resource;
mod server;
mod service;
mod socket;

/// Numbers of served and of registered resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistrationCounts {
    /// Resources that are served, or will be when a kubelet is available.
    pub wanted: usize,
    /// Resources accepted by the running kubelet.
    pub registered: usize,
    /// The state of the kubelet.
    pub kubelet: Kubelet,
}

/// The kubelet, as its socket for plugins shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// There is no socket.
    #[default]
    Absent,
    /// There is a socket on which nobody listens: the kubelet has crashed.
    Ended,
    /// It listens.
    Listens,
    /// It listens, and does not answer.
    Silent,
}

impl Kubelet {
    /// Returns why no pod is offered the devices, if the kubelet is the reason; `socket` is its socket.
    pub fn problem(self, socket: &Path) -> Option<String> {
        let socket = socket.display();
        let problem = match self {
            Self::Listens => return None,
            Self::Absent => format!("no kubelet listens on '{socket}'"),
            Self::Ended => format!("no kubelet listens on '{socket}', which one has left there: start the kubelet"),
            Self::Silent => format!("the kubelet listens on '{socket}' and does not answer: see its log"),
        };
        Some(format!("{problem}: {NOT_OFFERED}"))
    }
}

/// Sets what is known of the kubelet, if that is news.
fn set_kubelet(counts: &watch::Sender<RegistrationCounts>, kubelet: Kubelet) {
    counts.send_if_modified(|counts| std::mem::replace(&mut counts.kubelet, kubelet) != kubelet);
}

/// All device plugins of this process. Dropping it is like [`Plugins::shutdown`] without waiting.
pub struct Plugins {
    common: Arc<PluginContext>,
    /// The tasks of the plugins hold its receivers.
    shutdown: watch::Sender<bool>,
}

impl Plugins {
    /// Starts watching for a kubelet in `device-plugins` below its root directory (`/var/lib/kubelet`). Neither the
    /// directory nor the kubelet has to exist. Requires a tokio runtime. `registrations` counts successful
    /// registrations.
    pub fn start(kubelet_dir: &Path, registrations: Counter) -> Self {
        Self { common: Arc::new(PluginContext::new(kubelet_dir, registrations)), shutdown: watch::Sender::new(false) }
    }

    /// Serves a resource until its plugin is closed. Serve one resource name only once at a time: wait for [`Plugin::close`] before
    /// serving it again.
    pub fn serve(&self, resource: Arc<dyn Resource>) -> Plugin {
        let (close, closed) = oneshot::channel();
        let registration = Registration::new(Arc::clone(&self.common), resource, closed, self.shutdown.subscribe());
        Plugin { close, task: tokio::spawn(registration.run()) }
    }

    /// Returns the counts, and every change of them.
    pub fn counts(&self) -> watch::Receiver<RegistrationCounts> {
        self.common.counts.subscribe()
    }

    /// Ends every stream and removes the sockets. The kubelet gets no empty lists: the devices still exist, and the
    /// pods that use them outlive the agent. Takes 3 s at most.
    pub async fn shutdown(&self) {
        self.shutdown.send_replace(true);
        self.shutdown.closed().await;
    }
}

/// A served resource. Dropping it ends the stream and removes the socket without waiting; unlike [`Plugin::close`] it
/// keeps the devices in the kubelet's list.
#[must_use = "a plugin ends when it is dropped"]
pub struct Plugin {
    close: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Plugin {
    /// Sends the kubelet an empty list, so that it forgets the devices, ends the stream and removes the socket. Waits
    /// at most 3 s for calls in flight.
    pub async fn close(self) {
        // The receiver is gone if the plugin has ended by itself.
        let _ = self.close.send(());
        // If the task panicked, its socket is removed nevertheless.
        let _ = self.task.await;
    }
}
