//! `modbus`: a discovery handler for devices behind Modbus/TCP servers.

#[cfg(target_family = "wasm")]
mod component;
pub mod details;
pub mod protocol;
