//! `modbus`: a discovery handler for devices behind Modbus/TCP servers.

#[cfg(any(target_family = "wasm", test))]
mod component;
pub mod details;
pub mod protocol;
