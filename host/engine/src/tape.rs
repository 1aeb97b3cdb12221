//! The seam for recorders and players of calls. The crate that records and plays replaces functions of the linker
//! ([`LocalHost::taping`](crate::LocalHost::taping)); these hooks are for what no function of the linker does.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use serde_json::Value;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi_http::WasiBody;

use crate::network::http::Answered;

/// The response to a request, as soon as it is there.
pub type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;
/// Sends a request to where the grants allow.
pub type SendRequest = Box<dyn FnOnce(Request<WasiBody>) -> Answering + Send>;

/// Records the calls of a round that reach outside of the host, or answers them in place of the outside.
pub trait Tape: Any + Send + Sync {
    /// Shows a call that the host itself answers.
    fn trace(&self, _call: &str, _arguments: &dyn Fn() -> Value) {}

    /// Returns the time left in the round, if that goes by a clock of its own.
    fn time_left(&self) -> Option<Duration> {
        None
    }

    /// Notes that the guest computes, or calls the host.
    fn set_computing(&self, _is_computing: bool) {}

    /// Sets clocks and random numbers.
    fn configure(self: Arc<Self>, wasi: &mut WasiCtxBuilder);

    /// Sends an HTTP request and records it, or answers it.
    fn send_request(self: Arc<Self>, request: Request<WasiBody>, send: SendRequest) -> Answering;

    /// Waits until the round can't go on.
    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}
