//! Streams of `wasi:sockets` with a tape: those of a recorded connection, and those that a cassette answers.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::bindings::sockets::network::ErrorCode;
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

use crate::call::Recorded;
use crate::call_queue::QueueKey;
use crate::errors::socket_error;
use crate::payload::Payload;
use crate::player::Player;
use crate::recorder::Recorder;

/// Bytes a guest may write at once.
const PERMIT: usize = 64 << 10;

/// Records what goes through a stream of a connection.
pub(super) struct Watched<T: ?Sized> {
    pub(super) inner: Box<T>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) socket: u32,
    /// Set if its end or an error is recorded.
    pub(super) is_closed: bool,
}

#[async_trait]
impl<T: Pollable + ?Sized> Pollable for Watched<T> {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl InputStream for Watched<dyn InputStream> {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let read = self.inner.read(size);
        let received = match &read {
            Ok(bytes) if !bytes.is_empty() => Some((Payload::from(&**bytes), false, None)),
            Err(StreamError::Closed) if !self.is_closed => Some((Payload::default(), true, None)),
            Err(StreamError::LastOperationFailed(error)) if !self.is_closed => {
                let code = error.downcast_ref().map_or(ErrorCode::ConnectionReset, |code: &ErrorCode| *code);
                Some((Payload::default(), false, Some(code.name().to_owned())))
            }
            _ => None,
        };
        if let Some((bytes, end, error)) = received {
            self.recorder.push(Recorded::TcpReceive { socket: self.socket, bytes, end, error });
        }
        self.is_closed |= read.is_err();
        read
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

#[async_trait]
impl OutputStream for Watched<dyn OutputStream> {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let sent = Payload::from(&*bytes);
        self.inner.write(bytes)?;
        self.recorder.push(Recorded::TcpSend { socket: self.socket, bytes: sent });
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

/// Gives what the recorded connection received.
pub(super) struct PlayedInput {
    pub(super) player: Arc<Player>,
    pub(super) socket: u32,
    pub(super) is_closed: bool,
}

#[async_trait]
impl Pollable for PlayedInput {
    async fn ready(&mut self) {
        if !self.is_closed {
            self.player.clock.until(self.player.due(&QueueKey::Tcp(self.socket))).await;
        }
    }
}

#[async_trait]
impl InputStream for PlayedInput {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if self.is_closed {
            return Err(StreamError::Closed);
        }
        if size == 0 {
            return Ok(Bytes::new());
        }
        let received = self.player.receive(&QueueKey::Tcp(self.socket), size);
        let Some(Recorded::TcpReceive { bytes, end, error, .. }) = received else { return Ok(Bytes::new()) };
        self.is_closed = end || error.is_some();
        match error {
            Some(error) => Err(StreamError::LastOperationFailed(socket_error(&error).into())),
            None if end => Err(StreamError::Closed),
            None => Ok(bytes.0.into()),
        }
    }
}

/// A connection that takes what the recorded one sent.
pub(super) struct PlayedOutput {
    pub(super) player: Arc<Player>,
    pub(super) socket: u32,
}

#[async_trait]
impl Pollable for PlayedOutput {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for PlayedOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.player.send_tcp(self.socket, &bytes).map_err(|mismatch| StreamError::Trap(mismatch.into()))
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT)
    }
}

/// The datagrams of a played socket.
pub(super) struct PlayedDatagrams {
    pub(super) player: Arc<Player>,
    pub(super) socket: u32,
}

#[async_trait]
impl Pollable for PlayedDatagrams {
    async fn ready(&mut self) {
        self.player.clock.until(self.player.due(&QueueKey::Udp(self.socket))).await;
    }
}
