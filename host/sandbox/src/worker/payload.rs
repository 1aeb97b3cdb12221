//! Payloads of replies, and devices that come in parts.

use std::sync::mpsc;

use tokio::task::{JoinHandle, spawn_blocking};

use super::protocol::{LARGEST_REPLY, ProtocolError, ReceivedDevices};

/// Bytes of devices that are decoded without a thread of their own.
const AT_ONCE: usize = 64 << 10;

/// The payload of a reply: the rest of its frame, and devices that came before it.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) frame: Vec<u8>,
    pub(super) start: usize,
    pub(super) earlier: Option<EarlierDevices>,
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        self.frame.get(self.start..).unwrap_or_default()
    }

    /// Returns the devices in it. Many are decoded on a thread of their own.
    ///
    /// # Errors
    /// If there is something else in it.
    pub(super) async fn devices(mut self) -> Result<ReceivedDevices, ProtocolError> {
        let mut devices = ReceivedDevices::default();
        let earlier = self.earlier.take();
        if earlier.is_none() && self.bytes().len() <= AT_ONCE {
            return devices.add(self.bytes()).map(|()| devices);
        }
        let decoder = earlier.unwrap_or_else(EarlierDevices::start);
        let _ = decoder.payloads.send(self); // after an error, which it returns
        decoder.decoded().await
    }
}

/// Devices of a reply that a thread decodes while others are on the way.
#[derive(Debug)]
pub(super) struct EarlierDevices {
    payloads: mpsc::Sender<Payload>,
    bytes: usize,
    decoded: JoinHandle<Result<ReceivedDevices, ProtocolError>>,
}

impl EarlierDevices {
    pub(super) fn start() -> Self {
        let (payloads, received) = mpsc::channel::<Payload>();
        let decode = move || {
            let mut devices = ReceivedDevices::default();
            received.iter().try_for_each(|payload| devices.add(payload.bytes()))?;
            Ok(devices)
        };
        Self { payloads, bytes: 0, decoded: spawn_blocking(decode) }
    }

    pub(super) fn add(&mut self, payload: Payload) -> Result<(), ProtocolError> {
        self.count(payload.frame.len().saturating_add(size_of::<Payload>()))?;
        let _ = self.payloads.send(payload); // after an error, which the answer meets
        Ok(())
    }

    /// Counts bytes of the reply: all of its frames together are bounded as one would be.
    pub(super) fn count(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > LARGEST_REPLY {
            return Err(ProtocolError::new("too many bytes of devices"));
        }
        Ok(())
    }

    pub(super) async fn decoded(self) -> Result<ReceivedDevices, ProtocolError> {
        drop(self.payloads);
        self.decoded.await.map_err(ProtocolError::new)?
    }
}
