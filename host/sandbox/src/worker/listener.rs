//! A multicast listener in a sandbox process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use akri_model::datagram::DatagramFilter;
use tokio::sync::Notify;

use super::connection::Connection;
use super::protocol::{Bounded, Request};
use super::workers::Worker;

/// Receives datagrams to a multicast group through a sandbox process. If that ends, the next one listens.
pub(crate) struct RemoteListener {
    worker: Arc<Worker>,
    id: u64,
    join: Request,
    wake: Arc<Notify>,
    /// The connection that has joined.
    joined: Weak<Connection>,
    /// The next datagram was asked for.
    is_armed: bool,
}

impl std::fmt::Debug for RemoteListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteListener").field("join", &self.join).finish_non_exhaustive()
    }
}

impl RemoteListener {
    pub(crate) fn new(
        worker: Arc<Worker>,
        group: SocketAddr,
        interfaces: &[String],
        filters: Vec<DatagramFilter>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (interfaces, filters) = (Bounded(interfaces.to_vec()), Bounded(filters));
        let join = Request::Join { listener: id, group, interfaces, filters };
        Self { worker, id, join, wake: Arc::default(), joined: Weak::new(), is_armed: false }
    }

    /// CallState for a datagram.
    pub(crate) async fn heard(&mut self) {
        loop {
            let Ok(connection) = self.worker.connect().await else { continue };
            if !Weak::ptr_eq(&self.joined, &Arc::downgrade(&connection)) {
                connection.subscribe(self.id, &self.wake);
                connection.send(&self.join).await;
                (self.joined, self.is_armed) = (Arc::downgrade(&connection), false);
            }
            if !self.is_armed {
                connection.send(&Request::Listen { listener: self.id }).await;
                self.is_armed = true;
            }
            tokio::select! {
                () = self.wake.notified() => {
                    self.is_armed = false;
                    return;
                }
                () = connection.closed() => {}
            }
        }
    }
}

impl Drop for RemoteListener {
    fn drop(&mut self) {
        if let Some(connection) = self.joined.upgrade() {
            connection.unsubscribe(self.id);
            connection.try_send(&Request::Leave { listener: self.id });
        }
    }
}
