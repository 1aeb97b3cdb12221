//! Device plugins: what the kubelet sees of us.
//!
//! Each [`Resource`] gets a socket of its own in the kubelet's `device-plugins` directory and is registered there, anew
//! whenever the kubelet starts anew or the socket is lost. A resource costs tasks, no threads.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::metrics::Metrics;
use kubelet::Watcher;
use registration::{Common, Registration};
use resource::Resource;
use socket::Sockets;

pub mod authority;
pub(crate) mod channel;
mod convert;
mod kubelet;
mod lists;
pub mod pod_resources;
mod registration;
pub mod resource;
mod server;
mod service;
pub(crate) mod socket;

/// How many resources there are and how many of them the kubelet knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registered {
    /// Resources that are served, or will be once there is a kubelet.
    pub wanted: usize,
    /// Resources the kubelet of now has accepted.
    pub registered: usize,
}

/// All device plugins of this agent. Dropping it is like [`Plugins::shutdown`] without waiting.
pub struct Plugins {
    common: Arc<Common>,
    /// Its receivers are the tasks of the plugins.
    shutdown: watch::Sender<bool>,
}

impl Plugins {
    /// Begins to look for a kubelet in `device-plugins` below its root directory (`/var/lib/kubelet`). Neither directory nor kubelet has to be there. Wants a tokio runtime.
    pub fn start(kubelet_dir: &Path, metrics: Metrics) -> Self {
        let sockets = Arc::new(Sockets::new(kubelet_dir.join("device-plugins")));
        let watch = Watcher::start(Arc::clone(&sockets));
        Self { common: Arc::new(Common::new(sockets, watch, metrics)), shutdown: watch::Sender::new(false) }
    }

    /// Serves a resource until its plugin is closed or its own [`closed`] flag is set. One resource name is to be served
    /// once at a time: wait for [`Plugin::close`] before serving it again.
    ///
    /// [`closed`]: resource::Advertised::closed
    pub fn serve(&self, resource: Arc<dyn Resource>) -> Plugin {
        let (close, closed) = oneshot::channel();
        let registration = Registration::new(Arc::clone(&self.common), resource, closed, self.shutdown.subscribe());
        Plugin { close, task: tokio::spawn(registration.run()) }
    }

    /// The counts, now and on every change.
    pub fn registered(&self) -> watch::Receiver<Registered> {
        self.common.counts.subscribe()
    }

    /// Ends every stream and removes the sockets. The kubelet gets no empty lists: the devices are still there, and the
    /// pods that use them are to outlive the agent. Takes 3 s at most.
    pub async fn shutdown(&self) {
        self.shutdown.send_replace(true);
        self.shutdown.closed().await;
    }
}

/// A served resource. Dropping it ends the stream and removes the socket without waiting; unlike [`Plugin::close`] it
/// takes no device away.
#[must_use = "a plugin ends when it is dropped"]
pub struct Plugin {
    close: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Plugin {
    /// Sends the kubelet an empty list, so that it forgets the devices, ends the stream and removes the socket. Takes
    /// 3 s at most, as long as a call of the kubelet that is under way.
    pub async fn close(self) {
        // Nobody listens if the plugin has ended by itself.
        let _ = self.close.send(());
        // The task ends by itself; should it have panicked, its socket is removed all the same.
        let _ = self.task.await;
    }
}
