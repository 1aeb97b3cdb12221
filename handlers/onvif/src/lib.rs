//! onvif
pub mod announcement;
#[cfg(target_family = "wasm")]
mod component;
pub mod credentials;
pub mod details;
pub mod device;
pub mod device_service;
pub mod filter;
#[cfg(test)]
mod fixture;
#[cfg(target_family = "wasm")]
mod http_client;
pub mod inquiry;
pub mod lanes;
pub mod memory;
pub mod security;
pub mod service_url;
pub mod session;
pub mod soap;
pub mod survey;
pub mod verdict;
pub mod xml;

/// The name Configurations use.
pub const NAME: &str = "onvif";

/// The pause between rounds in milliseconds.
pub const INTERVAL_MS: u32 = 30_000;
