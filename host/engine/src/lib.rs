//! Runs WebAssembly components as discovery handlers (`wit/`), in this process.
//!
//! ```text
//! LocalHost ── load(bytes) ──► LocalComponent ── validate(Call) ──► triggers
//!                                   └── discover(Call) ──► DeviceSet
//! ```
//! Each call gets a store of its own, on threads that run guests and nothing else, and ends when its deadline does,
//! whatever the guest does meanwhile. A trap, a deadline or a limit is an error value; the store is gone afterwards, and with
//! it every socket, request and secret it held. What a guest may reach is decided by the grants of the call alone
//! (`capabilities`, `network`); what it may use, by the limits.
//!
//! No type of wasmtime, and none made from the WIT package, leaves this crate.

mod bindings;
mod cache;
mod capabilities;
mod compiled;
mod component;
mod contract;
mod convert;
mod coverage;
mod deadline;
mod host;
mod instance_cost;
mod limiter;
mod log;
mod machine_code;
mod network;
mod platform;
mod rates;
mod round;
mod runtime;
mod tape;

#[cfg(test)]
mod hostile;

pub use self::cache::Cache;
pub use self::compiled::ComponentBytes;
pub use self::component::{Call, LoadError, LocalComponent, MAX_COMPONENT, ROUNDS_AT_ONCE_OF_COMPONENT};
pub use self::convert::check_description;
pub use self::coverage::{Import, grant_warnings};
pub use self::deadline::time_to_answer;
pub use self::host::{HostError, LocalHost, LocalHostConfig, ROUNDS_AT_ONCE};
pub use self::log::{CallLog, LOG_LINE_BYTES, LogLine, PartialLine};
pub use self::machine_code::{MODULES_DIR, compile_into, files_below, own_directory, settings_hash};
pub use self::platform::Platform;
pub use self::rates::{ForwardedLine, Rates};
pub use self::runtime::TICK as YIELD_INTERVAL;
pub use self::tape::Tape;

/// For crates that replace functions of the host, which recorders and players of calls do. Only here do types of wasmtime and
/// of the WIT package leave the crate.
pub mod linking {
    pub use crate::bindings::types::AccessError;
    pub use crate::bindings::{multicast, secrets, udev};
    pub use crate::capabilities::guest_result;
    pub use crate::capabilities::names::{Addresses, address};
    pub use crate::capabilities::secrets::Held;
    pub use crate::capabilities::udev::Pages;
    pub use crate::network::http::{Answered, Finished};
    pub use crate::round::Round;
    pub use crate::tape::{Answering, SendRequest};
}
