//! A call that was begun, seen from its caller.

use std::io;
use std::sync::Arc;

use akri_model::discovery::RoundError;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::{Connection, ReceivedReply, ended};
use crate::protocol::Request;

/// A call that was begun. If this is dropped before the answer, the call is cancelled in the process, and still counts until
/// it has ended there.
pub(crate) struct PendingCall {
    pub(super) connection: Arc<Connection>,
    pub(super) call: u64,
    pub(super) replies: UnboundedReceiver<Result<ReceivedReply, RoundError>>,
    /// The moment at which a process without an answer is killed.
    pub(super) kill_at: Instant,
    /// Set until there is an answer, or the caller is gone.
    pub(super) is_running: bool,
}

impl PendingCall {
    /// Waits for the next reply: parts of a large answer, and then the answer.
    pub(crate) async fn next(&mut self) -> Result<ReceivedReply, RoundError> {
        let received = match timeout_at(self.kill_at, self.replies.recv()).await {
            Ok(received) => received,
            Err(_) => {
                warn!(pid = self.connection.process.pid, "the sandbox process does not answer; killing it");
                self.connection.kill("since it did not answer", false);
                self.replies.recv().await
            }
        };
        let received = received.unwrap_or_else(|| Err(ended()));
        if !received.as_ref().is_ok_and(ReceivedReply::is_part) {
            self.is_running = false;
        }
        received
    }

    /// Ends the process, since its answer can't be read. Returns the error of the call.
    pub(crate) fn reject(&self, error: &io::Error) -> RoundError {
        let how = format!("after an answer that can't be read ({error})");
        self.connection.kill(&how, true);
        RoundError::ProcessEnded(format!("the sandbox process was ended {how}"))
    }

    /// Waits for the end of a call that nobody waits for.
    async fn finish(mut self) {
        while self.next().await.is_ok_and(|received| received.is_part()) {}
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_running {
            return;
        }
        self.connection.send(&Request::Cancel { call: self.call });
        let cancelled = Self {
            connection: Arc::clone(&self.connection),
            call: self.call,
            replies: std::mem::replace(&mut self.replies, unbounded_channel().1),
            kill_at: self.kill_at,
            is_running: false,
        };
        // At the end of the runtime nothing has to be waited for.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(cancelled.finish());
        }
    }
}
