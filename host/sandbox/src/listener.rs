//! A multicast listener in a sandbox process.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use akri_model::datagram::DatagramFilter;
use tokio::sync::Notify;

use super::connection::Connection;
use super::protocol::Request;
use super::sandbox_process::SandboxProcess;

/// Receives datagrams to a multicast group between rounds, through a sandbox process. If that ends, the next one listens. Made
/// by [`Component::listen`](crate::Component::listen).
pub struct MulticastListener {
    /// The process, which a listener does not keep: it ends when its components have been replaced.
    process: Weak<SandboxProcess>,
    id: u64,
    join: Request,
    wake: Arc<Notify>,
    /// The connection that has joined.
    joined: Weak<Connection>,
    /// The next datagram was asked for.
    is_armed: bool,
}

impl MulticastListener {
    pub(crate) fn new(
        process: &Arc<SandboxProcess>,
        group: SocketAddr,
        interfaces: &[String],
        filters: Vec<DatagramFilter>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let join = Request::Join { listener: id, group, interfaces: interfaces.to_vec(), filters };
        Self { process: Arc::downgrade(process), id, join, wake: Arc::default(), joined: Weak::new(), is_armed: false }
    }

    /// Returns whether it listens in that process.
    pub(crate) fn is_in(&self, process: &Arc<SandboxProcess>) -> bool {
        Weak::ptr_eq(&self.process, &Arc::downgrade(process))
    }

    /// Waits for a datagram that one of the filters lets through; forever, once the process is not needed any more. All that
    /// came in by then count as one. May be dropped and called again: what comes in meanwhile is kept, as far as the kernel's
    /// buffers go.
    pub async fn received(&mut self) {
        loop {
            let Some(process) = self.process.upgrade() else { return pending().await };
            let connection = process.connect().await;
            drop(process);
            let Ok(connection) = connection else { continue };
            if !Weak::ptr_eq(&self.joined, &Arc::downgrade(&connection)) {
                connection.subscribe(self.id, &self.wake);
                connection.send(&self.join);
                (self.joined, self.is_armed) = (Arc::downgrade(&connection), false);
            }
            if !self.is_armed {
                connection.send(&Request::Listen { listener: self.id });
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

impl Drop for MulticastListener {
    fn drop(&mut self) {
        if let Some(connection) = self.joined.upgrade() {
            connection.unsubscribe(self.id);
            connection.send(&Request::Leave { listener: self.id });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::process::{ReadablePaths, SandboxProgram};
    use super::super::sandbox_process::ProcessContext;
    use super::super::testing::write_script;
    use super::*;

    #[tokio::test]
    async fn listener_does_not_keep_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        write_script(&path, "exec sleep 60");
        let any = directory.path().to_owned();
        let paths = ReadablePaths { compiled: any.clone(), sysfs: any.clone(), udev_data: any };
        let program = SandboxProgram { path, arguments: Vec::new(), memory_bytes: 1 };
        let context =
            Arc::new(ProcessContext { program, paths, rates: akri_engine::Rates::default(), _temporary: None });
        let process = Arc::new(SandboxProcess::new("test".to_owned(), context));
        let mut listener = MulticastListener::new(&process, "239.0.0.1:1".parse().unwrap(), &[], Vec::new());
        assert!(listener.is_in(&process));
        let connection = process.connect().await.unwrap();
        let closed = connection.closed();
        drop(connection);
        assert!(timeout(Duration::from_millis(50), listener.received()).await.is_err(), "nothing was sent");
        let listening = tokio::spawn(async move { listener.received().await });
        tokio::task::yield_now().await;
        drop(process);
        timeout(Duration::from_secs(20), closed).await.unwrap();
        assert!(timeout(Duration::from_millis(50), listening).await.is_err(), "it waits, and starts no other process");
    }
}
