//! Support for stories.

pub mod agent;
pub mod api_metrics;
pub mod brokers;
pub mod cluster;
pub mod costly_components;
pub mod dns;
pub mod fleet;
pub mod kubelet;
pub mod line;
pub mod namespace;
pub mod node;
pub mod onvif;
pub mod opcua;
pub mod recorder;
pub mod registry;
pub mod remote;
pub mod secrecy;
pub mod site;
pub mod skip;
pub mod udev;
pub mod zram;
