//! What a guest can call, one file per interface of `wit/`. Every interface is linked for every guest; the grants of
//! the round decide what it answers.

mod cache;
mod logging;
mod multicast;
mod properties;
mod round;
mod secrets;
pub(crate) mod udev;

use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings::DiscoveryHandler;
use crate::bindings::types::{self, AccessError};
use crate::round::Round;

/// A linker with all of `akri:discovery` and WASI 0.2.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Round>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    DiscoveryHandler::add_to_linker::<_, HasSelf<Round>>(&mut linker, |round| round)?;
    Ok(linker)
}

impl types::Host for Round {}

/// The answer of an interface that no grant opens yet.
fn no_grant_exists(interface: &str) -> AccessError {
    AccessError::NotGranted(format!("akri:discovery/{interface}: no grant exists for it yet"))
}
