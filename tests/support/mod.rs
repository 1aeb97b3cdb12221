//! Support for stories.

pub mod brokers;
pub mod cluster;
pub mod dns;
pub mod kubelet;
pub mod line;
pub mod namespace;
pub mod node;
pub mod onvif;
pub mod opcua;
pub mod registry;
pub mod remote;
pub mod secrecy;
pub mod site;
pub mod skip;
pub mod udev;
pub mod zram;
