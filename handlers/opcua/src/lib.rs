//! `opcua`
pub mod binary;
pub mod candidate;
pub mod chunk;
#[cfg(target_family = "wasm")]
mod component;
pub mod conversation;
pub mod details;
pub mod device;
pub mod message;
pub mod network;
pub mod round;
#[cfg(target_family = "wasm")]
mod sockets;
pub mod status;
pub mod url;

/// The name Configurations use.
pub const NAME: &str = "opcua";

/// The pause between rounds in milliseconds: a server that comes is found within half a minute, and 1,000 servers are
/// asked 33 times a second by each node.
pub const INTERVAL_MS: u32 = 30_000;
