//! One resource, one socket, one server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin::device_plugin_server::DevicePluginServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::lists::{End, Streams};
use super::resource::Resource;
use super::service::{LAST_LINE, Service};
use super::socket::{OwnSocket, Sockets, incoming};

/// The largest request, in bytes: 4,096 ids of 256 bytes and what surrounds them.
const MAX_REQUEST: usize = 2 << 20;
/// How long calls in flight may take to end. None takes longer but those of a peer that does not read.
const DRAIN: Duration = Duration::from_secs(3);
/// How long a registration may go without a ListAndWatch stream: at first while the kubelet dials back, for which it
/// gives itself 10 s, later because only a kubelet that dies or errs lets go of it.
const FIRST_STREAM: Duration = Duration::from_secs(12);
const NO_STREAM: Duration = Duration::from_secs(1);

/// A device plugin server. Dropping it is like closing it silently, without waiting.
pub(super) struct Server {
    socket: OwnSocket,
    streams: Arc<Streams>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds a new socket and serves the resource on it.
    pub(super) fn start(sockets: &Arc<Sockets>, resource: Arc<dyn Resource>) -> io::Result<Self> {
        let (socket, listener) = sockets.bind(resource.name())?;
        let streams = Arc::new(Streams::default());
        let service = DevicePluginServer::new(Service { resource, streams: Arc::clone(&streams), limit: LAST_LINE })
            .max_decoding_message_size(MAX_REQUEST);
        let (stop, stopped) = oneshot::channel();
        let server = tonic::transport::Server::builder().add_service(service);
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            if let Err(error) = server.serve_with_incoming_shutdown(incoming(listener), stopped).await {
                tracing::warn!(%error, "a device plugin server failed");
            }
        });
        Ok(Self { socket, streams, stop: Some(stop), task })
    }

    /// The name of its socket, by which the kubelet finds it.
    pub(super) fn name(&self) -> &str {
        self.socket.name()
    }

    /// Begins the repetitions of rule 3.
    pub(super) fn registered(&self) {
        self.streams.phase.send_modify(|phase| phase.registered = Some(Instant::now()));
    }

    /// Whether the socket file was removed or replaced.
    pub(super) fn lost(&self) -> bool {
        self.socket.lost()
    }

    /// Ends when the kubelet does not watch the list although it should.
    pub(super) async fn unattended(&self) {
        // Whether one came makes no difference, for then there is one to wait for.
        let _ = timeout(FIRST_STREAM, self.streams.opened.notified()).await;
        loop {
            self.streams.phase.closed().await;
            sleep(NO_STREAM).await;
            if self.streams.phase.receiver_count() == 0 {
                return;
            }
        }
    }

    /// Ends the streams, then the connections, and removes the socket. Takes 3 s at most.
    pub(super) async fn close(mut self, end: End) {
        self.streams.phase.send_modify(|phase| phase.end = Some(end));
        drop(self.stop.take());
        if timeout(DRAIN, &mut self.task).await.is_err() {
            tracing::debug!("a kubelet connection is left to its peer, which does not read");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.streams.phase.send_modify(|phase| _ = phase.end.get_or_insert(End::Silent));
    }
}
