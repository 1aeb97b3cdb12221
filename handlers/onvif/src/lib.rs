//! onvif
pub mod announcement;
pub mod credentials;
pub mod details;
pub mod device_service;
pub mod filter;
pub mod inquiry;
pub mod memory;
pub mod security;
pub mod service_url;
pub mod session;
pub mod soap;
pub mod xml;
