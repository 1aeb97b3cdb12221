//! A multicast listener in a sandbox process.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use akri_model::datagram::DatagramFilter;
use tokio::sync::Notify;

use super::connection::Connection;
use super::protocol::{Bounded, Request};
use super::workers::Worker;

/// Receives datagrams to a multicast group through a sandbox process. If that ends, the next one listens.
pub(crate) struct WorkerListener {
    /// The process, which a listener does not keep: it ends when its components have been replaced.
    worker: Weak<Worker>,
    id: u64,
    join: Request,
    wake: Arc<Notify>,
    /// The connection that has joined.
    joined: Weak<Connection>,
    /// The next datagram was asked for.
    is_armed: bool,
}

impl std::fmt::Debug for WorkerListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerListener").field("join", &self.join).finish_non_exhaustive()
    }
}

impl WorkerListener {
    pub(crate) fn new(
        worker: &Arc<Worker>,
        group: SocketAddr,
        interfaces: &[String],
        filters: Vec<DatagramFilter>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (interfaces, filters) = (Bounded(interfaces.to_vec()), Bounded(filters));
        let join = Request::Join { listener: id, group, interfaces, filters };
        Self { worker: Arc::downgrade(worker), id, join, wake: Arc::default(), joined: Weak::new(), is_armed: false }
    }

    /// Returns whether it listens in that process.
    pub(super) fn is_in(&self, worker: &Arc<Worker>) -> bool {
        Weak::ptr_eq(&self.worker, &Arc::downgrade(worker))
    }

    /// Waits for a datagram; forever, once the process is not needed any more.
    pub(crate) async fn received(&mut self) {
        loop {
            let Some(worker) = self.worker.upgrade() else { return pending().await };
            let connection = worker.connect().await;
            drop(worker);
            let Ok(connection) = connection else { continue };
            if !Weak::ptr_eq(&self.joined, &Arc::downgrade(&connection)) {
                connection.subscribe(self.id, &self.wake);
                connection.send(&self.join).await;
                (self.joined, self.is_armed) = (Arc::downgrade(&connection), false);
            }
            if !self.is_armed {
                connection.send(&Request::Listen { listener: self.id }).await;
                self.is_armed = true;
            }
            let closed = connection.closed();
            drop(connection);
            tokio::select! {
                () = self.wake.notified() => {
                    self.is_armed = false;
                    return;
                }
                () = closed => {}
            }
        }
    }
}

impl Drop for WorkerListener {
    fn drop(&mut self) {
        if let Some(connection) = self.joined.upgrade() {
            connection.unsubscribe(self.id);
            connection.try_send(&Request::Leave { listener: self.id });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::process::{ReadablePaths, WorkerProgram};
    use super::super::workers::WorkerContext;
    use super::*;

    #[tokio::test]
    async fn listener_does_not_keep_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let any = directory.path().to_owned();
        let paths = ReadablePaths { compiled: any.clone(), sysfs: any.clone(), udev_data: any };
        let program = WorkerProgram { path, arguments: Vec::new(), memory_bytes: 1 };
        let worker = Arc::new(Worker::new("test".to_owned(), Arc::new(WorkerContext::new(program, paths))));
        let mut listener = WorkerListener::new(&worker, "239.0.0.1:1".parse().unwrap(), &[], Vec::new());
        assert!(listener.is_in(&worker));
        let connection = worker.connect().await.unwrap();
        let closed = connection.closed();
        drop(connection);
        assert!(timeout(Duration::from_millis(50), listener.received()).await.is_err(), "nothing was sent");
        let listening = tokio::spawn(async move { listener.received().await });
        tokio::task::yield_now().await;
        drop(worker);
        timeout(Duration::from_secs(20), closed).await.unwrap();
        assert!(timeout(Duration::from_millis(50), listening).await.is_err(), "it waits, and starts no other process");
    }
}
