//! Records what the calls of a round bring from outside.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant, SystemTime};

use akri_model::secret_scanner::SecretScanner;
use parking_lot::Mutex;

use crate::call::{Micros, Recorded, RecordedCall};
use crate::document::CASSETTE;

/// The calls of one round, in order.
pub struct Recorder {
    /// The seed of random numbers.
    pub(crate) seed: u64,
    begun: Instant,
    time: SystemTime,
    numbered: AtomicU32,
    state: Mutex<RecordedCalls>,
    trace: Option<Trace>,
}

#[derive(Debug, Default)]
struct RecordedCalls {
    calls: Vec<RecordedCall>,
    bytes: usize,
    is_over: bool,
}

/// The output of calls as they end, without secrets.
pub struct Trace {
    /// The secrets.
    pub secrets: SecretScanner,
    /// Prints a call: microseconds since the round began; its name, and its arguments and result as JSON.
    pub print: fn(u64, &str),
}

impl Recorder {
    /// Begins now. The guest's random numbers follow from the seed.
    pub fn new(seed: u64, trace: Option<Trace>) -> Self {
        Self {
            seed,
            begun: Instant::now(),
            time: SystemTime::now(),
            numbered: AtomicU32::default(),
            state: Mutex::default(),
            trace,
        }
    }

    /// Milliseconds since 1970 at which the round began.
    pub fn time(&self) -> u64 {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The calls so far. None if they are more than a cassette can hold.
    pub(crate) fn calls(&self) -> Option<Vec<RecordedCall>> {
        let state = self.state.lock();
        (!state.is_over).then(|| state.calls.clone())
    }

    /// The time of a call that ends now.
    fn at(&self) -> Micros {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn recorded(&self, call: Recorded) -> RecordedCall {
        RecordedCall { line: 0, call, at: self.at() }
    }

    /// A number for a new socket or conversation.
    pub(crate) fn number(&self) -> u32 {
        self.numbered.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a call that ends now.
    pub(crate) fn push(&self, call: Recorded) {
        let call = self.recorded(call);
        self.trace_call(&call);
        let mut state = self.state.lock();
        if state.count(&call.call) && !state.join(&call.call) {
            state.calls.push(call);
        }
    }

    /// Adds a call without a result yet. Its place is that of its begin: calls of one kind are played in this order.
    pub(crate) fn begin(&self, call: Recorded) -> usize {
        let call = self.recorded(call);
        let mut state = self.state.lock();
        if state.count(&call.call) {
            state.calls.push(call);
        }
        state.calls.len().saturating_sub(1)
    }

    /// Puts a call that ends now in the place of one that was begun.
    pub(crate) fn finish(&self, index: usize, call: Recorded) {
        let call = self.recorded(call);
        self.trace_call(&call);
        let mut state = self.state.lock();
        if state.count(&call.call)
            && let Some(begun) = state.calls.get_mut(index)
        {
            *begun = call;
        }
    }

    /// Shows a call that needs no place in a cassette, since the host itself answers it.
    pub(crate) fn trace_by_host(&self, call: &str, arguments: &dyn Fn() -> serde_json::Value) {
        self.show(self.at(), || format!("{{\"call\":\"{call}\",\"arguments\":{}}}", arguments()), None);
    }

    fn trace_call(&self, call: &RecordedCall) {
        self.show(call.at, || serde_json::to_string(call).unwrap_or_default(), Some(&call.call));
    }

    fn show(&self, at: Micros, text: impl FnOnce() -> String, call: Option<&Recorded>) {
        let Some(Trace { secrets, print }) = &self.trace else { return };
        // Bytes of a recorded call may be in hex in the text.
        let text = match call.and_then(|call| Some((call.import().0, call.secret(secrets)?))) {
            Some((name, secret)) => format!("{{\"call\":\"{name}\"}} (withheld: it contains the secret '{secret}')"),
            None => secrets.hide(text()),
        };
        print(at, &text);
    }

    /// Shows the calls without a result, at the end of the round.
    pub fn end_trace(&self) {
        let state = self.state.lock();
        state.calls.iter().filter(|recorded| recorded.call.is_silent()).for_each(|call| self.trace_call(call));
    }
}

impl RecordedCalls {
    /// Counts the bytes of a call. Returns false if there are too many.
    fn count(&mut self, call: &Recorded) -> bool {
        self.bytes = self.bytes.saturating_add(call.bytes());
        if self.bytes > CASSETTE / 4 {
            // The round goes on: being recorded does not change it.
            self.is_over = true;
            self.calls.clear();
        }
        !self.is_over
    }

    /// Joins what is sent in pieces: where these end is a matter of the host. Returns false if the call is one of its own.
    fn join(&mut self, call: &Recorded) -> bool {
        let Recorded::TcpSend { socket, bytes } = call else { return false };
        let of_this = |earlier: &&mut Recorded| {
            matches!(&**earlier,
                Recorded::TcpSend { socket: other, .. } | Recorded::TcpReceive { socket: other, .. } if other == socket)
        };
        let latest = self.calls.iter_mut().rev().take(64).map(|recorded| &mut recorded.call).find(of_this);
        let Some(Recorded::TcpSend { bytes: before, .. }) = latest else { return false };
        before.0.extend_from_slice(&bytes.0);
        true
    }
}
