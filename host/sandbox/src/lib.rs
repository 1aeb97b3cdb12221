//! Runs WebAssembly components as discovery handlers (`wit/`).
//!
//! ```text
//! Host ── load(bytes) ──► Component ── validate(Call) ──► triggers
//!   │                              ├── discover(Call) ──► DeviceSet
//!   │                              └── coverage(Grants) ─► what it imports, beside what it is granted
//!                                └── listen(group) ─► Listener: datagrams between rounds
//! ```
//! Each call gets a store of its own, on threads that run guests and nothing else, and ends when its deadline does,
//! whatever the guest does meanwhile. A trap, a deadline or a limit is an error value; the store is gone afterwards, and with
//! it every socket, request and secret it held. What a guest may reach is decided by the grants of the call alone
//! (`capabilities`, `network`, `multicast`); what it may use, by the limits.
//!
//! Components run in this process, or in sandbox processes (`worker`), with the same facade.
//!
//! No type of wasmtime, and none made from the WIT package, leaves this crate.

mod bindings;
mod cache;
mod capabilities;
pub mod cassette;
mod compile;
mod compiled;
mod component;
mod confine;
mod contract;
mod convert;
mod coverage;
mod handler;
mod host;
mod instance_cost;
mod limiter;
mod listener;
mod log;
mod network;
mod rates;
mod round;
mod runtime;
mod worker;

#[cfg(test)]
mod hostile;

pub use self::cache::Cache;
pub use self::compile::{CompileError, PrecompileError, compile_here, precompile};
pub use self::component::{Call, LoadError};
pub use self::coverage::{Covered, Import, Kind, cautions, covers_subsystem};
pub use self::handler::Component;
pub use self::host::{FindError, Found, Host, HostConfig, SandboxError};
pub use self::listener::Listener;
pub use self::log::LogLine;
pub use self::rates::Rates;
pub use self::worker::{WorkerProgram, WorkerSettings, serve_standard_input};
