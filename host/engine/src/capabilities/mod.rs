//! The host functions that a guest can call, one file per interface of `wit/`. Every interface is linked for every
//! guest; the grants of the round decide about each call.

mod cache;
mod http;
mod logging;
pub(crate) mod multicast;
pub(crate) mod names;
pub(crate) mod properties;
mod round;
pub(crate) mod secrets;
mod sockets;
pub(crate) mod udev;
mod wasi;

use akri_node::Stop;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

pub use self::sockets::guest_result;
use crate::bindings::DiscoveryHandler;
use crate::bindings::types::{self, AccessError};
use crate::round::Round;

/// A linker with all of `akri:discovery` and WASI 0.2.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Round>> {
    let mut linker = Linker::new(engine);
    wasi::link(&mut linker)?;
    DiscoveryHandler::add_to_linker::<_, HasSelf<Round>>(&mut linker, |round| round)?;
    Ok(linker)
}

impl types::Host for Round {}

/// Converts an error of the node for the guest that used an interface.
fn access_error(interface: &str, stop: Stop) -> AccessError {
    match stop {
        Stop::Limit(what) => AccessError::Limit(format!("akri:discovery/{interface}: {what}")),
        Stop::Unavailable(what) => AccessError::Unavailable(format!("akri:discovery/{interface}: {what}")),
    }
}
