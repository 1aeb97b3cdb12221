//! Listeners to multicast groups, wherever they listen.

use crate::worker::WorkerListener;

/// Receives datagrams to a multicast group between rounds. Made by [`Component::listen`](crate::Component::listen).
#[derive(Debug)]
pub struct Listener(Backend);

#[derive(Debug)]
enum Backend {
    Local(akri_node::multicast::Listener),
    Remote(WorkerListener),
}

impl From<akri_node::multicast::Listener> for Listener {
    fn from(listener: akri_node::multicast::Listener) -> Self {
        Self(Backend::Local(listener))
    }
}

impl From<WorkerListener> for Listener {
    fn from(listener: WorkerListener) -> Self {
        Self(Backend::Remote(listener))
    }
}

impl Listener {
    /// Returns the sandbox process's listener, if one listens.
    pub(crate) fn remote(&self) -> Option<&WorkerListener> {
        match &self.0 {
            Backend::Local(_) => None,
            Backend::Remote(listener) => Some(listener),
        }
    }

    /// Waits for a datagram that one of the filters lets through. All that came in by then count as one. May be
    /// dropped and called again: what comes in meanwhile is kept, as far as the kernel's buffers go.
    pub async fn received(&mut self) {
        match &mut self.0 {
            Backend::Local(listener) => listener.received().await,
            Backend::Remote(listener) => listener.received().await,
        }
    }
}
