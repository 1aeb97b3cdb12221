//! The gRPC server of one resource on its own socket.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin::device_plugin_server::DevicePluginServer;
use akri_grpc::unix::incoming;
use futures::StreamExt as _;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::allocatable::KeptDevices;
use crate::lists::{StreamEnd, Streams};
use crate::resource::Resource;
use crate::service::{CALL_TIMEOUT, Service};
use crate::socket::{CONNECTIONS, PluginSocket, Sockets};

/// Limit on a request, in bytes: 4,096 IDs of 256 bytes and their encoding.
const MAX_REQUEST: usize = 2 << 20;
/// Limit on the streams of one connection; a kubelet opens two or three.
const STREAMS: u32 = 64;
/// Time for calls in flight to end. Only a peer that does not read takes longer.
const DRAIN: Duration = Duration::from_secs(3);
/// Time that a registration may go without a ListAndWatch stream: first until the kubelet has dialled back, which has a
/// timeout of 10 s, later shorter, because only a stopping or failing kubelet closes the stream.
const FIRST_STREAM: Duration = Duration::from_secs(12);
const NO_STREAM: Duration = Duration::from_secs(1);

/// A device plugin server. Dropping it ends its streams silently, without waiting.
pub(super) struct Server {
    pub(super) socket: PluginSocket,
    streams: Arc<Streams>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds a new socket and serves the resource on it.
    pub(super) fn start(
        sockets: &Arc<Sockets>,
        kept: &Arc<KeptDevices>,
        resource: Arc<dyn Resource>,
    ) -> io::Result<Self> {
        let (socket, listener) = sockets.bind(resource.name())?;
        let streams = Arc::new(Streams::new(resource.name(), Arc::clone(kept)));
        let service = DevicePluginServer::new(Service { resource, streams: Arc::clone(&streams), limit: CALL_TIMEOUT })
            .max_decoding_message_size(MAX_REQUEST);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, service, stopped));
        Ok(Self { socket, streams, stop: Some(stop), task })
    }

    /// Starts the repetitions of rule 3.
    pub(super) fn registered(&self) {
        self.streams.phase.send_modify(|phase| phase.registered = Some(Instant::now()));
    }

    /// Waits until the kubelet has no ListAndWatch stream although it should.
    pub(super) async fn stream_missing(&self) {
        // The result does not matter: either a stream was opened, or the loop finds that none is.
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
    pub(super) async fn close(mut self, end: StreamEnd) {
        self.streams.phase.send_modify(|phase| phase.end = Some(end));
        drop(self.stop.take());
        if timeout(DRAIN, &mut self.task).await.is_err() {
            tracing::debug!("leaving a kubelet connection whose peer does not read");
        }
    }
}

/// Serves the kubelet's connections until it is to stop, and then the calls in flight. Without the router of a gRPC server for many
/// services, which each of hundreds of resources would keep in memory.
async fn serve(listener: UnixListener, service: DevicePluginServer<Service>, stopped: oneshot::Receiver<()>) {
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2.max_concurrent_streams(STREAMS);
    let connections = GracefulShutdown::new();
    let accept = async {
        let mut incoming = pin!(incoming(listener, CONNECTIONS, |_| true));
        while let Some(stream) = incoming.next().await {
            match stream {
                Ok(stream) => {
                    let service = TowerToHyperService::new(service.clone());
                    let connection = connections.watch(http2.serve_connection(TokioIo::new(stream), service));
                    drop(tokio::spawn(connection)); // a connection that fails is the kubelet's affair
                }
                Err(error) => tracing::debug!(%error, "a device plugin's socket accepts no connection"),
            }
        }
    };
    tokio::select! {
        () = accept => {}
        _ = stopped => {}
    }
    connections.shutdown().await;
}

impl Drop for Server {
    fn drop(&mut self) {
        self.streams.phase.send_modify(|phase| _ = phase.end.get_or_insert(StreamEnd::Silent));
    }
}
